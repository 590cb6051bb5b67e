"""Configuration files: what is read from them, which value applies, and what is refused."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.jobspecs import home
from cloudgpu.jobspecs.configuration import keys
from cloudgpu.jobspecs.configuration.effective import apply_settings, configured_defaults, default_overrides
from cloudgpu.jobspecs.configuration.files import MAX_BYTES, ConfigError, project_file, user_file
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.draft import LoadedSpec
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.loading.overrides import Override
from cloudgpu.jobspecs.models import JobSpec

PACKAGE = Path(home.__file__).parents[1]
JOB = "name: small\nrun: echo\n"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "user" / "config.toml"
    file.parent.mkdir()
    monkeypatch.setenv(home.CONFIG_VARIABLE, str(file))
    return file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "training"
    folder.mkdir(parents=True)
    (folder.parent / ".git").mkdir()
    return folder


def load(folder: Path, text: str = JOB, *given: str) -> LoadedSpec:
    from cloudgpu.jobspecs.loading.overrides import parse_overrides

    overrides: list[str | Override] = [*parse_overrides(given), *default_overrides(folder)]
    return load_text(text, "job.yaml", overrides, folder)


def test_the_path_is_that_of_platformdirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import platformdirs

    monkeypatch.delenv(home.CONFIG_VARIABLE)
    for value in (None, "", "relative", str(tmp_path)):
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        if value is not None:
            monkeypatch.setenv("XDG_CONFIG_HOME", value)
        expected = Path(platformdirs.user_config_dir("cloudgpu", appauthor=False)) / "config.toml"
        assert home.config_file() == expected or value == "relative"  # the specification ignores relative paths


def test_every_default_is_a_key_of_the_job_file() -> None:
    for key in keys.DEFAULTS:
        fields = JobSpec.model_fields
        *parents, last = key.split(".")
        for parent in parents:
            annotation = fields[parent].annotation
            assert annotation is not None
            fields = annotation.model_fields
        assert last in fields, key


def test_every_setting_is_read_somewhere() -> None:
    source = "".join(
        path.read_text() for folder in ("control", "infra", "provisioners") for path in (PACKAGE / folder).rglob("*.py")
    )
    for setting in keys.settings().values():
        prefix = "_".join(setting.variable.split("_")[:2]) + "_"
        is_read = f'"{setting.variable}"' in source or f'{{PREFIX}}{setting.variable.removeprefix(prefix)}"' in source
        assert is_read, setting.variable


def test_the_page_lists_all() -> None:
    page = (PACKAGE / "docs/guides/configuration.md").read_text()
    for one in keys.settings().values():
        assert f"| `{one.name}` | `{one.variable}` | {one.description} |" in page
    for key in keys.DEFAULTS:
        assert f"`{key.partition('.')[2]}`" in page or f"`{key.partition('.')[0]}`" in page, key


def test_precedence(user: Path, project: Path) -> None:
    """Command line, job file, project, user, built in: the first that has a value."""
    user.write_text('[defaults]\nlimits = {price = "1 USD/h", cost = 7, duration = "1h"}\nretry.failure = 4\n')
    (project.parent / "pyproject.toml").write_text('[tool.cloudgpu.defaults.limits]\ncost = "8 USD"\nduration = "2h"\n')
    spec = load(project, f"{JOB}limits: {{duration: 3h}}\n", "retry.failure=5").spec
    limits = spec.limits
    assert (limits.price, limits.cost, limits.duration) == (Decimal(1), Decimal(8), 3 * 3600)
    assert (spec.retry.failure, spec.retry.preemption) == (5, "unlimited")
    assert {value.key: value.source for value in configured_defaults(project)} == {
        "limits.cost": str(project.parent / "pyproject.toml"),
        "limits.duration": str(project.parent / "pyproject.toml"),
        "limits.price": str(user),
        "retry.failure": str(user),
    }


def test_a_default_that_applies_is_noted(user: Path, project: Path) -> None:
    user.write_text('[defaults]\nlimits.price = "1 USD/h"\nlimits.cost = "5 USD"\n')
    loaded = load(project, f"{JOB}limits: {{cost: 2 USD}}\n")
    assert loaded.notes == (f"default applied: limits.price in {user}",)


def test_null_means_no_default(user: Path, project: Path) -> None:
    user.write_text('[defaults]\nlimits.price = "1 USD/h"\n')
    assert load(project, JOB, "limits.price=null").spec.limits.price is None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("", ("us-east-1", "us-central1")),
        ("resources: {cloud: aws}", ("us-east-1",)),
        ("resources: {cloud: [gcp, aws]}", ("us-east-1", "us-central1")),
        ("resources: {cloud: [aws, azure]}", None),
        ("resources: {cloud: local}", None),
        ("resources: {zone: us-central1-a}", None),
        ("resources: {region: eu-west-1}", ("eu-west-1",)),
    ],
)
def test_default_regions_are_those_of_the_jobs_clouds(
    user: Path, project: Path, job: str, expected: tuple[str, ...] | None
) -> None:
    """A cloud that the job names and that has none of the default regions is not excluded by them."""
    user.write_text('[defaults.resources]\nregion = ["us-east-1", "us-central1"]\n')
    assert load(project, f"{JOB}{job}\n").spec.resources.region == expected


@pytest.mark.parametrize(
    ("cloud", "region"), [("[[aws]]", '"us-east-1"'), ("{a: b}", '"us-east-1"'), ("aws", '[["x"]]')]
)
def test_values_of_other_types_are_reported(user: Path, project: Path, cloud: str, region: str) -> None:
    user.write_text(f"[defaults]\nresources.region = {region}\n")
    with pytest.raises(SpecError):
        load(project, f"{JOB}resources: {{cloud: {cloud}}}\n")


def test_a_wrong_default_is_named_by_its_file(user: Path, project: Path) -> None:
    user.write_text('[defaults]\nlimits.price = "cheap"\n')
    with pytest.raises(SpecError) as caught:
        load(project)
    assert caught.value.diagnostics[0].place == f"limits.price in {user}"


def test_the_search_for_a_project_ends_at_the_repository(project: Path, user: Path) -> None:
    outside = project.parents[1] / "pyproject.toml"
    outside.write_text("[tool.cloudgpu.defaults]\nlimits.cost = 1\n")
    assert project_file(project) is None
    (project / "pyproject.toml").write_text("[tool.other]\n# cloudgpu\n")
    (project.parent / "pyproject.toml").write_text("[tool.cloudgpu.defaults]\nlimits.cost = 2\n")
    found = project_file(project)
    assert found is not None and found.defaults == {"limits.cost": "2"}
    assert user_file() is None


def test_settings_are_for_variables_that_are_not_set(user: Path) -> None:
    user.write_text('[settings]\nlocal_price = 1.5\nlocal_slots = 3\naws_boundary = "arn:x"\n')
    environ = {"CLOUDGPU_LOCAL_SLOTS": "9", "CLOUDGPU_AWS_BOUNDARY": ""}
    apply_settings(environ, user_file())
    assert environ == {
        "CLOUDGPU_LOCAL_SLOTS": "9",
        "CLOUDGPU_AWS_BOUNDARY": "arn:x",
        "CLOUDGPU_LOCAL_PRICE": "1.5",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[defaults\n", "is no valid TOML"),
        ("defaults = 3\n", "defaults must be a table"),
        ("[default]\n", "there is no table `default`"),
        ("[defaults]\nlimits.prise = 3\n", "there is no key `defaults.limits.prise`"),
        ("[defaults]\nlimits = 3\n", "there is no key `defaults.limits`"),
        ("[defaults]\nrun = 'rm'\n", "there is no key `defaults.run`"),
        ('[defaults]\n"job_dir.aws" = "s3://b/x"\n', "write defaults.job_dir as a table"),
        ("[defaults]\nlimits.duration = 2026-01-01\n", "must be a text, a number, a list or a table"),
        ("[settings]\nlocal_slots = 0\n", "settings.local_slots: expected a whole number from 1"),
        ("[settings]\nlocal_price = nan\n", "settings.local_price: expected US dollars per hour"),
        ("[settings]\nlocal_price = true\n", "settings.local_price: expected a text"),
        ("[settings]\nhome = '/x'\n", "there is no setting `home`"),
        ("[settings]\naws_boundary = 'a\\u0007'\n".replace("'", '"'), "expected a text"),
        ("x = " + "[" * 5_000 + "\n", "is n"),
        ("#" * (MAX_BYTES + 1), "the limit is"),
    ],
)
def test_a_wrong_file_is_named(user: Path, content: str, message: str) -> None:
    user.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        user_file()
    assert str(user) in str(caught.value)


def test_files_that_are_no_text_are_refused(user: Path) -> None:
    user.write_bytes(b"[defaults]\n# \xff\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 \(byte 14\)"):
        user_file()
    user.unlink()
    os.mkfifo(user)  # reading it would block
    with pytest.raises(ConfigError, match="no regular file"):
        user_file()


def test_a_project_has_no_settings(project: Path) -> None:
    """A cloned project must not move the user's store."""
    (project / "pyproject.toml").write_text('[tool.cloudgpu.settings]\ndatabase_url = "postgresql://evil/db"\n')
    with pytest.raises(ConfigError, match=r"there is no table `tool\.cloudgpu\.settings`"):
        project_file(project)


def test_default_regions_are_those_of_default_clouds(user: Path, project: Path) -> None:
    """A cloud that is itself a default counts like one that the job file names."""
    user.write_text('[defaults.resources]\nregion = ["us-east-1", "us-central1"]\ncloud = "gcp"\n')
    resources = load(project).spec.resources
    assert (resources.cloud, resources.region) == (("gcp",), ("us-central1",))
    user.write_text('[defaults.resources]\nregion = "us-east-1"\ncloud = ["aws", "gcp"]\n')
    assert load(project).spec.resources.region is None
