"""Flags that override a job file, gcloud's command line, and the confirmation of the cost."""

from __future__ import annotations

import importlib
import io
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import click
import pytest

from cloudgpu.cli import main, submit
from cloudgpu.cli.exit_codes import Exit
from cloudgpu.cli.shared.errors import CommandError
from cloudgpu.cli.shared.job.start import confirm
from cloudgpu.cli.shared.jobfile.job_file_options import FLAGS
from cloudgpu.cli.shared.jobfile.plan_view import offer_text
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.draft import LoadedSpec
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer, RoleOffer

JOB = """\
name: small
resources: {cloud: gcp, accelerator: L4}
code: null
run: echo
args: [--from, file]
env: {A: "1"}
"""
CONFIG = "trainingInput:\n  scaleTier: BASIC\n  region: us-central1\n  pythonModule: trainer.task\n"


def load(folder: Path, text: str, *words: str) -> LoadedSpec:
    """Load a file as `submit` does with these arguments."""
    file = folder / "job.yaml"
    file.write_text(text)
    return load_words(str(file), *words)


def load_words(*words: str) -> LoadedSpec:
    context = submit.command.make_context("submit", list(words))
    flags = {name: value for name, value in context.params.items() if name.startswith("gcloud_")}
    return submit._load(context, context.params["file"], flags)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        JOB,
        *("--name", "other", "--region", "us-east1", "--region", "us-west1", "--accelerator", "T4:2", "--nodes", "2"),
        *("--env", "B=x=y: [1]", "--env", "C=", "--set", "limits.cost=5 USD", "--market", "spot"),
    )
    spec = loaded.spec
    assert spec.name == "other"
    assert spec.resources.region == ("us-east1", "us-west1")
    assert str(spec.resources.accelerator[0]) == "T4:2"
    assert spec.resources.nodes.most == 2
    assert spec.resources.market == ("spot",)
    assert spec.env == {"A": "1", "B": "x=y: [1]", "C": ""}
    assert spec.limits.cost == Decimal(5)
    assert spec.args == ("--from", "file")


def test_program_args_replace_those_of_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, JOB, "--", "--name", "x", "--", "it's").spec.args == ("--name", "x", "--", "it's")
    assert load(tmp_path, JOB, "--").spec.args == ()


def test_a_second_file_is_no_argument_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"other\.yaml"):
        load(tmp_path, JOB, "other.yaml")


def test_a_mistake_in_a_flag_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, JOB, "--nodes", "many", "--set", "limits.cots=5 USD")
    places = {diagnostic.place for diagnostic in caught.value.diagnostics}
    assert any("--nodes" in place for place in places)
    assert any("limits.cots" in place for place in places)


@pytest.mark.parametrize(("word", "said"), [("NOT_SET_HERE", "not set in this shell"), ("=x", "NAME=VALUE or NAME")])
def test_env_must_have_a_name_and_a_value(tmp_path: Path, word: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        load(tmp_path, JOB, "--env", word)


def test_env_takes_the_value_that_this_shell_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_SHELL", "a=b")
    assert (
        load(tmp_path, JOB, "--env", "OF_SHELL", "--env", "C=d").spec.env.items()
        >= {"OF_SHELL": "a=b", "C": "d"}.items()
    )


def test_every_flag_is_a_key_of_the_job_file() -> None:
    for flag in FLAGS:
        model: object = JobSpec
        for step in flag.key.split("."):
            field = model.model_fields[step]  # type: ignore[attr-defined]
            model = field.annotation


def test_plan_and_submit_take_the_same_flags() -> None:
    names = [
        {
            option
            for parameter in importlib.import_module(f"cloudgpu.cli.{command}").command.params
            for option in parameter.opts
        }
        for command in ("plan", "submit")
    ]
    wanted = {"--set", "--env", *(flag.flag for flag in FLAGS)}
    assert all(wanted <= given for given in names)


def test_gcloud_flags_change_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = ("--config", str(tmp_path / "config.yaml"), "--region", "us-east1", "--job-dir", "gs://bucket/out")
    loaded = load_words("My_Job", *words, "--", "--epochs", "3")
    assert loaded.spec.name == "my-job"
    assert loaded.spec.resources.region == ("us-east1",)
    assert loaded.spec.job_dir == "gs://bucket/out"
    assert loaded.spec.args[:2] == ("--epochs", "3")
    assert "gs://bucket/out" in loaded.spec.args  # gcloud also passes it to the program
    assert loaded.base == tmp_path


def test_gcloud_flags_alone_describe_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").mkdir()
    monkeypatch.chdir(tmp_path)
    loaded = load_words("my_job", "--scale-tier", "basic", "--module-name", "trainer.task", "--package-path", "trainer")
    assert loaded.spec.name == "my-job"
    assert loaded.base == Path.cwd()


def test_a_config_file_needs_no_flags(tmp_path: Path) -> None:
    words = ("--job-dir", "gs://bucket/out", "--set", "retry.failure=7", "--region", "us-east1")
    spec = load(tmp_path, CONFIG, *words, "--", "--epochs", "3").spec
    assert spec.job_dir == "gs://bucket/out"
    assert spec.args == ("--epochs", "3", "--job-dir", "gs://bucket/out")
    assert spec.retry.failure == 7
    assert spec.resources.region == ("us-east1",)


def test_plan_and_validate_read_a_config_file_as_submit_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("BASIC", "BASIC_GPU"))
    assert main(["plan", str(file), "--region", "us-east1", "--job-dir", "gs://b/out", "--", "-e", "3"]) == 0
    assert "us-east1" in capsys.readouterr().out
    # The region is applied before the conversion, because it is a gcloud flag.
    for words in (
        ["plan", str(file), "--region", "us-nowhere1"],
        ["validate", str(file), "--set", "resources.region=x"],
    ):
        assert main(words) == Exit.INVALID
        out, err = capsys.readouterr()
        assert "--region: error: unknown region" in out + err


@pytest.mark.parametrize("command", ["plan", "validate", "convert", "submit --dry-run"])
def test_standard_input(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    for text, code in ((JOB, 0), (JOB.replace("name:", "nmae:"), Exit.INVALID)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main([*command.split(), "-"]) == code
        out, err = capsys.readouterr()
        assert ("<stdin>:1:1: error" in out + err) == bool(code)


def test_the_job_dir_of_a_job_file_is_not_the_programs(tmp_path: Path) -> None:
    assert load(tmp_path, JOB, "--job-dir", "gs://bucket/out").spec.args == ("--from", "file")


def test_gcloud_flags_do_not_fit_a_job_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--scale-tier: this flag does not go with a job file"):
        load(tmp_path, JOB, "--scale-tier", "basic")
    with pytest.raises(SpecError, match="--config: this flag does not go with a job file"):
        load_words("name", "--config", str(tmp_path / "job.yaml"))


def test_a_missing_config_is_told_as_such(tmp_path: Path) -> None:
    for words in (["job", "--config", str(tmp_path / "no.yaml")], [str(tmp_path / "no.yaml"), "--scale-tier", "basic"]):
        with pytest.raises(SpecError, match="no such file"):
            load_words(*words)


def offer(price: str | None, cloud: str = "gcp", nodes: int = 1) -> Offer:
    amount = None if price is None else Decimal(price)
    role = RoleOffer("worker", nodes, "g2-standard-4", "L4", Fraction(1), 4, 16.0, amount)
    return Offer(cloud, "us-east1", None, "spot", (role,), 100.0, None, amount, "2026-01-01")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (offer("0.5", nodes=2), "gcp us-east1 spot: 2 × g2-standard-4 + L4:1, 0.50 USD/h"),
        (offer(None), "gcp us-east1 spot: g2-standard-4 + L4:1, price unknown"),
        (offer("0", "local"), "this machine: worker + L4:1"),
    ],
)
def test_offer_text(given: Offer, text: str) -> None:
    assert offer_text(given) == text


@pytest.mark.parametrize("price", ["0.01", None])
def test_money_needs_a_word_where_nobody_can_be_asked(price: str | None) -> None:
    free, limited = load_text(JOB), load_text(JOB, overrides=["limits.cost=5 USD"])
    with pytest.raises(CommandError) as caught:
        confirm(offer(price), free.spec, yes=False)
    assert caught.value.exit_code is Exit.USAGE
    assert ("limits.cost" in caught.value.hint) == (price is not None), "a limit refuses what has no price"
    confirm(offer(price), free.spec, yes=True)
    confirm(offer(price), limited.spec, yes=False)
    confirm(offer("0"), free.spec, yes=False)
