"""Secrets read from the clouds' secret managers over the wire, with faults, bad input and missing permissions."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import google_crc32c
import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.runtime.secrets import aws, gcp
from cloudgpu.runtime.secrets.api import Patience
from cloudgpu.runtime.secrets.references import MOST_BYTES, Reads, SecretError, read_secret
from cloudgpu.storage.azure_account import _login

from ..standins.aws import Aws
from ..standins.azure import Azure
from ..standins.azure.imds import InstanceMetadata as AzureMetadata
from ..standins.azure.tokens import Principal
from ..standins.faults import HTML, LOSE, RESET, Control, Fault, error
from ..standins.gcp import Gcp
from ..standins.gcp.project import MACHINE, PROJECT
from ..standins.gcp_metadata import InstanceMetadata as GcpMetadata
from ..standins.local_jobs import home, submit_text

__all__ = ["home"]

CANARY = "canary-4f1c"
FAST = Patience(total_s=20.0, unready_s=0.0, sleep=lambda _s: time.sleep(0.01))
REGION = "eu-central-1"


class Cloud(NamedTuple):
    """A cloud's secret manager with a secret `token`."""

    control: Control
    action: str
    """Name of the recorded call that reads a secret."""
    reference: str
    add: Callable[[str, str], str]
    """Add a secret with a value; return its reference."""
    throttled: Fault
    absent: str
    """Part of the message for a secret that does not exist."""
    deny: Callable[[], str]
    """Take the permission away; return what the message must name: principal, permission and resource, by blanks."""


def use(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    """Set a cloud's variables, and no other credentials."""
    mine = (
        "AWS_",
        "GOOGLE_",
        "GCE_",
        "AZURE_",
        "CLOUDSDK_",
        "CLOUDGPU_AWS",
        "CLOUDGPU_GCP",
        "CLOUDGPU_AZURE",
        "STORAGE_",
    )
    for name in [name for name in os.environ if name.startswith(mine)]:
        monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def of_aws() -> Iterator[Aws]:
    with Aws() as made:
        yield made


@pytest.fixture(scope="module")
def of_gcp() -> Iterator[Gcp]:
    with Gcp() as made:
        yield made


@pytest.fixture(scope="module")
def of_azure() -> Iterator[Azure]:
    with Azure() as made:
        yield made


def on_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Aws) -> Cloud:
    made.control.reset()
    use(
        monkeypatch,
        {**made.environ, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_CONFIG_FILE": str(tmp_path / "none")},
    )
    client: Any = boto3.client("secretsmanager")

    def add(name: str, value: str) -> str:
        client.create_secret(Name=name, SecretString=value)
        return f"aws-secretsmanager://{name}"

    def deny() -> str:
        iam: Any = boto3.client("iam")
        iam.create_user(UserName="somebody")
        key = iam.create_access_key(UserName="somebody")["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        made.control.enforce()
        return f"{key['AccessKeyId']} secretsmanager:GetSecretValue team/token {REGION}"

    throttled = error("ThrottlingException", 400, "Rate exceeded")
    absent = f"there is no such secret or version in {REGION}"
    return Cloud(made.control, "GetSecretValue", add("team/token", CANARY), add, throttled, absent, deny)


def on_gcp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Gcp) -> Cloud:
    made.control.reset()
    use(monkeypatch, made.environ(tmp_path))

    def add(name: str, value: str) -> str:
        made.control.do("secretmanager/put", secret=name, value=value)
        return f"gcp-secretmanager://{name}"

    def deny() -> str:
        made.control.enforce({})
        return f"secretmanager.versions.access projects/{PROJECT}/secrets/token roles/secretmanager.secretAccessor"

    throttled = error("RESOURCE_EXHAUSTED", 429, "Quota exceeded")
    absent = "there is no such secret or version"
    return Cloud(made.control, "projects.secrets.versions.access", add("token", CANARY), add, throttled, absent, deny)


def on_azure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Azure) -> Cloud:
    made.control.reset()
    _login.cache_clear()
    use(monkeypatch, made.environ(tmp_path))
    known = on_azure_machine(monkeypatch, made)

    def add(name: str, value: str) -> str:
        made.control.add_secret("team-vault", name, value)
        return f"azure-keyvault://team-vault/{name}"

    def deny() -> str:
        monkeypatch.delenv("AZURE_CLIENT_SECRET")
        who = known.__enter__()
        return f"{who.client_id} {who.object_id} getSecret/action team-vault token"

    throttled = error("Throttled", 429, "Too many requests", **{"Retry-After": "1"})
    absent = "the vault team-vault has no such secret or version"
    return Cloud(made.control, "secrets.get", add("token", CANARY), add, throttled, absent, deny)


@contextlib.contextmanager
def on_azure_machine(monkeypatch: pytest.MonkeyPatch, made: Azure) -> Iterator[Principal]:
    """Serve the metadata service of a machine, and set the variables that the bootstrap sets."""
    who = Principal("machine", "object-1", "client-1", machine=True)
    tokens = made._app._world.tokens
    with AzureMetadata("m", dict, lambda: [("", who)], tokens.issue, lambda _id: None) as metadata:
        monkeypatch.setenv("AZURE_CLIENT_ID", who.client_id)
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{metadata.url}/metadata/identity/oauth2/token")
        yield who


@pytest.fixture(params=["aws", "gcp", "azure"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    make: Any = {"aws": on_aws, "gcp": on_gcp, "azure": on_azure}[request.param]
    made: Cloud = make(monkeypatch, tmp_path, request.getfixturevalue(f"of_{request.param}"))
    return made


def read_all(references: dict[str, str], patience: Patience = FAST) -> dict[str, str]:
    reads = Reads(references, lambda _line: None, patience)
    while (values := reads.values()) is None:
        time.sleep(0.01)
    return values


def refused(reference: str, patience: Patience = FAST) -> str:
    with pytest.raises(SecretError) as caught:
        read_secret(reference, patience)
    message = str(caught.value)
    assert message.startswith(f"{reference}: ") and message.isprintable() and CANARY not in message
    kept = None if caught.value.__suppress_context__ else caught.value.__context__
    assert caught.value.__cause__ is kept is None, "a response could be in it"
    return message


class TestEveryCloud:
    def test_a_secret_is_read(self, cloud: Cloud) -> None:
        assert read_secret(cloud.reference) == CANARY
        assert len(cloud.control.calls(cloud.action)) == 1

    def test_keys_of_json_are_selected(self, cloud: Cloud) -> None:
        document = {"user": "me", "port": 5432, "rate": 1.50, "tls": True, "none": None, "more": {}}
        reference = cloud.add("database", json.dumps(document))
        keys = {"user": "me", "port": "5432", "rate": "1.5", "tls": "true"}
        assert read_all({key: f"{reference}#{key}" for key in keys}) == keys
        assert "no key password" in refused(f"{reference}#password")
        assert "is null" in refused(f"{reference}#none") and "is an object" in refused(f"{reference}#more")
        assert "is no JSON object" in refused(f"{cloud.reference}#user")

    @pytest.mark.parametrize("fault", [HTML, LOSE, RESET, error("Internal", 500), "throttled"], ids=str)
    def test_passing_faults_are_retried(self, cloud: Cloud, fault: Any) -> None:
        cloud.control.fail(cloud.action, cloud.throttled if fault == "throttled" else fault, times=3)
        assert read_secret(cloud.reference, FAST) == CANARY
        assert len(cloud.control.calls(cloud.action)) == 4

    def test_retries_end(self, cloud: Cloud) -> None:
        cloud.control.fail(cloud.action, cloud.throttled, times=None)
        assert cloud.throttled.code in refused(cloud.reference, FAST._replace(total_s=0.3, sleep=time.sleep))

    def test_a_missing_secret_is_not_retried(self, cloud: Cloud) -> None:
        assert cloud.absent in refused(cloud.reference.replace("token", "other"))
        assert len(cloud.control.calls(cloud.action)) == 1

    def test_a_missing_permission_is_named(self, cloud: Cloud) -> None:
        named = cloud.deny().split()
        message = refused(cloud.reference)
        assert all(word in message for word in named) and "-permissions.md" in message, message
        assert len(cloud.control.calls(cloud.action)) == 1

    def test_a_permission_that_spreads_late_is_awaited(self, cloud: Cloud) -> None:
        codes = {"GetSecretValue": "AccessDeniedException", "secrets.get": "Forbidden"}
        cloud.control.fail(cloud.action, error(codes.get(cloud.action, "PERMISSION_DENIED"), 403), times=3)
        assert read_secret(cloud.reference, FAST._replace(unready_s=20.0)) == CANARY

    def test_several_are_read_at_once_and_all_failures_are_reported(self, cloud: Cloud) -> None:
        wanted = {name: cloud.add(name, f"value of {name}") for name in ("one", "two", "three")}
        assert read_all(wanted) == {name: f"value of {name}" for name in wanted}
        lost = {"A": cloud.reference.replace("token", "a"), "B": cloud.reference.replace("token", "b")}
        with pytest.raises(SecretError) as caught:
            read_all({**wanted, **lost}, FAST)
        assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["the secret A", "the secret B"]
        assert not caught.value.passes

    def test_what_no_variable_can_hold_is_refused(self, cloud: Cloud) -> None:
        assert "NUL" in refused(cloud.add("nul", "a\0b"))
        assert read_secret(cloud.add("long", "ä" * 10_000)) == "ä" * 10_000
        assert read_secret(cloud.add("lines", "one\ntwo\n")) == "one\ntwo\n"

    def test_a_redirect_is_not_followed(self, cloud: Cloud) -> None:
        cloud.control.fail(cloud.action, error("Moved", 302, Location="http://127.0.0.1:9/"))
        assert "HTTP 302" in refused(cloud.reference)


class TestAws:
    def test_arns_versions_and_binary_secrets(
        self, of_aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        on_aws(monkeypatch, tmp_path, of_aws)
        client: Any = boto3.client("secretsmanager", region_name="us-west-2")
        arn = client.create_secret(Name="far/away", SecretString="first")["ARN"]
        client.put_secret_value(SecretId=arn, SecretString="second")
        assert read_secret(f"aws-secretsmanager://{arn}") == "second"
        assert read_secret(f"aws-secretsmanager://{arn}?version-stage=AWSPREVIOUS") == "first"
        assert [call.region for call in of_aws.control.calls("GetSecretValue")] == ["us-west-2"] * 2
        client.create_secret(Name="binary", SecretBinary=b"\0\1")
        monkeypatch.setenv("AWS_REGION", "us-west-2")
        assert "is binary" in refused("aws-secretsmanager://binary")
        client.delete_secret(SecretId="binary")
        assert "marked for deletion" in refused("aws-secretsmanager://binary")

    @pytest.mark.parametrize("region", ["evil.example.com/", "eu-central-1.evil.com", "EU"])
    def test_a_region_cannot_lead_elsewhere(
        self, of_aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, region: str
    ) -> None:
        on_aws(monkeypatch, tmp_path, of_aws)
        monkeypatch.setenv("AWS_REGION", region)
        assert "the region is not known" in refused("aws-secretsmanager://token")
        arn = f"arn:aws:secretsmanager:{region}:123456789012:secret:token"
        assert "expected arn:aws" in refused(f"aws-secretsmanager://{arn}")

    def test_the_signature_is_botocores(self) -> None:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        url, body = "https://secretsmanager.eu-central-1.amazonaws.com/", b'{"SecretId": "a"}'
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue"}
        request = AWSRequest("POST", url, headers, body)
        SigV4Auth(Credentials("AK", "secret", "session"), "secretsmanager", REGION).add_auth(request)
        stamp = str(request.headers["X-Amz-Date"])
        now = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        known = aws.Credentials("AK", "secret", "session")
        signed = aws.sign(url, body, headers, region=REGION, service="secretsmanager", known=known, now=now)
        assert signed["authorization"] == request.headers["Authorization"]


class TestGcp:
    @pytest.fixture(autouse=True)
    def made(self, of_gcp: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gcp:
        on_gcp(monkeypatch, tmp_path, of_gcp)
        return of_gcp

    def test_versions_by_full_name_and_their_states(self, made: Gcp) -> None:
        made.control.do("secretmanager/put", secret="token", value="newer")
        full = f"gcp-secretmanager://projects/{PROJECT}/secrets/token"
        assert read_secret(full) == "newer" and read_secret(f"{full}/versions/1") == CANARY
        for state in ("DISABLED", "DESTROYED"):
            made.control.do("secretmanager/state", version=f"projects/{PROJECT}/secrets/token/versions/2", state=state)
            assert "disabled or destroyed" in refused(full) and state in refused(full)
        assert "expected projects/" in refused("gcp-secretmanager://projects/a/b")

    def test_a_damaged_payload_is_read_again(self, made: Gcp) -> None:
        made.control.do("secretmanager/damage", times=2)
        assert read_secret("gcp-secretmanager://token", FAST) == CANARY
        made.control.do("secretmanager/damage", times=1_000)
        assert "checksum" in refused("gcp-secretmanager://token", FAST._replace(total_s=0.3, sleep=time.sleep))

    def test_the_checksum_is_googles(self) -> None:
        for data in (b"", b"123456789", bytes(range(256)) * 9):
            assert gcp.crc32c(data) == google_crc32c.value(data)

    def test_binary_secrets_are_refused(self, made: Gcp) -> None:
        value = base64.b64encode(b"\xff\xfe\0").decode()
        made.control.do("secretmanager/put", secret="binary", value=value, encoding="base64")
        assert "is binary" in refused("gcp-secretmanager://binary")

    def test_a_machines_account_and_scopes(self, made: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
        described = {"instance": {}, "project": {"project-id": PROJECT}}
        tokens = made._app._project.tokens

        def token() -> tuple[str, float]:
            return tokens.issue(MACHINE, frozenset(scopes)), 3_600.0

        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
            monkeypatch.delenv(name)
        with GcpMetadata(lambda: described, token, (MACHINE, tuple(scopes))) as metadata:
            monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
            assert "scope cloud-platform" in refused("gcp-secretmanager://token")
            scopes[:] = ["https://www.googleapis.com/auth/cloud-platform"]
            assert read_secret("gcp-secretmanager://token") == CANARY
            made.control.enforce({})
            assert MACHINE in refused("gcp-secretmanager://token")
            metadata.fault = 503
            brief = FAST._replace(credentials_s=0.2, sleep=time.sleep)
            assert "HTTP 503" in refused("gcp-secretmanager://token", brief)


class TestAzure:
    @pytest.fixture(autouse=True)
    def made(self, of_azure: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Azure:
        on_azure(monkeypatch, tmp_path, of_azure)
        return of_azure

    def test_versions_and_what_cannot_be_used(self, made: Azure) -> None:
        first = made.control.add_secret("team-vault", "rotated", "first")
        made.control.add_secret("team-vault", "rotated", "second")
        reference = "azure-keyvault://Team-Vault/rotated"
        assert read_secret(reference) == "second" and read_secret(f"{reference}/{first}") == "first"
        made.control.disable_secret("team-vault", "rotated")
        assert "is disabled" in refused(reference)
        made.control.add_secret("team-vault", "certificate", "MII=", content_type="application/x-pkcs12")
        assert "is binary" in refused("azure-keyvault://team-vault/certificate")

    @pytest.mark.parametrize("path", ["a.evil.com/token", "evil.com#x/token", "v/token", "team-vault", "t@evil/token"])
    def test_a_vault_cannot_lead_elsewhere(self, path: str) -> None:
        assert "expected VAULT/SECRET" in refused(f"azure-keyvault://{path}")

    def test_the_vault_is_the_host_that_is_asked(self, made: Azure) -> None:
        read_secret("azure-keyvault://team-vault/token")
        (call,) = made.control.calls("secrets.get")
        assert call.params == {"vault": "team-vault", "secret": "token"}


class TestReferences:
    @pytest.mark.parametrize(
        ("reference", "why"),
        [
            ("vault://a", "cannot read the scheme vault://"),
            ("aws-parameterstore://a", "cannot read the scheme"),
            ("aws-secretsmanager://", "no reference to a secret"),
            ("aws-secretsmanager://a#", "no reference to a secret"),
            ("aws-secretsmanager:a", "no reference to a secret"),
        ],
    )
    def test_others_are_refused(self, reference: str, why: str) -> None:
        assert why in refused(reference)

    def test_long_and_unprintable_ones_are_not_repeated(self) -> None:
        for reference in ("aws-secretsmanager://" + "a" * 5_000, "aws-secretsmanager://a\x1b[2J"):
            with pytest.raises(SecretError, match="too long, or has unprintable") as caught:
                read_secret(reference)
            assert len(str(caught.value)) < 100 and str(caught.value).isprintable()

    def test_values_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloudgpu.runtime.secrets.aws.read", lambda *_: "a" * (MOST_BYTES + 1))
        assert "the most is 65,536" in refused("aws-secretsmanager://a")

    @pytest.mark.parametrize("endpoint", ["http://example.com", "ftp://127.0.0.1", "nonsense", "http://["])
    def test_plain_http_to_other_machines_is_refused(self, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
        use(monkeypatch, {})
        monkeypatch.setenv("AWS_REGION", REGION)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert "expected https://HOST" in refused("aws-secretsmanager://a")


class TestJobs:
    """Jobs on this machine, which read with the submitter's own credentials."""

    @pytest.fixture(autouse=True)
    def made(self, of_aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> Cloud:
        return on_aws(monkeypatch, tmp_path, of_aws)

    def submit(self, folder: Path, source: str) -> Job:
        (folder / "code").mkdir(exist_ok=True)
        text = f"name: quiet\nsecrets: {{TOKEN: '{source}'}}\nrun: test $TOKEN = {CANARY}\n"
        return submit_text(text, folder / "code")

    def test_it_is_read_with_the_submitters_credentials(self, made: Cloud, tmp_path: Path) -> None:
        made.control.fail(made.action, made.throttled, times=2)
        job = self.submit(tmp_path, made.reference)
        assert job.wait(timeout_s=180) and job.state == "succeeded", job.reason
        (line,) = [one.text for one in job.logs().read()[0] if "it is read again" in one.text]
        assert line.startswith(f"the secret TOKEN: {made.reference}: HTTP 400 ThrottlingException")

    def test_one_that_cannot_be_read_ends_the_job_at_once(self, made: Cloud, tmp_path: Path) -> None:
        job = self.submit(tmp_path, "aws-secretsmanager://elsewhere#key")
        assert job.wait(timeout_s=180) and job.state == "failed"
        assert "the secret TOKEN: aws-secretsmanager://elsewhere#key: there is no such secret" in job.reason
        assert len(job.attempts()) == 1

    def test_a_cancel_does_not_wait_for_a_service_that_is_down(self, made: Cloud, tmp_path: Path) -> None:
        made.control.fail(made.action, HTML, times=None)
        job = self.submit(tmp_path, made.reference)
        end = time.monotonic() + 180
        while not made.control.calls(made.action) and time.monotonic() < end:
            time.sleep(0.05)
        begun = time.monotonic()
        job.cancel()
        assert job.wait(timeout_s=180) and job.state == "cancelled", job.reason
        assert time.monotonic() - begun < 100, "the service is asked for two minutes"
