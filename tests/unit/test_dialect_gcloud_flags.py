"""The flags of gcloud ai-platform jobs submit training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.dialects import ai_platform
from cloudgpu.jobspecs.dialects.gcloud_flags import BY_NAME, FLAGS, Flag, apply, click_options, take
from cloudgpu.jobspecs.loading.draft import LoadedSpec, Overrides
from cloudgpu.jobspecs.loading.loader import load_file, load_with_flags
from cloudgpu.jobspecs.loading.source import read_source
from cloudgpu.jobspecs.models import JobSpec

CUSTOM = {"--scale-tier": "custom", "--master-machine-type": "n1-standard-8", "--region": "us-central1"}
PROGRAM = {"--module-name": "trainer.task", "--package-path": "./trainer/"}
# The flags that gcloud documents, beta flags included; --config is FILE here.
DOCUMENTED = """
--async --enable-web-access --job-dir --kms-key --kms-keyring --kms-location --kms-project --labels
--master-accelerator --master-image-uri --master-machine-type --module-name --network --package-path --packages
--parameter-server-accelerator --parameter-server-count --parameter-server-image-uri --parameter-server-machine-type
--python-version --region --runtime-version --scale-tier --service-account --staging-bucket --stream-logs
--tpu-tf-version --use-chief-in-tf-config --worker-accelerator --worker-count --worker-image-uri
--worker-machine-type
"""
# The flags of every gcloud command ("GCLOUD WIDE FLAGS" in its reference), except --help.
GCLOUD_WIDE = """
--access-token-file --account --billing-project --configuration --flags-file --flatten --format
--impersonate-service-account --log-http --project --quiet --trace-token --user-output-enabled --verbosity
"""


def test_every_documented_flag_is_known() -> None:
    assert set(BY_NAME) == {*DOCUMENTED.split(), *GCLOUD_WIDE.split()}


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.path], ids=lambda flag: flag.name)
def test_every_path_is_a_known_field(flag: Flag) -> None:
    first, *rest = flag.path
    assert first in ai_platform.JOB
    if rest:
        assert rest[0] in ai_platform.TRAINING_INPUT
    if len(rest) > 1 and rest[0].endswith("Config") and rest[0] != "encryptionConfig":
        assert rest[1] in ai_platform.REPLICA_CONFIG


def test_flags_alone_describe_a_job() -> None:
    flags = {**CUSTOM, **PROGRAM, "--master-accelerator": "count=4,type=nvidia-tesla-t4", "--job-dir": "gs://b/out"}
    conversion = apply(None, flags, ["--epochs", "10"], job="My_job")
    assert conversion.problems == []
    spec = JobSpec.model_validate(conversion.job)
    assert (spec.name, spec.code, spec.job_dir) == ("my-job", ".", "gs://b/out")
    assert [str(request) for request in spec.resources.accelerator] == ["T4:4"]
    assert spec.run == ("python", "-m", "trainer.task")
    assert spec.args == ("--epochs", "10", "--job-dir", "gs://b/out")


def test_a_flag_wins_over_the_file_and_leaves_it_alone() -> None:
    document = {
        "training_input": {
            "scale_tier": "CUSTOM",
            "master_type": "n1-standard-8",
            "master_config": {
                "imageUri": "gcr.io/p/i",
                "accelerator_config": {"type": "NVIDIA_TESLA_P4", "count": "2"},
            },
            "python_module": "a.b",
            "args": ["old"],
            "region": "us-central1",
        }
    }
    before = copy.deepcopy(document)
    conversion = apply(document, {"--master-accelerator": "type=NVIDIA_TESLA_T4", "--region": "us-west1"}, ["new"])
    assert conversion.problems == []
    assert conversion.job["resources"]["accelerator"] == "T4:1"
    assert conversion.job["resources"]["region"] == "us-west1"
    assert conversion.job["image"] == "gcr.io/p/i"
    assert conversion.job["args"] == ["new"]
    assert conversion.origins["resources", "accelerator"] == ("--master-accelerator",)
    assert conversion.origins["args",] == ("-- USER_ARGS",)
    assert document == before


@pytest.mark.parametrize(
    ("flags", "place", "words"),
    [
        ({"--master-accelerator": "count=4"}, "--master-accelerator", "expected a type"),
        ({"--master-accelerator": "nvidia-tesla-t4"}, "--master-accelerator", "KEY=VALUE"),
        ({"--master-accelerator": "cuont=4,type=nvidia-tesla-t4"}, "--master-accelerator", "count"),
        ({"--master-accelerator": "type=a,type=b"}, "--master-accelerator", "twice"),
        ({"--master-accelerator": "count=3,type=nvidia-tesla-t4"}, "--master-accelerator", "3 × T4"),
        ({"--worker-count": "two", "--worker-machine-type": "n1-standard-4"}, "--worker-count", "whole number"),
        ({"--worker-count": "2"}, "--worker-count", "needs a workerType"),
        ({"--region": "us-centrl1"}, "--region", "unknown region"),
        ({"--packages": "a.tar.gz,,b"}, "--packages", "commas"),
        ({"--labels": "a"}, "--labels", "KEY=VALUE"),
        ({"--kms-key": "k"}, "--kms-key", "cannot encrypt"),
        ({"--scale-tier": "custum"}, "--scale-tier", "unknown scale tier"),
    ],
)
def test_mistakes_are_reported_at_their_flag(flags: dict[str, str], place: str, words: str) -> None:
    [problem] = apply(None, {**CUSTOM, **PROGRAM, **flags}).problems
    assert problem.loc == (place,)
    assert words in problem.message


def test_flags_without_effect_are_named() -> None:
    conversion = apply(None, {**CUSTOM, **PROGRAM, "--stream-logs": "true", "--staging-bucket": "gs://b"})
    assert [note for note in conversion.notes if note.startswith("--stream-logs")]
    assert [note for note in conversion.notes if note.startswith("--staging-bucket")]


def test_packages_are_arguments_of_the_setup_script() -> None:
    conversion = apply(None, {**CUSTOM, "--module-name": "t", "--packages": "dist/a.tar.gz, gs://b/$(rm -rf x).whl"})
    script, *arguments = conversion.job["setup"][2:]
    assert arguments == ["setup", "dist/a.tar.gz", "gs://b/$(rm -rf x).whl"]
    assert "rm -rf" not in script
    assert conversion.job["code"] == "."


def test_click_options_round_trip() -> None:
    seen: dict[str, object] = {}

    @click.command()
    @click.option("--region")
    @click_options(skip=("--region",))
    def command(**parameters: object) -> None:
        seen.update(take(parameters), rest=parameters)

    command.main(["--scale-tier", "basic", "--async", "--no-log-http", "--region", "x"], standalone_mode=False)
    assert seen == {"--scale-tier": "basic", "--async": "true", "--log-http": "false", "rest": {"region": "x"}}


CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
  pythonModule: trainer.task
  args: [--lr, 0.10]
  jobDir: gs://old/dir
  region: us-central1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def load(path: Path, flags: Mapping[str, str], overrides: Overrides = (), job: str | None = None) -> LoadedSpec:
    return load_with_flags(read_source(path), flags, overrides, base=path.parent, job=job)


def test_overrides_that_are_flags_act_before_conversion(tmp_path: Path) -> None:
    loaded = load(
        write(tmp_path, CONFIG), {}, ["job_dir=gs://new/dir", "resources.region=us-west1", 'args=["--lr","1"]']
    )
    assert loaded.spec.args == ("--lr", "1", "--job-dir", "gs://new/dir")
    assert loaded.spec.job_dir == "gs://new/dir"
    assert loaded.spec.resources.region == ("us-west1",)
    assert load(write(tmp_path, CONFIG), {}, ["limits.cost=5 USD"]).spec.args[:2] == ("--lr", "0.10")


def test_load_file_means_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG)
    overrides = {"job_dir": "gs://new/dir", "resources.region": ["us-west1", "us-east1"]}
    loaded = load_file(path, overrides)
    assert loaded.spec == load(path, {}, overrides).spec
    assert loaded.spec.args == ("--lr", "0.10", "--job-dir", "gs://new/dir")
    assert loaded.spec.resources.region == ("us-west1", "us-east1")


def test_of_several_regions_the_first_decides_what_is_converted(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_file(write(tmp_path, CONFIG), {"resources.region": ["europe-west1", "us-west1"]})
    assert [(found.file, found.code) for found in caught.value.diagnostics] == [("--region", "accelerator-region")]


def test_an_override_that_cannot_be_read_is_told_with_the_mistakes_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_file(write(tmp_path, CONFIG + "  wrokerCount: 1\n"), ["nonsense"])
    assert {found.code for found in caught.value.diagnostics} == {"unknown-field", "bad-override"}


def test_a_region_without_the_accelerator_is_reported_at_the_flag(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, CONFIG), {"--region": "europe-west1"})
    [found] = caught.value.diagnostics
    assert (found.file, found.line, found.code) == ("--region", 0, "accelerator-region")


def test_a_job_file_takes_only_the_flags_it_knows(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nrun: b\nresources: {accelerator: T4}\n")
    loaded = load(path, {"--region": "us-central1"}, ["job_dir=gs://b/x"])
    assert (loaded.spec.resources.region, loaded.spec.job_dir) == (("us-central1",), "gs://b/x")
    with pytest.raises(SpecError) as caught:
        load(path, {"--scale-tier": "basic"}, job="name")
    assert [found.file for found in caught.value.diagnostics] == ["--scale-tier", "--config"]


def test_the_package_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "src" / "trainer").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "conf", CONFIG)
    loaded = load(path, {"--package-path": "src/trainer"})
    assert loaded.spec.code is not None
    assert (loaded.base / loaded.spec.code).resolve() == tmp_path / "src"


def test_mistakes_of_file_and_flags_come_together(tmp_path: Path) -> None:
    text = CONFIG + "  region: us-west1\n  wrokerCount: 1\n"
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, text), {"--worker-count": "x", "--worker-machine-type": "n1-standard-4"})
    assert {found.code for found in caught.value.diagnostics} == {"duplicate-key", "unknown-field", "wrong-value"}
