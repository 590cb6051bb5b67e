"""`cloudgpu convert`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudgpu.cli.main import main
from cloudgpu.jobspecs.loading.loader import load_file, load_text

CONFIG = """\
# A job of 2019.
jobId: census_1
trainingInput:
  scaleTier: BASIC_GPU
  pythonModule: trainer.task
  packageUris: [gs://bucket/trainer-0.1.tar.gz]
  args: [--epochs, 010]
  jobDir: gs://bucket/out
  region: us-central1
  runtimeVersion: "1.15"
"""
CUSTOM_JOB = """\
workerPoolSpecs:
- machineSpec: {machineType: g2-standard-4, acceleratorType: NVIDIA_L4, acceleratorCount: 1}
  replicaCount: 1
  containerSpec: {imageUri: gcr.io/p/i, command: [python, train.py]}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "custom.yaml").write_text(CUSTOM_JOB)


def test_an_ai_platform_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "config.yaml"]) == 0
    out, err = capsys.readouterr()
    spec = load_text(out).spec
    assert spec == load_file("config.yaml").spec
    assert [str(request) for request in spec.resources.accelerator] == ["T4:1"]
    assert spec.args == ("--epochs", "010", "--job-dir", "gs://bucket/out")
    assert "K80 no longer exists" in err
    assert "today's best offer: " in err
    assert "USD/h" in err
    assert "K80 no longer exists" in out


def test_a_custom_job_of_vertex(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "custom.yaml"]) == 0
    spec = load_text(capsys.readouterr().out).spec
    assert spec.image == "gcr.io/p/i"
    assert spec.resources.cloud == ("vertex", "gcp")


def test_a_job_file_is_printed_in_its_shortest_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "run: python train.py\nname: a\nresources: {market: [on-demand], cloud: [local], accelerator: none}\n"
    )
    assert main(["convert", "job.yaml"]) == 0
    first = capsys.readouterr().out
    assert first == "name: a\nresources:\n  accelerator: none\n  cloud: local\nrun: python train.py\n"
    (tmp_path / "again.yaml").write_text(first)
    assert main(["convert", "again.yaml"]) == 0
    assert capsys.readouterr().out == first


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "config.yaml", "--to", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "census-1"


def test_flags_and_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    words = ["convert", "config.yaml", "--scale-tier", "custom", "--master-machine-type", "n1-standard-16"]
    words += ["--master-accelerator", "count=2,type=nvidia-tesla-t4", "--job-dir", "gs://b/new", "--name", "other"]
    assert main([*words, "--", "--lr", "1", "--scale-tier"]) == 0
    spec = load_text(capsys.readouterr().out).spec
    assert spec.name == "other"
    assert [str(request) for request in spec.resources.accelerator] == ["T4:2"]
    assert spec.args == ("--lr", "1", "--scale-tier", "--job-dir", "gs://b/new")


def test_flags_without_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "src" / "trainer").mkdir(parents=True)
    flags = ["--scale-tier", "basic-gpu", "--region", "europe-west1", "--module-name", "trainer.task"]
    assert main(["convert", *flags, "--package-path", "src/trainer"]) == 0
    spec = load_text(capsys.readouterr().out).spec
    assert (spec.code, spec.run) == ("src", ("python", "-m", "trainer.task"))


def test_output_file_and_its_code_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "trainer").mkdir()
    words = ["convert", "--scale-tier", "basic", "--region", "us-central1", "--module-name", "trainer.task"]
    assert main([*words, "--package-path", "trainer", "-o", "conf/job.yaml"]) == 0
    assert capsys.readouterr().out == ""
    loaded = load_file("conf/job.yaml")
    assert loaded.spec.code is not None
    assert (loaded.base / loaded.spec.code).resolve() == tmp_path


def test_the_file_itself_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "config.yaml", "-o", "./config.yaml"]) == 2
    assert load_file("config.yaml").spec.name == "census-1"
    assert "choose another name" in capsys.readouterr().err


def test_mistakes_have_their_place_in_the_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(CONFIG.replace("us-central1", "us-centrl1") + "  wrokerCount: 2\n")
    assert main(["convert", "bad.yaml", "--worker-count", "x"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "bad.yaml:9:11: error: unknown region" in err
    assert "bad.yaml:11:3: error: unknown field" in err
    assert "--worker-count" in err


def test_what_to_run_is_reported_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("trainingInput:\n  scaleTier: BASIC\n  region: us-central1\n")
    assert main(["convert", "bad.yaml"]) == 3
    err = capsys.readouterr().err
    assert err.count("error") == 1
    assert "--module-name" in err


@pytest.mark.parametrize("words", [[], ["--output"], ["a", "b"], ["config.yaml", "--to", "toml"]])
def test_usage(words: list[str]) -> None:
    assert main(["convert", *words]) == 2


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "nowhere.yaml"]) in (3, 6)
    assert "nowhere.yaml" in capsys.readouterr().err
