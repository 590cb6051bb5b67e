"""Strict mocks of Pulumi programs: they catch errors that plain mocks let pass, and generate the outputs that programs
need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_azure_native as azure
import pytest

from cloudgpu.tests.standins.pulumi.mocks import StrictError, exports, only, run_strict
from cloudgpu.tests.standins.pulumi.wire import UNKNOWN

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"


class Network(pulumi.ComponentResource):
    def __init__(self, name: str) -> None:
        super().__init__("tests:index:Network", name)
        child = pulumi.ResourceOptions(parent=self, protect=True, ignore_changes=["tags"])
        self.vpc = aws.ec2.Vpc(f"{name}-vpc", cidr_block="10.0.0.0/16", opts=child)
        self.register_outputs({"id": self.vpc.id})


def network() -> None:
    made = Network("net")
    subnet = aws.ec2.Subnet(
        "one",
        vpc_id=made.vpc.id,
        cidr_block="10.0.1.0/24",
        tags={"a": "b"},
        opts=pulumi.ResourceOptions(depends_on=[made]),
    )
    aws.ec2.LaunchTemplate("machines", user_data=pulumi.Output.secret("hush"), network_interfaces=[{"device_index": 0}])
    pulumi.export("subnet", {"id": subnet.id, "arn": subnet.arn})
    pulumi.export("zones", aws.get_availability_zones(state="available").zone_ids)


ZONES = {"aws:index/getAvailabilityZones:getAvailabilityZones": lambda asked: {"zoneIds": [asked["state"], "use1-az1"]}}


def test_registered_resources_are_returned() -> None:
    registered = run_strict(network, invokes=ZONES)
    assert [one.type for one in registered][:2] == ["pulumi:pulumi:Stack", "tests:index:Network"]
    vpc, subnet = only(registered, VPC), only(registered, SUBNET)
    assert vpc.urn == "urn:pulumi:test::cloudgpu::tests:index:Network$aws:ec2/vpc:Vpc::net-vpc"
    assert (vpc.inputs, vpc.protect, vpc.ignore_changes) == ({"cidrBlock": "10.0.0.0/16"}, True, ["tags"])
    assert subnet.inputs == {"vpcId": vpc.outputs["id"], "cidrBlock": "10.0.1.0/24", "tags": {"a": "b"}}
    assert vpc.urn in subnet.dependencies
    template = only(registered, "aws:ec2/launchTemplate:LaunchTemplate")
    assert (template.inputs["userData"], template.secret_inputs) == ("hush", {"userData"})
    assert only(registered, "tests:index:Network").outputs == {"id": vpc.outputs["id"]}
    assert exports(registered)["subnet"] == {"id": "one-id", "arn": subnet.outputs["arn"]}
    assert exports(registered)["zones"] == ["available", "use1-az1"]


def test_nothing_that_is_made_up_is_known_in_a_preview() -> None:
    registered = run_strict(network, invokes=ZONES, preview=True)
    assert only(registered, SUBNET).inputs["vpcId"] is UNKNOWN
    assert exports(registered)["subnet"] == {"id": UNKNOWN, "arn": UNKNOWN}


def test_outputs_can_be_given_by_type() -> None:
    outputs: dict[str, Any] = {VPC: lambda one: {"id": f"vpc-{one.name}"}, SUBNET: {"arn": "arn:mine"}}
    registered = run_strict(network, outputs=outputs, invokes=ZONES)
    assert only(registered, SUBNET).inputs["vpcId"] == "vpc-net-vpc"
    assert exports(registered)["subnet"]["arn"] == "arn:mine"


def test_a_list_that_the_cloud_gives_back_as_a_map_does_not_break_the_program() -> None:
    def program() -> None:
        identity: Any = {"type": "UserAssigned", "user_assigned_identities": ["/identities/one"]}
        azure.compute.VirtualMachine("vm", resource_group_name="group", identity=identity)

    assert only(run_strict(program), "azure-native:compute:VirtualMachine").inputs["identity"] == {
        "type": "UserAssigned",
        "userAssignedIdentities": ["/identities/one"],
    }


def _template(**more: Any) -> Callable[[], None]:
    return lambda: aws.ec2.LaunchTemplate("it", **more) and None


def _machine(**more: Any) -> Callable[[], None]:
    return lambda: azure.compute.VirtualMachine("it", resource_group_name="group", **more) and None


def _twice() -> None:
    aws.ec2.Vpc("it", cidr_block="10.0.0.0/16")
    aws.ec2.Vpc("it", cidr_block="10.1.0.0/16")


def _placed() -> None:
    aws.ec2.LaunchTemplate("it", placement=pulumi.Output.from_input({"groupName": "near"}))


def _group(**more: Any) -> Callable[[], None]:
    return lambda: aws.autoscaling.Group("it", max_size=1, min_size=0, mixed_instances_policy=more) and None


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        (_template(network_interfaces=[{"device_indx": 0}]), r"networkInterfaces\[0\].device_indx: .* no such field"),
        (
            _template(network_interfaces=[{"deviceIndex": 0}]),
            r"network_interfaces\[0\].deviceIndex: .* no such field; it is device_index in Python",
        ),
        (
            _placed,
            r"placement.groupName: .*; it is group_name in Python",
        ),
        (_template(update_default_version="yes"), r"updateDefaultVersion: str 'yes', where bool is wanted"),
        (_template(tags={"count": 1}), r'tags\["count"\]: int 1, where str is wanted'),
        (_template(network_interfaces={"device_index": 0}), r"networkInterfaces: an object, where .* is wanted"),
        (_template(vpc_security_group_ids=["sg-1", 2]), r"vpcSecurityGroupIds\[1\]: int 2, where str is wanted"),
        (_group(launch_template={}), r"mixedInstancesPolicy.launchTemplate.launchTemplateSpecification: missing"),
        (
            _group(instances_distribution={"on_demand_base_capacity": 1.5}),
            r"BaseCapacity: float 1.5, where int",
        ),
        (_machine(priority="Sport"), r"priority: 'Sport' is not of VirtualMachinePriorityTypes: Low, Regular, Spot"),
        (_machine(identity={"type": "user"}), r"identity.type: 'user' is not of ResourceIdentityType"),
        (_twice, r"there are two of urn:pulumi:test::cloudgpu::aws:ec2/vpc:Vpc::it"),
        (lambda: pulumi.CustomResource("aws:ec2/vpc:Vcp", "it") and None, r"no SDK that is imported has this type"),
        (lambda: aws.ec2.get_ami(owners=["self"]) and None, r"getAmi: the program calls it"),
    ],
)
def test_errors_name_their_place(program: Callable[[], None], wrong: str) -> None:
    with pytest.raises(StrictError, match=wrong):
        run_strict(program)


def test_all_errors_are_reported_at_once() -> None:
    def program() -> None:
        aws.ec2.Vpc("one", cidr_block=1)
        aws.ec2.Vpc("two", tags={"a": True})

    with pytest.raises(StrictError) as caught:
        run_strict(program)
    assert {line.split(":")[2] for line in str(caught.value).splitlines()} == {"Vpc one", "Vpc two"}


def test_enums_that_clouds_add_to_take_any_text() -> None:
    run_strict(_machine(hardware_profile={"vm_size": "Standard_ND96isr_H900_v9"}))
    with pytest.raises(StrictError, match="VirtualMachineSizeTypes"):
        run_strict(_machine(hardware_profile={"vm_size": "Standard_ND96isr_H900_v9"}), open_enums=())


def test_an_error_of_the_program_itself_is_the_programs() -> None:
    with pytest.raises(TypeError, match="vpc_id"):
        run_strict(lambda: aws.ec2.Subnet("it") and None)
