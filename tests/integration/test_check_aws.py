"""Tests of `cloudgpu check aws` over the wire, with faults of AWS and of the user's settings."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cloudgpu.cli import main
from cloudgpu.provisioners.aws.rights import PERMISSIONS, check_job_dir_rights, check_rights
from cloudgpu.provisioners.checks.rights import needs
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.check_command import CheckCommand, statuses
from cloudgpu.tests.standins.faults import HANG, error

from .test_aws_permissions import BUCKET, GROUPS, LAUNCH, MORE, REGION, S3, Account, actions

JOBS = f"s3://{BUCKET}/jobs"
SIMULATE = {"Effect": "Allow", "Action": "iam:SimulatePrincipalPolicy", "Resource": "*"}
READS = "Get*|List*|Describe*|Head*|Simulate*"


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def account(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    server.control.enforce(False)
    return Account(server)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> CheckCommand:
    return CheckCommand(capsys)


def permit(account: Account, monkeypatch: pytest.MonkeyPatch, action: str = "", *, simulates: bool = True) -> None:
    """Make all calls as a user with the page's policies without this action."""
    account.relax()
    account.permit(monkeypatch, action)
    account.relax()
    if simulates:
        document = json.dumps({"Version": "2012-10-17", "Statement": [SIMULATE]})
        account.iam.put_user_policy(UserName="submitter", PolicyName="simulate", PolicyDocument=document)
    account.aws.control.enforce()


def test_with_the_page_s_policies_all_is_well(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit(account, monkeypatch)
    account.aws.control.forget()
    found = check("aws", "--job-dir", JOBS)
    assert set().union(*statuses(found).values()) == {"ok"}, found
    assert check.code == 0 and check.report["state"] == "ok" and check.report["works"]
    assert found["account"][0]["values"]["account"] == "123456789012"
    assert found["credentials"][0]["values"] == {"source": "env", "profile": None, "expires": None}
    assert found["job_dir"][0]["values"]["url"] == JOBS
    assert not account.aws.control.calls(f"!{READS}"), "it only reads"
    shown = check.text("aws", "--job-dir", JOBS)
    assert account.key["SecretAccessKey"] not in shown and "aws works" in shown


def test_each_missing_permission_is_named(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of some alone, and all of them together."""
    permit(account, monkeypatch)
    clients = account.clients()

    def missing() -> tuple[set[str], set[str]]:
        found = [*check_rights(clients, REGION), *check_job_dir_rights(clients, REGION, BUCKET, "jobs")]
        return {name for one in found for name in one.values["missing"]}, {one.status for one in found}

    for need in [*needs(PERMISSIONS)[::8], *(one for one in needs(PERMISSIONS) if len(one.resources) > 1)]:
        permit(account, monkeypatch, need.permission)
        names, result = missing()
        assert names == {need.permission}
        fatal = any(one.permission == need.permission and not one.without for one in needs(PERMISSIONS))
        assert ("error" in result) is fatal, need
    account.relax()
    for name in ("launch", "groups", "bucket", "more"):
        account.iam.delete_user_policy(UserName="submitter", PolicyName=name)
    account.aws.control.enforce()
    assert missing()[0] == {one.permission for one in needs(PERMISSIONS)}


def test_the_table_has_the_permissions_of_the_page() -> None:
    for sets, policy in ((("launch",), LAUNCH), (("groups",), GROUPS), (("job_dir",), S3), (("gc", "catalog"), MORE)):
        assert {one.permission for one in needs(PERMISSIONS) if one.set in sets} == actions(policy)


def test_where_nothing_may_be_simulated_dry_runs_tell_a_part(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit(account, monkeypatch, simulates=False)
    account.aws.control.forget()
    found = check("aws", "--job-dir", JOBS)
    assert check.code == 0
    [result] = found["rights"]
    assert result["status"] == "warning" and "iam:SimulatePrincipalPolicy" in result["fix"]
    assert result["values"]["checked"] >= 11 and "by dry runs" in result["message"]
    assert "whether it can be written was not checked" in found["job_dir"][0]["message"]
    mutating = account.aws.control.calls(f"!{READS}")
    assert {(one.action, one.params.get("DryRun")) for one in mutating} == {("RunInstances", "true")}
    assert not account.aws.control.instances()

    permit(account, monkeypatch, "ec2:RunInstances", simulates=False)
    found = check("aws")
    assert check.code == 6 and found["rights"][0]["values"]["missing"] == ["ec2:RunInstances"]


def test_a_role_s_policies_are_found_by_its_path(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ARN of a role's session lacks the path, without which IAM does not know the role."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = account.iam.create_role(RoleName="dev", Path="/team/", AssumeRolePolicyDocument=trust)["Role"]
    session = boto3.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="me")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", session["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", session["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", session["SessionToken"])
    found = check("aws")
    assert found["account"][0]["values"]["identity"].endswith(":assumed-role/dev/me")
    sources = {one.params["PolicySourceArn"] for one in account.aws.control.calls("SimulatePrincipalPolicy")}
    assert check.code == 0 and sources == {role["Arn"]} and ":role/team/dev" in role["Arn"]
    account.aws.control.fail("GetRole", error("AccessDenied", 403), times=None)
    assert "by dry runs" in check("aws")["rights"][0]["message"]
    assert session["SecretAccessKey"] not in json.dumps(check.report)


def test_with_a_stack_rights_on_roles_are_no_error(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    infra_outputs.save(
        Infrastructure("aws", "us-west-2", "infra", "cloudgpu-x", "vpc-1", machine_role="arn:role", job_dir=JOBS)
    )
    permit(account, monkeypatch, "iam:CreateRole")
    found = check("aws")
    assert check.code == 0 and "outside the stack's bucket" in found["rights"][0]["message"]
    assert found["quota"][0]["values"]["region"] == "us-west-2", "the regions of stacks are checked"
    assert found["job_dir"][0]["values"]["url"] == JOBS


def test_no_credentials(account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    account.aws.control.forget()
    found = check("aws")
    assert check.code == 6 and check.report["state"] == "not set up"
    assert found["credentials"][0]["status"] == "error" and "aws sso login" in found["credentials"][0]["fix"]
    assert statuses(found)["rights"] == ["skipped"] and not account.aws.control.calls()


def test_an_expired_token(account: Account, check: CheckCommand) -> None:
    account.aws.control.revoke(KEY)
    found = check("aws")
    assert check.code == 6 and check.report["state"] == "error"
    assert found["credentials"][-1]["status"] == "error" and "aws sso login" in found["credentials"][-1]["fix"]
    assert "expired" in found["credentials"][-1]["message"]


@pytest.mark.parametrize("case", [(-5, "error"), (30, "warning"), (600, "ok")])
def test_a_login_that_expires(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: tuple[int, str]
) -> None:
    """The token that `aws sso login` stores says when a login of IAM Identity Center expires."""
    minutes, status = case
    start = "https://example.awsapps.com/start"
    config, cache = tmp_path / "config", tmp_path / ".aws/sso/cache"
    config.write_text(
        f"[profile work]\nsso_start_url = {start}\nsso_region = us-east-1\nsso_account_id = 123456789012\n"
        "sso_role_name = dev\nregion = us-east-1\n"
    )
    cache.mkdir(parents=True)
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    token = {"accessToken": "canary", "expiresAt": expires.strftime("%Y-%m-%dT%H:%M:%SZ"), "startUrl": start}
    (cache / f"{hashlib.sha1(start.encode()).hexdigest()}.json").write_text(json.dumps(token))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "work"}.items():
        monkeypatch.setenv(name, value)
    result = check("aws")["credentials"][0]
    assert result["status"] == status and "profile work" in result["message"], result
    assert result["values"]["source"] == "sso" and abs(result["values"]["expires"] - expires.timestamp()) < 2
    if status != "ok":
        assert "`aws sso login` --profile work" in result["fix"]


def test_a_wrong_profile_and_a_broken_config(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    result = check("aws")["credentials"][0]
    assert check.code == 6 and result["status"] == "error" and "nosuch" in result["message"]
    broken = tmp_path / "broken"
    broken.write_text("[default\nregion")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(broken))
    result = check("aws")["credentials"][0]
    assert check.code == 6 and result["status"] == "error"


def test_a_throttled_call_is_retried(account: Account, check: CheckCommand) -> None:
    account.aws.control.fail("GetServiceQuota", error("ThrottlingException", 400), times=2)
    assert check("aws")["quota"][0]["status"] == "ok"
    assert len([one for one in account.aws.control.calls("GetServiceQuota") if one.fault]) == 2


def test_quotas_that_may_not_be_read(account: Account, check: CheckCommand) -> None:
    account.aws.control.fail("GetServiceQuota", error("AccessDeniedException", 400, "no \x1b[31mred"), times=None)
    found = check("aws")
    assert check.code == 0 and found["quota"][0]["status"] == "warning"
    assert "not checked" in found["quota"][0]["message"]
    assert "\x1b" not in check.text("aws")


def test_no_quota_at_all(account: Account, check: CheckCommand) -> None:
    from cloudgpu.provisioners.aws.catalog.quotas import gpu_quotas

    for quota in gpu_quotas():
        account.aws.control.set_quota("eu-west-1", quota.code, 0)
    result = check("aws", "--region", "eu-west-1")["quota"][0]
    assert check.code == 0 and result["status"] == "warning" and "no GPU machine can start" in result["message"]
    assert "eu-west-1.console.aws.amazon.com/servicequotas" in result["fix"]
    account.aws.control.set_quota("eu-west-1", "L-DB2E81BA", 8)
    result = check("aws", "--region", "eu-west-1")["quota"][0]
    assert result["status"] == "ok" and "G, GR, VT 8/0; none of P," in result["message"]


def test_a_region_that_is_not_there(account: Account, check: CheckCommand) -> None:
    result = check("aws", "--region", "us-nowhere-1")["quota"][0]
    assert check.code == 6 and result["status"] == "error" and "AWS has no region us-nowhere-1" in result["message"]


def test_a_target_that_hangs_does_not_delay_another(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    account.aws.control.fail("*", HANG, times=None)
    code = main(["check", "local", "aws", "--timeout", "4s", "--json"])
    here, there = json.loads(capsys.readouterr().out)["targets"]
    assert code == 6 and here["works"] and here["seconds"] < there["seconds"] and not there["works"]
    assert "no answer within 4 s" in [one["message"] for one in there["checks"] if one["status"] == "error"]


def test_a_bucket_that_is_missing_or_forbidden(account: Account, check: CheckCommand) -> None:
    result = check("aws", "--job-dir", "s3://no-such-bucket/jobs")["job_dir"][0]
    assert check.code == 6 and result["status"] == "error" and "no bucket of this name" in result["message"]
    account.aws.control.fail("List*|HeadBucket", error("AccessDenied", 403), where={"service": "s3"}, times=None)
    result = check("aws", "--job-dir", JOBS)["job_dir"][0]
    assert check.code == 6 and "s3:ListBucket" in result["message"]


def test_an_unreachable_endpoint_and_one_that_is_not_encrypted(
    account: Account, check: CheckCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    found = check("aws")
    assert check.code == 6 and "refused" in found["network"][0]["message"]
    assert statuses(found)["account"] == ["skipped"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://aws.example.com")
    assert "not encrypted" in check("aws")["network"][0]["message"]
