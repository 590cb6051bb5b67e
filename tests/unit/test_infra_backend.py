"""Where stacks are kept, and the passphrase that opens them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cloudgpu.infra.engine.backend import Backend, backend_of, environment
from cloudgpu.infra.errors import BadRequestError
from cloudgpu.infra.names import check_bucket


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))


def test_a_folder_of_this_computer_is_made_for_its_owner_only(tmp_path: Path) -> None:
    backend = backend_of(None, {})
    folder = tmp_path / "home/infra/state"
    assert backend == Backend(f"file://{folder}")
    assert not backend.shared
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_option_wins_over_the_variable() -> None:
    environ = {"CLOUDGPU_INFRA_BACKEND": "gs://theirs"}
    assert backend_of(None, environ).url == "gs://theirs"
    assert backend_of("s3://ours/stacks?region=eu-west-1", environ).url == "s3://ours/stacks?region=eu-west-1"


@pytest.mark.parametrize(
    "url", ["https://api.pulumi.com", "state", "/state", "file://", "file:///", "file://host/state", "s3://", "gs:///x"]
)
def test_what_is_no_backend_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        backend_of(url, {})
    assert "write" in refused.value.hint


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadRequestError) as refused:
        backend_of("s3://me:hunter2@bucket", {})
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"


def test_the_passphrase_is_made_once_and_handed_over_by_its_file() -> None:
    backend = backend_of(None, {})
    first = environment(backend, {})
    path = Path(first["PULUMI_CONFIG_PASSPHRASE_FILE"])
    text = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(text) >= 32
    assert environment(backend, {}) == first
    assert path.read_text() == text
    assert text not in str(first)
    assert [one.name for one in path.parent.glob("passphrase*")] == ["passphrase"]


def test_the_users_own_passphrase_and_home_are_kept(tmp_path: Path) -> None:
    given = {"PULUMI_CONFIG_PASSPHRASE": "", "PULUMI_HOME": "/theirs"}
    found = environment(backend_of("s3://team", {}), given)
    assert found["PULUMI_HOME"] == "/theirs"
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    assert not (tmp_path / "home/infra/passphrase").exists()


def test_a_shared_backend_needs_the_passphrase_of_those_who_share_it() -> None:
    with pytest.raises(BadRequestError, match="shared"):
        environment(backend_of("s3://team", {}), {})


def test_stacks_of_the_same_name_in_two_backends_have_folders_of_their_own() -> None:
    folders = {Backend(url).folder("infra-aws-us-east-1") for url in ("s3://one", "s3://two")}
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("cloud", "name"),
    [("aws", "my-bucket-1"), ("gcp", "my_bucket-1"), ("azure", "my-group/account1/con-tainer"), ("azure", "g/abc/abc")],
)
def test_buckets_names(cloud: str, name: str) -> None:
    check_bucket(cloud, name)


@pytest.mark.parametrize(
    ("cloud", "name"),
    [
        ("aws", "My-Bucket"),
        ("aws", "ab"),
        ("aws", "a" * 64),
        ("aws", "has.dots"),
        ("aws", "-begins"),
        ("aws", "xn--name"),
        ("aws", "name-s3alias"),
        ("aws", "s3://bucket"),
        ("aws", ""),
        ("gcp", "googly"),
        ("gcp", "my-google-bucket"),
        ("gcp", "a b c"),
        ("azure", "container"),
        ("azure", "group/Account/container"),
        ("azure", "group/account/two--hyphens"),
        ("azure", "group./account/container"),
        ("azure", "group/account/con/tainer"),
    ],
)
def test_what_cannot_be_a_buckets_name(cloud: str, name: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        check_bucket(cloud, name)
    assert refused.value.hint
