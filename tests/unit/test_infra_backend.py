"""Where stacks are kept, and the passphrase that opens them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cloudgpu.infra.engine.backend import Backend, backend_of, environment, translate_bucket_error
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


@pytest.mark.parametrize(
    ("url", "given", "engine"),
    [
        ("gs://team", {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:80"}, {"STORAGE_EMULATOR_HOST": "127.0.0.1:80"}),
        ("gs://team", {"STORAGE_EMULATOR_HOST": "127.0.0.1:80"}, {"STORAGE_EMULATOR_HOST": "127.0.0.1:80"}),
        ("s3://team", {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:80", "AZURE_STORAGE_KEY": "k"}, {}),
        ("gs://team", {}, {}),
        (
            "azblob://team?storage_account=ours",
            {"AZURE_STORAGE_KEY": "k"},
            {"AZURE_STORAGE_ACCOUNT": "ours", "AZURE_STORAGE_KEY": "k"},
        ),
        (
            "azblob://team",
            {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_ACCOUNT_KEY": "k", "AZURE_STORAGE_SAS_KEY": "?s=1"},
            {"AZURE_STORAGE_ACCOUNT": "ours", "AZURE_STORAGE_KEY": "k", "AZURE_STORAGE_SAS_TOKEN": "s=1"},
        ),
        (
            "azblob://team?storage_account=ours",
            {"AZURE_STORAGE_ACCOUNT": "named", "AZURE_STORAGE_SAS_TOKEN": "s=1", "AZURE_STORAGE_SAS_KEY": "another"},
            {"AZURE_STORAGE_ACCOUNT": "named", "AZURE_STORAGE_SAS_TOKEN": "s=1"},
        ),
    ],
)
def test_the_engine_gets_what_opens_the_bucket_as_it_reads_it(
    url: str, given: dict[str, str], engine: dict[str, str]
) -> None:
    found = environment(backend_of(url, {}), {**given, "PULUMI_CONFIG_PASSPHRASE": ""})
    assert {name: value for name, value in found.items() if name.startswith(("AZURE_", "STORAGE_"))} == engine


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (
            "could not list bucket: blob (code=NotFound): operation error S3: ListObjectsV2, RequestID: 1A",
            "does not exist",
            "create the bucket",
        ),
        ('read ".pulumi/meta.yaml": blob (code=PermissionDenied): 403', "may not read and write there", "others"),
        ("DefaultAzureCredential: failed to acquire a token.", "finds no credentials", "log in"),
        ("missing google credentials: unable to find gcp credentials", "finds no credentials", "log in"),
        ("blob (code=Unknown): no such host", "no such host", "CLOUDGPU_INFRA_BACKEND"),
    ],
)
def test_what_the_engine_says_of_a_bucket_names_it_and_what_to_do(said: str, message: str, hint: str) -> None:
    error = translate_bucket_error("s3://team/stacks", said)
    assert error is not None
    assert str(error).startswith("s3://team/stacks ")
    assert message in str(error)
    assert hint in error.hint
    assert "RequestID" not in str(error)


def test_what_the_engine_says_of_other_things_stays() -> None:
    assert translate_bucket_error("s3://team", "toy-1 (toy:index:Toy): code=NotFound") is None


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
