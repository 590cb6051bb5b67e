"""Pulumi's stand-ins, tested by programs under the unmodified Automation API; the AWS provider calls AWS's stand-in.

The tests run on the double of Pulumi's engine, and also on the real one where it is on PATH
(tests/standins/pulumi/engines.py).
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pulumi
import pulumi_aws
import pytest
from pulumi import automation
from pulumi.automation.errors import CommandError, ConcurrentUpdateError, StackNotFoundError

from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.faults import HANG, KILL_AFTER, LOSE, error
from cloudgpu.tests.standins.pulumi import aws as aws_provider
from cloudgpu.tests.standins.pulumi.double.goals import ignoring
from cloudgpu.tests.standins.pulumi.engines import Engine, engine
from cloudgpu.tests.standins.pulumi.provider import Kind, Made, PartialError, Props, Provider
from cloudgpu.tests.standins.pulumi.serving import install

__all__ = ["engine"]

pytestmark = pytest.mark.timeout(600)

SUBNET, INSTANCE, GATEWAY = (
    "aws:ec2/subnet:Subnet",
    "aws:ec2/instance:Instance",
    "aws:ec2/internetGateway:InternetGateway",
)
AMI = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    with Aws() as aws:
        for name, value in aws.environ.items():
            monkeypatch.setenv(name, value)
        yield aws


@pytest.fixture
def provider(cloud: Aws, engine: Engine) -> Provider:
    made = aws_provider.provider()
    engine.attach(made)
    return made


@dataclass
class Cluster:
    """Pulumi program of a cluster, with the inputs that tests change."""

    size: int = 2
    user_data: str = "#!/bin/sh\n"
    cidr: str = "10.0.1.0/24"
    group: str | None = None

    def __call__(self) -> None:
        zone = pulumi_aws.get_availability_zones(state="available").names[0]
        vpc = pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16", tags={"Name": "net"})
        subnet = pulumi_aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block=self.cidr, availability_zone=zone)
        group = pulumi_aws.ec2.SecurityGroup("group", name=self.group, vpc_id=vpc.id, description="machines")
        pulumi_aws.vpc.SecurityGroupEgressRule(
            "out", security_group_id=group.id, ip_protocol="-1", cidr_ipv4="0.0.0.0/0"
        )
        template = pulumi_aws.ec2.LaunchTemplate(
            "machine",
            image_id=pulumi_aws.ssm.get_parameter_output(name=AMI).value,
            instance_type="g4dn.xlarge",
            user_data=_base64(self.user_data),
            update_default_version=True,
        )
        machines = [
            pulumi_aws.ec2.Instance(
                f"machine-{number}",
                launch_template={"id": template.id, "version": "$Latest"},
                subnet_id=subnet.id,
                vpc_security_group_ids=[group.id],
                tags={"Name": f"machine-{number}"},
            )
            for number in range(self.size)
        ]
        pulumi.export("machines", [one.id for one in machines])
        pulumi.export("version", template.latest_version)
        pulumi.export("password", pulumi.Output.secret("hush hush"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _stack(program: Callable[[], Any]) -> automation.Stack:
    return automation.create_or_select_stack("dev", "tests", program=program)


def _changes(result: Any) -> dict[str, int]:
    return {str(getattr(op, "value", op)): count for op, count in result.summary.resource_changes.items()}


def _machines() -> list[str]:
    ec2: Any = boto3.client("ec2")
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = ec2.describe_instances(Filters=alive)["Reservations"]
    return sorted(one["InstanceId"] for group in reservations for one in group["Instances"])


def _left() -> dict[str, int]:
    """Return the number of resources of each kind that a new account does not have."""
    ec2: Any = boto3.client("ec2")
    mine = [{"Name": "is-default", "Values": ["false"]}]
    counts = {
        "machines": len(_machines()),
        "vpcs": len(ec2.describe_vpcs(Filters=mine)["Vpcs"]),
        "templates": len(ec2.describe_launch_templates()["LaunchTemplates"]),
        "gateways": len(ec2.describe_internet_gateways()["InternetGateways"]),
        "groups": sum(one["GroupName"] != "default" for one in ec2.describe_security_groups()["SecurityGroups"]),
    }
    return {name: count for name, count in counts.items() if count}


def test_the_whole_life_of_a_stack(provider: Provider) -> None:
    cluster = Cluster()
    stack = _stack(cluster)
    assert stack.preview().change_summary == {"create": 8}
    assert _left() == {}

    result = stack.up()
    assert _changes(result) == {"create": 8}
    assert result.outputs["machines"].value and sorted(result.outputs["machines"].value) == _machines()
    assert (result.outputs["password"].value, result.outputs["password"].secret) == ("hush hush", True)
    group = boto3.client("ec2").describe_security_groups(Filters=[{"Name": "description", "Values": ["machines"]}])
    assert len(group["SecurityGroups"][0]["IpPermissionsEgress"]) == 1  # EC2's own rule is revoked

    assert _changes(stack.up()) == {"same": 8}
    cluster.size = 3
    assert _changes(stack.up()) == {"same": 8, "create": 1}
    before = _machines()
    assert len(before) == 3

    cluster.user_data, cluster.size = "#!/bin/sh\ntrue\n", 1
    result = stack.up()
    assert _changes(result) == {"same": 6, "update": 1, "delete": 2}
    assert result.outputs["version"].value == 2
    assert set(_machines()) < set(before)  # "$Latest" is resolved once

    assert _changes(stack.destroy()) == {"delete": 7}
    assert _left() == {}
    assert "resources" not in stack.export_stack().deployment  # type: ignore[operator]
    stack.workspace.remove_stack("dev")
    with pytest.raises(StackNotFoundError):
        automation.select_stack("dev", "tests", program=cluster)


def test_a_replaced_resource_replaces_its_dependents(provider: Provider) -> None:
    cluster = Cluster(size=1)
    stack = _stack(cluster)
    first = stack.up().outputs["machines"].value
    cluster.cidr = "10.0.2.0/24"
    provider.control.forget()
    result = stack.up()
    assert _changes(result) == {"same": 5, "replace": 2}
    assert result.outputs["machines"].value != first
    done = [(one.action, one.value("name")) for one in provider.control.calls("Create|Delete")]
    assert done == [("Create", "subnet"), ("Create", "machine-0"), ("Delete", "machine-0"), ("Delete", "subnet")]
    assert len(_machines()) == 1


def test_a_resource_with_an_explicit_name_is_deleted_before_replacement(provider: Provider) -> None:
    def program(description: str) -> Callable[[], None]:
        return lambda: pulumi_aws.ec2.SecurityGroup("group", name="mine", description=description) and None

    _stack(program("one")).up()
    provider.control.forget()
    assert _changes(_stack(program("two")).up()) == {"same": 1, "replace": 1}
    assert [one.action for one in provider.control.calls("Create|Delete")] == ["Delete", "Create"]
    _stack(program("two")).destroy()
    assert _left() == {}


def test_a_failure_in_the_middle_keeps_what_is_done_and_the_next_up_goes_on(provider: Provider) -> None:
    provider.control.fail("Create", error("InsufficientInstanceCapacity"), where={"type": INSTANCE}, skip=1)
    stack, seen = _stack(Cluster(size=2)), _Seen()
    with pytest.raises(CommandError, match="InsufficientInstanceCapacity"):
        stack.up(on_event=seen, parallel=1)
    assert [(op, name) for kind, op, name in seen.steps if kind == "failed"] == [("create", seen.failed)]
    assert any("InsufficientInstanceCapacity" in text for text in seen.diagnostics)
    assert len(_machines()) == 1
    changes = _changes(stack.up())
    assert set(changes) == {"same", "create"} and sum(changes.values()) == 8  # the rule may not have been reached
    assert len(_machines()) == 2
    assert [update.result for update in stack.history()] == ["succeeded", "failed"]
    stack.destroy()
    assert _left() == {}


class _Seen:
    """Collects the events of an update."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []
        self.diagnostics: list[str] = []
        self.inputs: list[Any] = []
        self.summary: dict[str, int] = {}
        self.failed = ""

    def __call__(self, event: automation.EngineEvent) -> None:
        for kind, part in (
            ("before", event.resource_pre_event),
            ("after", event.res_outputs_event),
            ("failed", event.res_op_failed_event),
        ):
            if part is not None:
                name = part.metadata.urn.rpartition("::")[2]
                self.steps.append((kind, part.metadata.op.value, name))
                self.failed = name if kind == "failed" else self.failed
                if part.metadata.new is not None:
                    self.inputs.append(part.metadata.new.inputs)
        if event.diagnostic_event is not None:
            self.diagnostics.append(event.diagnostic_event.message)
        if event.summary_event is not None:
            self.summary = {str(getattr(op, "value", op)): n for op, n in event.summary_event.resource_changes.items()}


def test_a_machine_that_was_ended_by_hand_is_made_again_after_a_refresh(provider: Provider) -> None:
    stack = _stack(Cluster(size=2))
    gone = stack.up().outputs["machines"].value[0]
    boto3.client("ec2").terminate_instances(InstanceIds=[gone])
    assert _changes(stack.up()) == {"same": 8}  # the cloud's state was not read
    assert _changes(stack.refresh()) == {"same": 7, "delete": 1}
    assert _changes(stack.up()) == {"same": 7, "create": 1}
    assert len(_machines()) == 2
    boto3.client("ec2").terminate_instances(InstanceIds=[_machines()[0]])
    assert _changes(stack.up(refresh=True))["create"] == 1
    assert len(_machines()) == 2


def _gateway() -> None:
    pulumi_aws.ec2.InternetGateway("gateway", tags={"Name": "gateway"})


def test_kill_9_in_the_middle_leaves_a_lock_and_what_was_begun(provider: Provider, engine: Engine) -> None:
    stack = _stack(_gateway)
    provider.control.fail("Create", KILL_AFTER, where={"type": GATEWAY})
    with pytest.raises(CommandError):
        stack.up()
    (lock,) = (engine.state / ".pulumi/locks/organization/tests/dev").glob("*.json")
    held = json.loads(lock.read_bytes())
    assert set(held) == {"pid", "username", "hostname", "timestamp"}
    assert not Path(f"/proc/{held['pid']}").exists()
    assert _left() == {"gateways": 1}  # it exists, but no state contains it

    if engine.is_double:  # newer versions of the real engine remove the lock of a process that has ended
        with pytest.raises(ConcurrentUpdateError, match=rf"created by .*\(pid {held['pid']}\)"):
            stack.up()
    stack.cancel()
    seen = _Seen()
    (pending,) = stack.export_stack().deployment["pending_operations"]  # type: ignore[index]
    assert (pending["type"], pending["resource"]["type"]) == ("creating", GATEWAY)
    stack.preview(on_event=seen)
    assert not any("pending operations" in text for text in seen.diagnostics), "only what changes something says it"
    stack.up(on_event=seen)
    assert any("1 pending operations" in text for text in seen.diagnostics)
    stack.refresh(clear_pending_creates=True)
    assert not stack.export_stack().deployment.get("pending_operations")  # type: ignore[union-attr]
    assert _changes(stack.up()) == {"same": 2}
    assert _left() == {"gateways": 2}


def test_a_stack_that_is_worked_on_is_locked_and_an_interrupt_ends_it(provider: Provider, engine: Engine) -> None:
    provider.control.fail("Create", HANG, where={"type": GATEWAY})
    stack, ended = _stack(_gateway), []

    def up() -> None:
        try:
            stack.up()
        except CommandError as error_:
            ended.append(error_)

    thread = threading.Thread(target=up)
    thread.start()
    _until(lambda: provider.control.calls("Create", type=GATEWAY))
    with pytest.raises(ConcurrentUpdateError, match="the stack is currently locked by 1 lock"):
        _stack(_gateway).up()
    (lock,) = (engine.state / ".pulumi/locks/organization/tests/dev").glob("*.json")
    os.kill(json.loads(lock.read_bytes())["pid"], signal.SIGINT)
    thread.join(180)
    assert len(ended) == 1
    assert not lock.exists()
    assert _changes(stack.up())["create"] == 1


def _until(holds: Callable[[], Any], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.02)


def test_protected_resources_are_not_deleted(provider: Provider) -> None:
    def program() -> None:
        vpc = pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
        kept = pulumi.ResourceOptions(protect=True)
        pulumi_aws.ec2.SecurityGroup("kept", vpc_id=vpc.id, opts=kept)
        pulumi_aws.ec2.InternetGateway("gateway", vpc_id=vpc.id)

    stack = _stack(program)
    stack.up()
    with pytest.raises(CommandError, match=r"cannot be deleted\n\s*because it is protected"):
        stack.destroy(parallel=1)
    assert _left()["groups"] == 1
    stack.destroy(exclude_protected=True)
    assert _left() == {"vpcs": 1, "groups": 1}  # its VPC stays as well
    unprotect = ["pulumi", "state", "unprotect", "--all", "--yes", "--stack", "dev"]
    subprocess.run(unprotect, cwd=stack.workspace.work_dir, check=True)
    assert _changes(stack.destroy()) == {"delete": 3}
    assert _left() == {}


def test_ignored_changes_stay_as_they_are(provider: Provider) -> None:
    tags = {"Name": "as written"}

    def program() -> None:
        ignored = pulumi.ResourceOptions(ignore_changes=["tags"])
        pulumi_aws.ec2.InternetGateway("gateway", tags=tags, opts=ignored)

    stack = _stack(program)
    stack.up()
    tags["Name"] = "as written later"
    assert _changes(stack.up()) == {"same": 2}
    (gateway,) = boto3.client("ec2").describe_internet_gateways()["InternetGateways"]
    assert gateway["Tags"] == [{"Key": "Name", "Value": "as written"}]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("tags", {"tags": {"a": 1, "b.c": 2}, "disks": [{"size": 9, "kind": "new"}]}),
        ("tags.a", {"tags": {"a": 1, "b.c": 8}, "disks": [{"size": 9, "kind": "new"}]}),
        ('tags["b.c"]', {"tags": {"a": 7, "b.c": 2}, "disks": [{"size": 9, "kind": "new"}]}),
        ("disks[0].size", {"tags": {"a": 7, "b.c": 8}, "disks": [{"size": 3, "kind": "new"}]}),
        ("disks[0].kind", {"tags": {"a": 7, "b.c": 8}, "disks": [{"size": 9}]}),
        ("*", {"tags": {"a": 1, "b.c": 2}, "disks": [{"size": 3}]}),
    ],
)
def test_a_path_of_an_ignored_change_keeps_the_old_value(path: str, kept: dict[str, Any]) -> None:
    old = {"tags": {"a": 1, "b.c": 2}, "disks": [{"size": 3}]}
    new = {"tags": {"a": 7, "b.c": 8}, "disks": [{"size": 9, "kind": "new"}]}
    assert ignoring(new, old, [path]) == kept


def test_secrets_are_encrypted_and_not_printed(
    provider: Provider, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> None:
        secret = pulumi.Config("tests").require_secret("word")
        pulumi_aws.ec2.LaunchTemplate("machine", name="machine", user_data=secret)
        pulumi.export("word", secret)

    stack, seen, word = _stack(program), _Seen(), _base64("xyzzy plugh")
    stack.set_config("word", automation.ConfigValue(word, secret=True))
    result = stack.up(on_event=seen)
    assert (result.outputs["word"].value, result.outputs["word"].secret) == (word, True)
    versions = boto3.client("ec2").describe_launch_template_versions(LaunchTemplateName="machine")
    assert versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"] == word  # the cloud gets it
    assert word not in result.stdout
    assert word not in json.dumps(seen.inputs)
    written = [path.read_text() for path in engine.state.rglob("*") if path.is_file()]
    written += [path.read_text() for path in Path(stack.workspace.work_dir).iterdir()]
    assert not any(word in text for text in written)
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "another")
    with pytest.raises(CommandError, match="incorrect passphrase"):
        stack.outputs()


def test_two_resources_cannot_have_one_name(provider: Provider) -> None:
    def program() -> None:
        pulumi_aws.ec2.InternetGateway("gateway")
        pulumi_aws.ec2.InternetGateway("gateway")

    with pytest.raises(CommandError, match="Duplicate resource URN"):
        _stack(program).up()


def test_unmodelled_types_and_inputs_are_refused(provider: Provider) -> None:
    def a_type() -> None:
        pulumi_aws.sqs.Queue("queue")

    def an_input() -> None:
        pulumi_aws.ec2.InternetGateway("gateway")
        pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16", ipv6_cidr_block="::/56")

    with pytest.raises(CommandError, match="aws:sqs/queue:Queue: not modelled by the stand-in"):
        _stack(a_type).up()
    with pytest.raises(CommandError, match="ipv6CidrBlock of aws:ec2/vpc:Vpc: not modelled by the stand-in"):
        _stack(an_input).up()


def test_a_program_that_breaks_changes_nothing_more(provider: Provider) -> None:
    def program() -> None:
        raise ValueError("no such shape")

    stack = _stack(_gateway)
    stack.up()
    with pytest.raises(CommandError, match="no such shape"):
        _stack(program).up()
    assert _left() == {"gateways": 1}


class _Vpc(Kind[dict[str, Props]]):
    """Kind without a cloud. Its creation fails halfway if the range is 10.9.0.0/16."""

    type = "aws:ec2/vpc:Vpc"
    inputs = frozenset({"cidrBlock", "tags"})
    replaces = frozenset({"cidrBlock"})
    computed = frozenset({"arn"})

    def create(self, name: str, inputs: Props) -> Made:
        identity = f"{name}-{len(self.cloud)}"
        self.cloud[identity] = inputs
        if inputs["cidrBlock"] == "10.9.0.0/16":
            raise PartialError(identity, {"arn": "arn:half"}, "it is not available yet")
        return Made(identity, {"arn": f"arn:{identity}"})

    def read(self, identity: str, state: Props) -> Props | None:
        return self.cloud.get(identity)

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.cloud[identity] = new
        return {}

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.pop(identity, None)


class _Subnet(_Vpc):
    type = "aws:ec2/subnet:Subnet"
    inputs = frozenset({"vpcId", "cidrBlock"})
    replaces = frozenset({"vpcId"})


@pytest.fixture
def toys(engine: Engine) -> Provider:
    made = Provider("aws", cloud={}, kinds=[_Vpc, _Subnet])
    engine.attach(made)
    return made


def test_delete_before_replace_deletes_dependents_first(toys: Provider) -> None:
    def program(cidr: str) -> Callable[[], None]:
        def run() -> None:
            first = pulumi.ResourceOptions(delete_before_replace=True)
            net = pulumi_aws.ec2.Vpc("net", cidr_block=cidr, opts=first)
            pulumi_aws.ec2.Subnet("subnet", vpc_id=net.id, cidr_block="10.0.1.0/24")

        return run

    _stack(program("10.0.0.0/16")).up()
    toys.control.forget()
    assert _changes(_stack(program("10.1.0.0/16")).up())["replace"] >= 1
    done = [(one.action, one.value("name")) for one in toys.control.calls("Create|Delete")]
    assert done == [("Delete", "subnet"), ("Delete", "net"), ("Create", "net"), ("Create", "subnet")]
    _stack(program("10.1.0.0/16")).destroy()
    assert toys.cloud == {}


def test_a_partially_created_resource_is_finished_by_the_next_up(toys: Provider) -> None:
    stack = _stack(lambda: pulumi_aws.ec2.Vpc("net", cidr_block="10.9.0.0/16") and None)
    with pytest.raises(CommandError, match="it is not available yet"):
        stack.up()
    kept = [one for one in stack.export_stack().deployment["resources"] if one["custom"]]  # type: ignore[index]
    assert [(one.get("id"), one.get("initErrors")) for one in kept if one["type"] == _Vpc.type] == [
        ("net-0", ["it is not available yet"])
    ]
    assert _changes(stack.up()) == {"same": 1, "update": 1}
    assert list(toys.cloud) == ["net-0"]


class _AfterSlow(_Vpc):
    """Fails while a `_Slow` is being created."""

    under_way = threading.Event()

    def create(self, name: str, inputs: Props) -> Made:
        assert self.under_way.wait(60)
        raise PartialError(name, {}, "it has failed")


class _Slow(_Subnet):
    def create(self, name: str, inputs: Props) -> Made:
        _AfterSlow.under_way.set()
        time.sleep(3.0)  # longer than the program runs
        return super().create(name, inputs)


def test_a_creation_in_progress_when_another_fails_is_in_the_state(engine: Engine) -> None:
    slow = Provider("aws", cloud={}, kinds=[_AfterSlow, _Slow])
    engine.attach(slow)

    def program() -> None:
        pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
        pulumi_aws.ec2.Subnet("slow", vpc_id="vpc-1", cidr_block="10.0.1.0/24")

    stack = _stack(program)
    with pytest.raises(CommandError, match="it has failed"):
        stack.up()
    deployment: Any = stack.export_stack().deployment
    made = [one["id"] for one in deployment["resources"] if one["type"] == _Slow.type]
    assert (made, list(slow.cloud), deployment.get("pending_operations") or []) == (["slow-0"], ["slow-0"], [])


def test_a_lost_answer_leaves_a_resource_outside_the_state(toys: Provider) -> None:
    toys.control.fail("Create", LOSE)
    stack = _stack(lambda: pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16") and None)
    with pytest.raises(CommandError):
        stack.up()
    stack.up()
    stack.destroy()
    assert list(toys.cloud) == ["net-0"]


def test_a_resource_that_is_renamed_with_an_alias_is_the_same(toys: Provider) -> None:
    def program(name: str, *aliases: str) -> Callable[[], None]:
        known = pulumi.ResourceOptions(aliases=[pulumi.Alias(name=alias) for alias in aliases])
        return lambda: pulumi_aws.ec2.Vpc(name, cidr_block="10.0.0.0/16", opts=known) and None

    _stack(program("before")).up()
    assert _changes(_stack(program("after", "before")).up()) == {"same": 2}
    assert _changes(_stack(program("after")).up()) == {"same": 2}
    assert _changes(_stack(program("other")).up()) == {"same": 1, "create": 1, "delete": 1}


def test_a_state_can_be_exported_and_imported(toys: Provider) -> None:
    stack = _stack(lambda: pulumi_aws.ec2.Vpc("net", cidr_block="10.0.0.0/16") and None)
    stack.up()
    exported = stack.export_stack()
    stack.destroy()
    stack.import_stack(exported)
    assert stack.export_stack().deployment["resources"] == exported.deployment["resources"]  # type: ignore[index]
    assert _changes(stack.refresh())["delete"] == 1


def test_a_provider_is_started_from_path(
    cloud: Aws, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "plugins", "aws")
    monkeypatch.setenv("PATH", f"{tmp_path / 'plugins'}{os.pathsep}{os.environ['PATH']}")
    stack = _stack(_gateway)
    stack.set_config("aws:region", automation.ConfigValue("eu-west-1"))
    assert _changes(stack.up())["create"] == 2
    there = boto3.client("ec2", region_name="eu-west-1").describe_internet_gateways()["InternetGateways"]
    assert len(there) == 1
    stack.destroy()
    assert not boto3.client("ec2", region_name="eu-west-1").describe_internet_gateways()["InternetGateways"]
