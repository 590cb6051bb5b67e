"""The AWS clients: boto3 is an optional dependency, and its exceptions become one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import botocore.exceptions as boto
import pytest

from cloudgpu.provisioners import ProvisionError, get_provisioner
from cloudgpu.provisioners.aws.clients import is_set_up
from cloudgpu.provisioners.aws.errors import translate_error, translate_errors


class Clock:
    """A clock that advances only in sleep()."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    return done.stdout.strip()


def test_boto3_is_loaded_by_nothing_but_a_call() -> None:
    code = "import sys; from cloudgpu.provisioners import get_provisioner; get_provisioner('aws')"
    assert run(f"{code}; print({{'boto3', 'botocore'}} & set(sys.modules))") == "set()"


def test_without_boto3_it_is_said_what_to_install() -> None:
    code = """
import sys
sys.modules["boto3"] = None
from cloudgpu.provisioners import Owner, ProvisionError, get_provisioner
try:
    get_provisioner("aws").find(Owner("x"))
except ProvisionError as error:
    print(error.error_class, error)
"""
    assert run(code) == "invalid the target aws needs boto3: pip install 'cloudgpu[aws]'"


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (boto.NoCredentialsError(), "auth", "AWS_PROFILE"),
        (boto.PartialCredentialsError(provider="env", cred_var="secret"), "auth", "AWS_PROFILE"),
        (boto.ProfileNotFound(profile="nobody"), "auth", "nobody"),
        (boto.SSOTokenLoadError(error_msg="expired"), "expired", "aws sso login"),
        (boto.UnauthorizedSSOTokenError(), "expired", "aws sso login"),
        (boto.EndpointConnectionError(endpoint_url="https://ec2.us-esat-1.amazonaws.com"), "transient", "us-esat-1"),
        (boto.ConnectTimeoutError(endpoint_url="https://x"), "transient", "check the network"),
        (boto.ReadTimeoutError(endpoint_url="https://x"), "transient", "check the network"),
        (boto.SSLError(endpoint_url="https://x", error=OSError("bad")), "transient", "AWS_CA_BUNDLE"),
        (boto.ParamValidationError(report="Unknown parameter"), "invalid", "Unknown parameter"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_exceptions_of_the_sdk(error: Exception, kind: str, says: str) -> None:
    with pytest.raises(ProvisionError, match="launch") as caught, translate_errors("launch", Clock()):
        raise error
    assert caught.value.error_class == kind
    assert says in str(caught.value)


def test_a_bug_is_no_error_of_the_providers() -> None:
    assert translate_error(KeyError("x"), "launch", Clock()) is None
    with pytest.raises(KeyError), translate_errors("launch", Clock()):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, True),
        ({"AWS_ACCESS_KEY_ID": "a"}, True),  # incomplete credentials: an error is raised when they are used
        ({"AWS_PROFILE": "nobody"}, True),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/role"}, True),
    ],
)
def test_whether_it_could_be_used_is_seen_without_asking_anybody(
    settings: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**settings, "HOME": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path / "none")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert is_set_up() is expected


def test_a_process_has_one_provisioner_until_the_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(8) as pool:
        [first] = set(pool.map(lambda _: get_provisioner("aws"), range(32)))
    monkeypatch.setenv("AWS_PROFILE", "another")
    assert get_provisioner("aws") is not first
    monkeypatch.undo()
    assert get_provisioner("aws") is first
