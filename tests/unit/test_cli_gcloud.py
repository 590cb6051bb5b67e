"""`validate` and `plan` accept the files and flags of `gcloud ai-platform jobs submit training`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudgpu.cli.main import main

# The two config.yaml files in AI Platform Training's documentation; the program is given on the command line.
CUSTOM = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  workerType: n1-highcpu-16
  parameterServerType: n1-highmem-8
  evaluatorType: n1-highcpu-16
  workerCount: 9
  parameterServerCount: 3
  evaluatorCount: 1
"""
GPUS = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-16
  masterConfig:
    acceleratorConfig:
      count: 2
      type: NVIDIA_TESLA_T4
"""
PROGRAM = ["--module-name", "trainer.task", "--package-path", "trainer", "--region", "us-central1"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    (tmp_path / "trainer").mkdir()
    (tmp_path / "custom.yaml").write_text(CUSTOM)
    (tmp_path / "gpus.yaml").write_text(GPUS)


def test_a_file_without_program_validates_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "custom.yaml", "gpus.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.count("warning: this does not say what to run [no-program]") == 2
    assert "gpus.yaml: valid\n" in out
    assert "error" not in out


def test_a_file_without_program_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpus.yaml"]) == 0
    assert "this does not say what to run" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["convert", "submit"])
def test_a_job_file_or_a_job_needs_a_program(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "gpus.yaml"]) == 3
    assert "this does not say what to run" in capsys.readouterr().err


def test_a_custom_job_of_vertex_needs_one_wherever_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "vertex.yaml").write_text("workerPoolSpecs: [{machineSpec: {machineType: n1-standard-4}}]\n")
    assert main(["validate", "vertex.yaml"]) == 3


@pytest.mark.parametrize("file", ["custom.yaml", "gpus.yaml"])
def test_with_the_flags_nothing_is_left_to_say(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", file, *PROGRAM, "--", "--epochs", "10"]) == 0
    assert capsys.readouterr().out == f"{file}: valid\n"
    assert main(["plan", file, *PROGRAM, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["offers"]
    assert "what to run" not in err


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_the_flags_alone_describe_a_job(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--scale-tier", "basic-gpu", *PROGRAM]) == 0
    assert main([command, "--scale-tier", "basic-gp", *PROGRAM]) == 3
    assert "unknown scale tier" in "".join(capsys.readouterr())
    assert main([command]) == 2


def test_a_mistake_in_a_flag_is_reported_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "custom.yaml", "gpus.yaml", "--region", "us-centrl1"]) == 3
    assert capsys.readouterr().out.count("--region: error: unknown region") == 2


GCLOUD_WIDE = """
--account a --access-token-file f --billing-project p --configuration c --flatten k --format json
--log-http --no-log-http
--impersonate-service-account a --quiet -q --no-quiet --trace-token t --user-output-enabled --no-user-output-enabled
--verbosity debug --no-async --no-stream-logs --no-enable-web-access --project p
"""


def test_what_every_gcloud_command_takes_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", "--scale-tier", "basic", *PROGRAM, *GCLOUD_WIDE.split()]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "--no-stream-logs has no effect" in err
    assert "--account has no effect" in err


@pytest.mark.parametrize(("flag", "value"), [("--kms-key", "k"), ("--flags-file", "f")])
def test_a_flag_that_cannot_be_left_out_is_named_in_the_hint(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--scale-tier", "basic", *PROGRAM, flag, value]) == 3
    assert f"remove {flag} to go on without it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "place", "message"),
    [
        (["--package-path", "trainr"], "--package-path", "there is no `trainr`"),
        (["--package-path", "nowhere/trainer"], "--package-path", "there is no `nowhere/trainer`"),
        (["--packages", "nope.tar.gz"], "--packages", "there is no `nope.tar.gz`"),
        (["--packages", "../a.tar.gz"], "--packages", "`../a.tar.gz` is not in the folder that is shipped, `.`"),
    ],
)
def test_packages_that_are_not_there_are_mistakes(
    flags: list[str], place: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["validate", "--scale-tier", "basic", "--region", "us-central1", "--module-name", "trainer.task"]
    assert main([*words, *flags]) == 3
    assert f"{place}: error: {message}" in capsys.readouterr().out


def test_packages_are_looked_for_where_the_code_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src" / "trainer").mkdir(parents=True)
    (tmp_path / "a.tar.gz").touch()
    words = ["validate", "--scale-tier", "basic", "--region", "us-central1", "--module-name", "trainer.task"]
    assert main([*words, "--packages", "a.tar.gz,gs://bucket/b.whl"]) == 0
    assert main([*words, "--packages", "a.tar.gz", "--package-path", "src/trainer"]) == 3
    assert "there is no `src/a.tar.gz`" in capsys.readouterr().out
    (tmp_path / "packages.yaml").write_text("trainingInput: {pythonModule: t, packageUris: [b.whl]}\n")
    assert main(["validate", "packages.yaml"]) == 3
    assert "packages.yaml:1:47: error: there is no `b.whl`" in capsys.readouterr().out


STORES = [
    ("cloud: gcp", "job_dir: s3://b/x", "4:10"),
    ("cloud: [gcp, vertex]", "job_dir: {aws: s3://b/x}", "4:10"),
    ("cloud: aws", "inputs: {data: gs://b/x}", "4:16"),
]


@pytest.mark.parametrize(("cloud", "store", "place"), STORES)
def test_a_store_that_no_cloud_of_the_job_reaches_is_refused_before_submit(
    cloud: str, store: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: x\nrun: a\nresources: {{{cloud}, accelerator: T4}}\n{store}\ncode: null\n"
    )
    for command in (["validate"], ["plan"], ["submit", "--dry-run"]):
        assert main([*command, "job.yaml"]) == 4
        assert f"job.yaml:{place}: " in "".join(capsys.readouterr())


def test_one_cloud_that_reaches_it_is_enough(tmp_path: Path) -> None:
    text = "name: x\nrun: a\nresources: {cloud: [gcp, aws], accelerator: T4}\njob_dir: s3://b/x\ncode: null\n"
    (tmp_path / "job.yaml").write_text(text)
    assert main(["validate", "job.yaml"]) == 0


def test_a_job_name_or_flag_with_characters_that_cannot_be_seen_is_refused() -> None:
    assert main(["convert", "--scale-tier", "basic", "--module-name", "trainer.\u202etask"]) == 3


def test_a_gpu_that_is_gone_is_no_second_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "trainingInput: {scaleTier: BASIC_GPU, pythonModule: t, regoin: us-central1}\n"
    (tmp_path / "job.yaml").write_text(text)
    assert main(["validate", "job.yaml"]) == 3
    assert "retired" not in capsys.readouterr().out
