"""Tests of the policies
in docs/reference/aws-permissions.md: they are sufficient, and each action in them is necessary.

The policies are read from the page and enforced by the stand-in. Every action belongs to the step that needs it:
without the action, that step's error names the action and the page, and the step leaves nothing behind.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import boto3
import pytest

import cloudgpu
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.protocol.jobdir import JobDir, JobDirError
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.catalog import quotas
from cloudgpu.provisioners.aws.catalog import refresh as catalog
from cloudgpu.provisioners.aws.clients import Clients
from cloudgpu.provisioners.aws.lifecycle import gc
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.aws.resources.identity import machine_policy
from cloudgpu.provisioners.shared import infra_outputs, tags
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.runtime.secrets.api import Patience
from cloudgpu.runtime.secrets.references import SecretError, read_secret
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.sessions import session
from cloudgpu.tests.standins.aws.stacks import create_stack
from cloudgpu.tests.standins.clocks import FastClock

PAGE = Path(cloudgpu.__file__).parent / "docs" / "reference" / "aws-permissions.md"
ALL = "docs/reference/aws-permissions.md"
BUCKET = "my-bucket"
TOKEN = "0123456789abcdef" * 2
REGION = "us-east-1"
Policy = dict[str, Any]


def policies() -> dict[str, Policy]:
    """Return the page's policies by the heading above them."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        blocks = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        assert len(blocks) <= 1
        if blocks:
            found[section.partition("\n")[0]] = json.loads(blocks[0])
    return found


LAUNCH, GROUPS, S3, MORE, MACHINES, SECRETS, _STACKS = policies().values()


def actions(policy: Policy) -> set[str]:
    listed = [statement["Action"] for statement in policy["Statement"]]
    return {action for one in listed for action in (one if isinstance(one, list) else [one])}


def without(policy: Policy, action: str) -> Policy:
    """Return a copy of the policy without one of its actions, adapted to what moto can evaluate.

    moto does not know s3:prefix, and evaluates S3's DeleteObjects (many keys in a call) for the bucket, not the keys.
    """
    changed = copy.deepcopy(policy)
    for statement in list(changed["Statement"]):
        listed = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        statement["Action"] = [one for one in listed if one != action] or ["none:Nothing"]
        if "s3:ListBucket" in listed:
            statement.pop("Condition", None)
        if "s3:DeleteObject" in statement["Action"]:
            changed["Statement"].append(
                {"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{BUCKET}"}
            )
    return changed


class Account:
    """An account of the stand-in with an IAM user that has only the page's policies."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        aws.control.reset()
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        self.iam: Any = boto3.client("iam")
        self.ec2: Any = boto3.client("ec2")
        self.iam.create_user(UserName="submitter")
        self.key = self.iam.create_access_key(UserName="submitter")["AccessKey"]
        self.clock = FastClock()

    def permit(self, monkeypatch: pytest.MonkeyPatch, action: str = "") -> None:
        """Make all further calls as that user, with the page's policies without this action."""
        for name, policy in {"launch": LAUNCH, "groups": GROUPS, "bucket": S3, "more": MORE}.items():
            document = json.dumps(without(policy, action))
            self.iam.put_user_policy(UserName="submitter", PolicyName=name, PolicyDocument=document)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", self.key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.key["SecretAccessKey"])
        self.aws.control.enforce()

    def relax(self) -> None:
        self.aws.control.enforce(False)

    def provisioner(self) -> AwsProvisioner:
        return AwsProvisioner(session(), self.clock)

    def clients(self) -> Clients:
        return Clients(session(), self.clock)

    def left(self) -> list[str]:
        """Return all resources tagged by cloudgpu."""
        self.relax()
        found = gc.find([REGION], self.clients()).leftovers
        return [f"{thing.kind} {thing.id}" for left in found for thing in left.things]


def request(**changes: Any) -> LaunchRequest:
    """Return a request for two Spot machines with EFA, so that the launch creates resources of every kind."""
    nodes = tuple(
        NodeRequest(f"worker-{index}.1", "worker", index, index, "p4d.24xlarge", "A100-40GB", Fraction(8))
        for index in range(2)
    )
    base = LaunchRequest(
        job_id="digits-k3v9x2ma",
        attempt=1,
        token=TOKEN,
        owner=Owner("cloudgpu-tester"),
        job_dir=f"s3://{BUCKET}/jobs/digits-k3v9x2ma",
        job_sha256="0" * 64,
        region=REGION,
        zone="use1-az2",
        market="spot",
        disk_gb=100.0,
        nodes=nodes,
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def labels() -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.launch_tags(request()).items()]


# --- the steps: each returns its error messages -----------------------------------------------------------------------


def launch(account: Account) -> list[str]:
    try:
        account.provisioner().launch(request())
    except ProvisionError as error:
        assert error.error_class == "auth"
        return [str(error)]
    return []


def launch_reserved(account: Account) -> list[str]:
    try:
        account.provisioner().launch(request(market="reservation"))
    except ProvisionError as error:
        return [str(error)] if error.error_class == "auth" else []
    return []


def launched() -> Allocation:
    return Allocation("aws", "digits-k3v9x2ma", 1, TOKEN, {"worker-0.1": "i-0"}, region=REGION, owner="cloudgpu-tester")


def observe(account: Account) -> list[str]:
    try:
        account.provisioner().observe(launched())
    except ProvisionError as error:
        return [str(error)]
    return []


def explain(account: Account) -> list[str]:
    """Launch a machine and call explain() for it."""
    provisioner = account.provisioner()
    try:
        provisioner.explain(provisioner.launch(request()), "worker-0.1")
    except ProvisionError as error:
        return [str(error)]
    return []


def terminate(account: Account) -> list[str]:
    try:
        account.provisioner().terminate(dataclasses.replace(launched(), machines={}))
    except ProvisionError as error:
        return [str(error)]
    return []


def of_a_group() -> LaunchRequest:
    return request(grouped=True)


def launch_group(account: Account) -> list[str]:
    """Launch and observe a group that gets no capacity, so that its scaling activities are read as well."""
    for zone in ("us-east-1b", "us-east-1c"):
        account.aws.control.set_capacity("p4d.24xlarge", zone, "spot", 0)
    try:
        allocation = account.provisioner().launch(of_a_group())
        account.provisioner().observe(allocation)
    except ProvisionError as error:
        assert error.error_class == "auth"
        return [str(error)]
    return []


def check_quota(account: Account) -> list[str]:
    clients = account.clients()
    quotas._say_once.cache_clear()
    quotas.check(
        clients.ec2(REGION),
        clients.service_quotas(REGION),
        region=REGION,
        market="spot",
        machine_types=["g4dn.xlarge"],
    )
    return []


def ask_price(account: Account) -> list[str]:
    role = RoleOffer("worker", 1, "g4dn.xlarge", "T4", Fraction(1), 4, 16.0, None)
    offer = Offer("aws", REGION, None, "spot", (role,), 100.0, Decimal("0.01"), None, None)
    account.provisioner().price(offer)
    return []


def collect_all(account: Account) -> list[str]:
    clients = account.clients()
    found = gc.find([REGION], clients)
    complaints = list(found.failed.values())
    for left in found.leftovers:
        try:
            gc.remove(left, clients)
        except ProvisionError as error:
            complaints.append(str(error))
    return complaints


def refresh(account: Account) -> list[str]:
    outcomes = catalog.refresh([REGION], lambda _done, _of: None, account.clients())
    with_lock = list(outcomes)
    return [outcome.reason for outcome in with_lock if outcome.state == "kept"]


def use_job_dir(account: Account) -> list[str]:
    try:
        job_dir = JobDir(f"s3://{BUCKET}/jobs/digits-k3v9x2ma")
        job_dir.put("job.json", b"{}")
        assert job_dir.find("job.json") == b"{}"
        assert job_dir.list("") == ["job.json"]
        job_dir.delete("job.json")
    except JobDirError as error:
        return [str(error)]
    return []


STEPS: dict[str, tuple[Callable[[Account], list[str]], str]] = {
    "launch": (
        launch,
        """ec2:AuthorizeSecurityGroupEgress ec2:AuthorizeSecurityGroupIngress ec2:CreatePlacementGroup
        ec2:CreateSecurityGroup ec2:CreateTags ec2:DescribeImages ec2:DescribeRegions
        ec2:DescribeSecurityGroups ec2:DescribeSubnets ec2:RunInstances iam:AddRoleToInstanceProfile
        iam:CreateInstanceProfile iam:CreateRole iam:GetInstanceProfile iam:PassRole iam:PutRolePolicy
        iam:TagInstanceProfile iam:TagRole ssm:GetParameters""",
    ),
    "observe": (observe, "ec2:DescribeInstances"),
    "explain": (explain, "ec2:GetConsoleOutput"),
    "launch into a reservation": (launch_reserved, "ec2:DescribeCapacityReservations"),
    "terminate": (
        terminate,
        """ec2:DeleteNetworkInterface ec2:DeletePlacementGroup ec2:DeleteSecurityGroup ec2:DeleteVolume
        ec2:DescribeNetworkInterfaces ec2:DescribeVolumes ec2:TerminateInstances iam:DeleteInstanceProfile
        iam:DeleteRole iam:DeleteRolePolicy iam:RemoveRoleFromInstanceProfile""",
    ),
    "launch a group": (
        launch_group,
        """autoscaling:CreateAutoScalingGroup autoscaling:DescribeAutoScalingGroups
        autoscaling:DescribeScalingActivities autoscaling:SuspendProcesses ec2:CreateLaunchTemplate""",
    ),
    "terminate a group": (
        terminate,
        "autoscaling:DeleteAutoScalingGroup ec2:DeleteLaunchTemplate ec2:DescribeLaunchTemplates",
    ),
    "quota": (check_quota, "servicequotas:GetServiceQuota"),
    "price": (ask_price, "ec2:DescribeAvailabilityZones ec2:DescribeSpotPriceHistory"),
    "gc": (
        collect_all,
        """ec2:CancelSpotInstanceRequests ec2:DescribePlacementGroups ec2:DescribeSpotInstanceRequests iam:GetRole
        iam:ListInstanceProfiles iam:ListRolePolicies iam:ListRoles""",
    ),
    "catalog": (refresh, "ec2:DescribeInstanceTypeOfferings ec2:DescribeInstanceTypes pricing:GetProducts"),
    "job dir": (use_job_dir, "s3:DeleteObject s3:GetObject s3:ListBucket s3:PutObject"),
}
UNTESTED = {"s3:AbortMultipartUpload"}
"""Actions that moto does not enforce, as the page says."""
TOLD_IN_LOG = {"quota", "price"}
"""Steps that only log a warning if an action is denied."""
OF_A_GROUP = {"launch a group", "terminate a group"}
"""Steps that need an infra stack."""
AFTERWARDS = {"autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities"}
"""Actions that are needed only after the group was created."""
PREPARED = {"terminate", "terminate a group", "gc"}
"""Steps that need running machines at their start."""


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def account(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Account]:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home" / "catalog").mkdir(parents=True)
    yield Account(server)
    server.control.enforce(False)


def prepare(account: Account, *, grouped: bool) -> None:
    """Launch machines, and create a leaked volume and a leaked network interface."""
    account.provisioner().launch(of_a_group() if grouped else request())

    def tagged(kind: str) -> list[Any]:
        return [{"ResourceType": kind, "Tags": labels()}]

    account.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tagged("volume"))
    [group] = [
        one["GroupId"]
        for one in account.ec2.describe_security_groups()["SecurityGroups"]
        if one["GroupName"].endswith(TOKEN)
    ]
    subnet = account.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    account.ec2.create_network_interface(SubnetId=subnet, Groups=[group], TagSpecifications=tagged("network-interface"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def run(account: Account, step: str, monkeypatch: pytest.MonkeyPatch, without_action: str = "") -> list[str]:
    if step in OF_A_GROUP:
        create_stack(session(), REGION, f"s3://{BUCKET}/jobs")
        JobDir(request().job_dir).put("agent/abc.pyz", b"an agent")
    if step in PREPARED:
        prepare(account, grouped=step in OF_A_GROUP)
    account.permit(monkeypatch, without_action)
    return STEPS[step][0](account)


def test_every_action_of_the_page_belongs_to_a_step() -> None:
    covered = {action for _, listed in STEPS.values() for action in listed.split()}
    assert covered | UNTESTED == actions(LAUNCH) | actions(GROUPS) | actions(S3) | actions(MORE)
    everything = [action for _, listed in STEPS.values() for action in listed.split()]
    assert len(everything) == len(covered)


@pytest.mark.parametrize("step", STEPS)
def test_with_the_policies_everything_works(
    account: Account, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(account, step, monkeypatch) == []
    assert step not in TOLD_IN_LOG or warnings(caplog) == []
    if step in PREPARED:
        assert account.left() == []


@pytest.mark.parametrize(
    ("step", "action"), [(step, action) for step, (_, listed) in STEPS.items() for action in listed.split()]
)
def test_without_an_action_its_step_names_it(
    account: Account, step: str, action: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = run(account, step, monkeypatch, action)
    complaints += warnings(caplog) if step in TOLD_IN_LOG else []
    assert complaints, f"{step} works without {action}: it is too much"
    matching = [one for one in complaints if action.partition(":")[2] in one]
    assert matching, complaints
    assert ALL in matching[0]
    if step == "launch":
        assert account.left() == []
    if step == "launch a group" and action not in AFTERWARDS:
        assert account.left() == []


def test_a_submitter_can_neither_touch_other_machines_nor_launch_untagged_ones(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = account.ec2.describe_images()["Images"][0]["ImageId"]
    one = {"ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    [foreign] = account.ec2.run_instances(**one)["Instances"]
    account.iam.create_role(RoleName="admin", AssumeRolePolicyDocument="{}")
    account.permit(monkeypatch)
    user = boto3.session.Session()
    ec2: Any = user.client("ec2")
    iam: Any = user.client("iam")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: ec2.terminate_instances(InstanceIds=[foreign["InstanceId"]]),
        lambda: ec2.run_instances(**one),
        lambda: ec2.create_tags(Resources=[foreign["InstanceId"]], Tags=labels()),
        lambda: iam.put_role_policy(RoleName="admin", PolicyName="more", PolicyDocument="{}"),
        lambda: iam.delete_role(RoleName="admin"),
    )
    for call in calls:
        with pytest.raises(ec2.exceptions.ClientError, match=r"UnauthorizedOperation|AccessDenied"):
            call()


PAIR = tuple(NodeRequest(f"worker-{rank}.1", "worker", rank, rank, "g4dn.xlarge", "T4", Fraction(1)) for rank in (0, 1))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("end", ["itself", "spot", "cancelled"])
def test_machines_that_ec2_has_forgotten_are_gone(
    account: Account, monkeypatch: pytest.MonkeyPatch, end: str, nodes: int
) -> None:
    """EC2 denies a call for an unknown instance, because the policy allows it only by the instance's tags."""
    account.permit(monkeypatch)
    control, provisioner = account.aws.control, account.provisioner()
    allocation = provisioner.launch(request(nodes=PAIR[:nodes], market="spot" if end == "spot" else "on-demand"))
    if end == "cancelled":
        account.relax()
        account.ec2.terminate_instances(InstanceIds=list(allocation.machines.values()))
        account.aws.control.enforce()
    for machine in allocation.machines.values() if end != "cancelled" else ():
        if end == "spot":
            control.interrupt(machine, 0.0)
        else:
            control.crash(machine)
    control.run_delayed()
    control.forget_ended()
    late = dataclasses.replace(allocation, launched_at={})
    account.provisioner().remove(late, [PAIR[0].node])
    account.provisioner().terminate(late)
    assert {state.phase for state in account.provisioner().observe(late)} == {"gone"}
    account.relax()
    assert account.left() == []


def test_a_machine_that_ec2_does_not_know_yet_does_not_replace_the_refusal(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = "us-east-1a"
    account.aws.control.set_capacity("g4dn.xlarge", zone, "spot", 1)
    account.permit(monkeypatch)
    account.aws.control.set_lag(1.0)
    with pytest.raises(ProvisionError) as caught:
        account.provisioner().launch(request(nodes=PAIR, zone=zone))
    assert (caught.value.error_class, caught.value.code) == ("capacity", "InsufficientInstanceCapacity")
    account.relax()
    assert account.left() == []


def test_a_machine_that_may_not_be_terminated_is_reported(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    allocation = account.provisioner().launch(request())
    account.permit(monkeypatch, "ec2:TerminateInstances")
    with pytest.raises(ProvisionError, match="ec2:TerminateInstances") as caught:
        account.provisioner().terminate(allocation)
    assert caught.value.error_class == "auth"


def test_a_submitter_may_be_kept_to_roles_within_a_boundary(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's policy allows CreateRole and PutRolePolicy only with the permissions boundary."""
    boundary = "arn:aws:iam::123456789012:policy/cloudgpu-machines"
    [roles] = [one for one in LAUNCH["Statement"] if one["Sid"] == "RolesOfMachines"]
    bound = ["iam:CreateRole", "iam:PutRolePolicy"]
    others = {**roles, "Action": [action for action in roles["Action"] if action not in bound]}
    within = {
        **roles,
        "Sid": "WithinBounds",
        "Action": bound,
        "Condition": {"StringEquals": {"iam:PermissionsBoundary": boundary}},
    }
    policy = {**LAUNCH, "Statement": [*(one for one in LAUNCH["Statement"] if one != roles), others, within]}
    account.permit(monkeypatch)
    account.relax()
    document = json.dumps(policy)
    account.iam.put_user_policy(UserName="submitter", PolicyName="launch", PolicyDocument=document)
    account.aws.control.enforce()
    [complaint] = launch(account)
    assert "iam:CreateRole" in complaint
    monkeypatch.setenv("CLOUDGPU_AWS_BOUNDARY", boundary)
    assert launch(account) == []
    assert terminate(account) == []
    assert account.left() == []


def test_with_a_stack_no_right_on_roles_is_needed(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's shorter policy leaves out the statement RolesOfMachines."""
    ids = {one["AvailabilityZoneId"]: one["SubnetId"] for one in account.ec2.describe_subnets()["Subnets"]}
    path = "/cloudgpu/cloudgpu-tester/"
    account.iam.create_role(RoleName="machines", Path=path, AssumeRolePolicyDocument="{}")
    profile = account.iam.create_instance_profile(InstanceProfileName="machines", Path=path)["InstanceProfile"]
    account.iam.add_role_to_instance_profile(InstanceProfileName="machines", RoleName="machines")
    account.permit(monkeypatch)
    account.relax()
    fewer = [one for one in LAUNCH["Statement"] if one["Sid"] != "RolesOfMachines"]
    document = json.dumps({**LAUNCH, "Statement": fewer})
    account.iam.put_user_policy(UserName="submitter", PolicyName="launch", PolicyDocument=document)
    account.aws.control.enforce()
    stack = Infrastructure("aws", REGION, "infra", "tester", "vpc", ids, profile["Arn"], job_dir=f"s3://{BUCKET}/jobs")
    infra_outputs.save(stack)
    assert launch(account) == []
    assert terminate(account) == []
    infra_outputs.forget("aws", REGION)
    [complaint] = launch(account)
    assert "iam:CreateRole" in complaint


# --- the machines -----------------------------------------------------------------------------------------------------


def test_the_page_shows_the_machines_policy_as_it_is_made() -> None:
    assert machine_policy(request(), "aws") == MACHINES
    key = SECRETS["Statement"][1]["Resource"][0]
    found = machine_policy(request(secrets=(f"aws-secretsmanager://team/wandb?kms-key={key}",)), "aws")
    assert found["Statement"] == [*MACHINES["Statement"], *SECRETS["Statement"]]


@pytest.mark.parametrize("action", ["", "secretsmanager:GetSecretValue"])
def test_a_machine_reads_the_secrets_of_its_job_and_no_others(
    account: Account, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager: Any = boto3.client("secretsmanager")
    for name in ("team/wandb", "team/wandb2", "other"):
        manager.create_secret(Name=name, SecretString=f"value of {name}")
    policy = {"Version": "2012-10-17", "Statement": [*MACHINES["Statement"], *SECRETS["Statement"]]}
    document = json.dumps(without(policy, action))
    account.iam.put_user_policy(UserName="submitter", PolicyName="machine", PolicyDocument=document)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account.key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", account.key["SecretAccessKey"])
    monkeypatch.setenv("AWS_REGION", REGION)
    account.aws.control.enforce()
    at_once = Patience(unready_s=0.0)
    if not action:
        assert read_secret("aws-secretsmanager://team/wandb", at_once) == "value of team/wandb"
    for name in ("team/wandb2", "other", *(["team/wandb"] if action else [])):
        with pytest.raises(SecretError, match="may not read it: it needs secretsmanager:GetSecretValue") as caught:
            read_secret(f"aws-secretsmanager://{name}", at_once)
        assert ALL in str(caught.value)


@pytest.mark.parametrize("action", ["", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"])
def test_a_machine_reaches_its_job_s_folder_and_nothing_else(
    account: Account, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3: Any = boto3.client("s3")
    s3.put_object(Bucket=BUCKET, Key="jobs/other-job/job.json", Body=b"secret")
    document = json.dumps(without(MACHINES, action))
    account.iam.put_user_policy(UserName="submitter", PolicyName="machine", PolicyDocument=document)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account.key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", account.key["SecretAccessKey"])
    account.aws.control.enforce()
    complaints = use_job_dir(account)
    assert bool(complaints) == bool(action), complaints
    if not action:
        other = JobDir(f"s3://{BUCKET}/jobs/other-job")
        with pytest.raises(JobDirError):
            other.put("job.json", b"changed")
        clients = account.clients()
        with pytest.raises(clients.ec2(REGION).exceptions.ClientError, match="not authorized"):
            clients.ec2(REGION).describe_instances()
