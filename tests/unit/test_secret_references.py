"""References to secrets in a job file: their grammar, which target reads which, and what a launch then grants."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.cli import main
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.rules.compatibility import target_refusals
from cloudgpu.jobspecs.secret_references import granted_by, parse, scheme_of, schemes
from cloudgpu.jobspecs.targets import built_in
from cloudgpu.provisioners.aws.resources.identity import machine_policy
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks.fleet_queries import secrets_of

from .test_aws_request import request

ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:team/token"
UUID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "path", "options", "key"),
    [
        ("aws-secretsmanager://team/token", "team/token", {}, ""),
        ("aws-secretsmanager://a=b+c.d@e_f#pass word", "a=b+c.d@e_f", {}, "pass word"),
        (f"aws-secretsmanager://{ARN}?version-stage=AWSPREVIOUS#key", ARN, {"version-stage": "AWSPREVIOUS"}, "key"),
        ("gcp-secretmanager://token", "token", {}, ""),
        ("gcp-secretmanager://projects/p-1/secrets/s_2", "projects/p-1/secrets/s_2", {}, ""),
        (
            "gcp-secretmanager://projects/example.com:p/secrets/s/versions/3#k",
            "projects/example.com:p/secrets/s/versions/3",
            {},
            "k",
        ),
        ("azure-keyvault://my-vault/my-token", "my-vault/my-token", {}, ""),
        (f"azure-keyvault://My-Vault/token/{UUID}", f"My-Vault/token/{UUID}", {}, ""),
    ],
)
def test_valid_references(text: str, path: str, options: dict[str, str], key: str) -> None:
    found = parse(text)
    assert (found.scheme, found.path, found.options, found.key) == (scheme_of(text), path, options, key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aws-secretmanager://a", "did you mean aws-secretsmanager"),
        ("postgres://me:hunter2@host/db", "expected a reference that begins with aws-secretsmanager://"),
        ("aws-secretsmanager://", "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://a b", "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://a*", "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://${NAME}", "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://" + "a" * 702, "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://arn:aws:s3:::bucket", "expected aws-secretsmanager://NAME or ARN"),
        ("aws-secretsmanager://a#", "expected a key of the secret's JSON object"),
        ("aws-secretsmanager://a#\x1b[2J", "expected a key of the secret's JSON object"),
        ("aws-secretsmanager://a?stage=b", "expected version-stage=VALUE, version-id=VALUE or kms-key=VALUE after ?"),
        ("aws-secretsmanager://a?version-stage=", "expected version-stage=VALUE"),
        ("gcp-secretmanager://a/b", "expected gcp-secretmanager://SECRET or projects/"),
        ("gcp-secretmanager://projects/p/secrets/s/versions/", "expected gcp-secretmanager://SECRET or projects/"),
        ("gcp-secretmanager://" + "a" * 256, "expected gcp-secretmanager://SECRET or projects/"),
        ("gcp-secretmanager://a?version=1", "gcp-secretmanager:// takes no options after ?"),
        ("azure-keyvault://vault", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
        ("azure-keyvault://v/secret", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
        ("azure-keyvault://a--b/secret", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
        ("azure-keyvault://vault.example.com/secret", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
        ("azure-keyvault://vault/under_score", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
        (f"azure-keyvault://{'v' * 25}/secret", "expected azure-keyvault://VAULT/SECRET[/VERSION]"),
    ],
)
def test_invalid_references_are_refused_and_never_repeated(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert expected in str(caught.value) and "hunter2" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "granted"),
    [
        ("aws-secretsmanager://a?version-stage=x#k", "aws-secretsmanager://a"),
        ("aws-secretsmanager://a?version-stage=x&kms-key=K#k", "aws-secretsmanager://a?kms-key=K"),
        ("gcp-secretmanager://projects/p/secrets/s/versions/3#k", "gcp-secretmanager://projects/p/secrets/s"),
        ("gcp-secretmanager://s", "gcp-secretmanager://s"),
        (f"azure-keyvault://vault/secret/{UUID}#k", "azure-keyvault://vault/secret"),
    ],
)
def test_access_is_granted_to_the_whole_secret(text: str, granted: str) -> None:
    assert granted_by(text) == granted


def test_every_scheme_is_read_by_some_target_and_every_targets_scheme_is_known() -> None:
    assert {one for target in built_in().values() for one in target.secret_schemes} == set(schemes())


def write(tmp_path: Path, source: str, cloud: str) -> str:
    path = tmp_path / "job.yaml"
    lines = [
        "name: tiny",
        f"resources: {{accelerator: T4, cloud: {cloud}}}",
        "secrets:",
        f"  TOKEN: {source}",
        "run: echo",
    ]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("cloud", ["aws", "gcp", "vertex", "azure"])
@pytest.mark.parametrize("scheme", schemes())
def test_a_secret_that_the_target_cannot_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cloud: str, scheme: str
) -> None:
    path = write(tmp_path, f"{scheme}://vault/secret" if "azure" in scheme else f"{scheme}://secret", cloud)
    code = main(["validate", path])
    text = capsys.readouterr().out
    if scheme in built_in()[cloud].secret_schemes:
        assert code == 0
        return
    (own,) = built_in()[cloud].secret_schemes
    assert code == 4 and f"{path}:4:3: error: " in text and f"machines of {cloud} cannot read {scheme}://" in text
    assert f"hint: {own}:// or env:TOKEN" in text and "or the target local" in text


def test_local_reads_all_of_them() -> None:
    secrets = {"A": "aws-secretsmanager://a", "G": "gcp-secretmanager://g", "Z": "azure-keyvault://vault/z"}
    spec = JobSpec.model_validate({"name": "j", "run": "true", "secrets": secrets})
    assert not list(target_refusals(spec, "local"))
    assert [one.key for one in target_refusals(spec, "aws")] == [("secrets", "G")]


def test_a_mistake_has_its_place_and_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "postgres://me:hunter2@host/db", "aws")
    assert main(["validate", path]) == 3
    text = capsys.readouterr().out
    assert f"{path}:4:10: error: expected a reference that begins with" in text and "hunter2" not in text


class TestAws:
    def granted(self, *references: str) -> list[dict[str, object]]:
        without = machine_policy(request("g4dn.xlarge"), "aws")["Statement"]
        found = machine_policy(request("g4dn.xlarge", secrets=references), "aws")["Statement"]
        assert found[: len(without)] == without, "nothing else grows"
        more: list[dict[str, object]] = found[len(without) :]
        return more

    def test_only_the_secrets_named_are_granted(self) -> None:
        assert self.granted() == []
        (one,) = self.granted(
            "aws-secretsmanager://team/a#user", "aws-secretsmanager://team/a#password", f"aws-secretsmanager://{ARN}"
        )
        assert one == {
            "Effect": "Allow",
            "Action": "secretsmanager:GetSecretValue",
            "Resource": ["arn:aws:secretsmanager:us-east-1:*:secret:team/a-??????", ARN, f"{ARN}-??????"],
        }

    def test_a_key_is_granted_if_it_is_named(self) -> None:
        key = "arn:aws:kms:us-east-1:123456789012:key/1"
        more = self.granted(f"aws-secretsmanager://a?kms-key={key}", "aws-secretsmanager://b?kms-key=2")
        assert more[1]["Action"] == "kms:Decrypt"
        assert more[1]["Resource"] == [key, "arn:aws:kms:us-east-1:*:key/2"]


class TestStacks:
    STACK = Infrastructure(
        "aws",
        "us-east-1",
        "s",
        "me",
        "vpc",
        machine_role="role",
        job_dir="s3://b/jobs",
        secrets=["aws-secretsmanager://a"],
    )

    def test_its_role_is_used_if_it_may_read_the_secrets(self) -> None:
        assert self.STACK.role_for(["s3://b/jobs/1"], ["aws-secretsmanager://a#key"]) == "role"
        assert self.STACK.role_for(["s3://b/jobs/1"], ["aws-secretsmanager://a", "aws-secretsmanager://b"]) == ""

    def test_a_group_of_a_jobs_own_needs_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
        infra_outputs.save(self.STACK)
        assert infra_outputs.group_obstacle("aws", "us-east-1", ["s3://b/jobs/1"], ["aws-secretsmanager://a"]) is None
        why = infra_outputs.group_obstacle("aws", "us-east-1", ["s3://b/jobs/1"], ["aws-secretsmanager://b#key"])
        assert why is not None and "--secret aws-secretsmanager://a --secret aws-secretsmanager://b`" in why.allowed

    def test_a_key_must_be_granted_as_well(self) -> None:
        with_key = replace(self.STACK, secrets=["aws-secretsmanager://a?kms-key=K"])
        for one in ("aws-secretsmanager://a", "aws-secretsmanager://a?kms-key=K#key"):
            assert with_key.role_for(["s3://b/jobs/1"], [one]) == "role"
        assert with_key.role_for(["s3://b/jobs/1"], ["aws-secretsmanager://a?kms-key=L"]) == ""
        assert self.STACK.role_for(["s3://b/jobs/1"], ["aws-secretsmanager://a?kms-key=K"]) == ""

    def test_the_command_advised_keeps_what_others_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
        infra_outputs.save(replace(self.STACK, secrets=["aws-secretsmanager://a", "aws-secretsmanager://c"]))
        wanted = ["aws-secretsmanager://b#key", "aws-secretsmanager://a?kms-key=K"]
        why = infra_outputs.group_obstacle("aws", "us-east-1", ["s3://b/jobs/1"], wanted)
        assert why is not None
        command = shlex.split(why.allowed.split("`")[1])
        given = command[command.index("--secret") :]
        assert given[::2] == ["--secret"] * 3
        assert sorted(given[1::2]) == [
            *("aws-secretsmanager://a?kms-key=K", "aws-secretsmanager://b", "aws-secretsmanager://c")
        ]

    def test_up_grants_whole_secrets_and_keeps_keys(self) -> None:
        references = [
            "aws-secretsmanager://a?kms-key=K",
            "aws-secretsmanager://a",
            "aws-secretsmanager://team/database?version-stage=AWSPREVIOUS#password",
        ]
        kept = ["aws-secretsmanager://a?kms-key=K", "aws-secretsmanager://team/database"]
        assert secrets_of("aws", "us-east-1", references) == {one: one for one in kept}

    def test_outputs_of_an_older_version_grant_none(self) -> None:
        stored = {key: value for key, value in self.STACK.to_json().items() if key != "secrets"}
        assert Infrastructure.from_json(stored).secrets == []
        assert Infrastructure.from_json(self.STACK.to_json()) == self.STACK

    @pytest.mark.parametrize(
        ("options", "code", "why"),
        [
            (["--secret", "aws-secretmanager://x"], 2, "did you mean aws-secretsmanager?"),
            (["--secret", "hunter2"], 2, "expected a reference that begins with"),
            (["--secret", "gcp-secretmanager://x"], 4, "machines of aws cannot read gcp-secretmanager://x"),
            (["--secret", "aws-secretsmanager://x", "--no-secrets"], 2, "exclude each other"),
        ],
    )
    def test_infra_refuses_what_it_cannot_grant(
        self, options: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["infra", "up", "--cloud", "aws", "--region", "us-east-1", *options]) == code
        text = capsys.readouterr().err
        assert why in text and "hunter2" not in text
