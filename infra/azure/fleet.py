"""Fleet of machines that outlive a job: a scale set built from the same parts as a launch's."""

import base64
from typing import Any, NotRequired, TypedDict

import pulumi
from pulumi_azure_native import compute, managedidentity, network

from ...jobspecs.fleets import FleetSpec
from ...provisioners.azure.machine.images import image_of
from ...provisioners.azure.machine.template import (
    NetworkAttachment,
    check_fleet,
    is_close,
    profile,
    scale_set,
    zones_of,
)
from ...provisioners.azure.names import SHARED, part_of
from ...provisioners.azure.resources.rights import LEAVING
from ...provisioners.azure.resources.security_rules import security_rules
from ...provisioners.azure.target import MAX_BYTES
from ...provisioners.shared import tags
from ..arguments import check_arguments, check_fleet_name, check_size, fleet_spec
from ..components import child_of
from ..pulumi_arguments import keywords
from .resource_groups import TYPES, assign, group_of, id_of_group, role_of, tags_of

_INTERFACES = "virtualMachineProfile.networkProfile.networkInterfaceConfigurations.properties"
_ADDRESSES = f"{_INTERFACES}.ipConfigurations.properties"
FLAT = {
    _INTERFACES: "",
    _ADDRESSES: "",
    f"{_ADDRESSES}.publicIPAddressConfiguration.properties": "",
    "virtualMachineProfile.extensionProfile.extensions.properties": "",
}
"""Fields that Pulumi's classes flatten, without the API's `properties` level: see infra/pulumi_arguments.py."""
_RULES = {"securityRules.properties": ""}
_FIXED = ["singlePlacementGroup", "proximityPlacementGroup", "virtualMachineProfile.priority"]
"""Fields that Azure cannot change in an existing scale set: a change replaces it."""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet. Those that decide which resources exist, and their kind, are plain values rather than
    inputs."""

    region: str
    """Name of the Azure region."""
    machine_type: str
    """Azure VM size, e.g. `Standard_ND96isr_H100_v5`."""
    accelerator: NotRequired[str]
    """Canonical name of the machine's GPU, e.g. `H100-80GB`. Omitted: no GPU."""
    gpus: NotRequired[str]
    """Number of GPUs per machine, e.g. `8`."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot` or `reservation`."""
    reservation: NotRequired[str]
    """With market reservation, the resource id of the capacity reservation group."""
    on_demand: NotRequired[int]
    """Number of machines of a spot fleet that are bought on demand."""
    size: NotRequired[int]
    """Number of machines. Default: 1. Machines that have left the fleet are recreated by the next `up` after a
    refresh."""
    disk_gb: NotRequired[float]
    """Size of each machine's disk in GB. Default: 100."""
    zones: NotRequired[list[str]]
    """Zones for the machines, e.g. `1`; with `peers` only the first is used. Default: Azure chooses in the region."""
    peers: NotRequired[bool]
    """The machines communicate: they share a proximity placement group and may connect to each other on all ports."""
    lifetime_seconds: NotRequired[int]
    """Lifetime of a machine in seconds, which its user data must enforce. A change replaces all machines."""
    heal: NotRequired[bool]
    """Let Azure replace unresponsive and evicted Spot machines. Default: true."""
    image: str
    """Image as `publisher:offer:sku:version` with a version number."""
    user_data: pulumi.Input[str]
    """Custom data of the machines: cloud-init's input, as text. Everyone with read access to the machines can read
    it."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    subnet: pulumi.Input[str]
    """Resource id of the subnet: GpuNetwork's `subnet_id`."""
    machine_role: pulumi.Input[str]
    """Resource id of the machines' managed identity: MachineRole's `identity_id`."""
    public_addresses: NotRequired[bool]
    """Give each machine a public address for outbound traffic only. Default: true. If false, the subnet needs its own
    egress, such as a NAT gateway."""
    resource_group: NotRequired[pulumi.Input[str]]
    """Name of an existing resource group. Default: a new, dedicated group with the component's name."""
    fleet_name: NotRequired[str]
    """Name of the scale set and value of the tag cloudgpu-fleet: lower-case letters, digits and hyphens. Default: the
    component's name."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds, set as a tag of the resource group: after it any cleanup may delete the group, and
    OrphanReaper does if its name begins with `cloudgpu-`. Default: never."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources, including the machines."""


class GpuFleet(pulumi.ComponentResource):
    """Flexible scale set. When the template changes, Azure replaces its machines in batches.

    With `heal`, Azure also replaces single machines that do not respond.
    """

    group: pulumi.Output[str]
    """Resource id of the scale set."""
    resource_group: pulumi.Output[str]
    """Name of the fleet's resource group."""
    template_hash: pulumi.Output[str]
    """Hash of the machines' definition, 16 hex digits: equal for fleets with identical machines."""

    def __init__(self, name: str, args: GpuFleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuFleet", name, args, GpuFleetArgs)
        super().__init__(f"{TYPES}:GpuFleet", name, {}, opts)
        self._name, self._args = name, args
        self._fleet = fleet_of(name, args)
        self._tags = tags_of(args, fleet=self._fleet.name)
        self.resource_group = group_of(self, name, args, self._tags)
        made = self._scale_set(self._standing())
        self._let_leave()
        self.group = made.id
        self.template_hash = pulumi.Output.from_input(self._fleet.template_hash)
        self.register_outputs(
            {"group": self.group, "resource_group": self.resource_group, "template_hash": self.template_hash}
        )

    def _standing(self) -> NetworkAttachment:
        """Create the fleet's security rules and, with `peers`, the security group whose members may reach each
        other."""
        peers = self._peers() if self._fleet.peers else None
        closed = network.NetworkSecurityGroup(
            f"{self._name}-closed",
            network_security_group_name=SHARED,
            **self._where(),
            **keywords(network.NetworkSecurityGroupInitArgs, {"securityRules": security_rules(peers)}, _RULES),
            opts=child_of(self),
        )
        args = self._args
        return NetworkAttachment(
            args["subnet"], closed.id, peers, args.get("public_addresses", True), args.get("reservation")
        )

    def _peers(self) -> pulumi.Output[str]:
        made = network.ApplicationSecurityGroup(
            f"{self._name}-peers", application_security_group_name=SHARED, **self._where(), opts=child_of(self)
        )
        return made.id

    def _scale_set(self, at: NetworkAttachment) -> compute.VirtualMachineScaleSet:
        fleet, args = self._fleet, self._args
        custom_data = pulumi.Output.from_input(args["user_data"]).apply(
            lambda text: base64.b64encode(check_size("user_data", text, MAX_BYTES).encode()).decode()
        )
        properties = scale_set(fleet, profile(fleet, image_of(args["image"]), at, custom_data))
        if is_close(fleet):
            properties["proximityPlacementGroup"] = {"id": self._placement()}
        return compute.VirtualMachineScaleSet(
            f"{self._name}-machines",
            vm_scale_set_name=fleet.name,
            # Without the expiry tag, which the resource group has: a tag change might replace machines.
            **self._where() | {"tags": {key: value for key, value in self._tags.items() if key != tags.EXPIRES}},
            sku=compute.SkuArgs(name=fleet.machine_type, tier="Standard", capacity=fleet.size),
            zones=zones_of(fleet) or None,
            identity=compute.VirtualMachineScaleSetIdentityArgs(
                type=compute.ResourceIdentityType.USER_ASSIGNED, user_assigned_identities=[args["machine_role"]]
            ),
            **keywords(compute.VirtualMachineScaleSetArgs, properties, FLAT),
            opts=child_of(self, replace_on_changes=_FIXED, delete_before_replace=True),
        )

    def _placement(self) -> pulumi.Output[str]:
        made = compute.ProximityPlacementGroup(
            f"{self._name}-placement",
            proximity_placement_group_name=SHARED,
            **self._where(),
            proximity_placement_group_type=compute.ProximityPlacementGroupType.STANDARD,
            opts=child_of(self),
        )
        return made.id

    def _let_leave(self) -> None:
        args = self._args
        here = id_of_group(args["subscription"], self.resource_group)
        role = role_of(
            self,
            f"{self._name}-leaving",
            subscription=args["subscription"],
            scope=here,
            actions=LEAVING,
            description="Machines of a fleet of cloudgpu end themselves",
        )
        machine = pulumi.Output.from_input(args["machine_role"])
        found = managedidentity.get_user_assigned_identity_output(
            resource_group_name=machine.apply(lambda identity_id: part_of(identity_id, "resourceGroups")),
            resource_name=machine.apply(lambda identity_id: part_of(identity_id, "userAssignedIdentities")),
            opts=pulumi.InvokeOutputOptions(parent=self),
        )
        assign(
            self,
            f"{self._name}-may-leave",
            role=role.id,
            scope=here,
            principal=found.principal_id,
            principal_type="ServicePrincipal",
        )

    def _where(self) -> dict[str, Any]:
        return {
            "resource_group_name": self.resource_group,
            "location": self._args["region"],
            "tags": self._tags,
        }


def fleet_of(name: str, args: GpuFleetArgs) -> FleetSpec:
    """Return the fleet that the arguments describe. Raises ArgumentError."""
    given = {key: value for key, value in args.items() if key in FleetSpec.model_fields and value is not None}
    called: dict[str, Any] = {"name": args.get("fleet_name") or name, "lifetime_s": args.get("lifetime_seconds")}
    check_fleet_name(name, called["name"])
    values = {"accelerator": None, **given, **called, "cloud": "azure"}
    return fleet_spec(name, values, lambda fleet: check_fleet(fleet, reserved=args.get("reservation") is not None))


def arguments_of(fleet: FleetSpec) -> dict[str, Any]:
    """Return GpuFleet's arguments for a FleetSpec, as far as the spec contains them."""
    said = fleet.model_dump(exclude={"cloud", "name", "idle_s", "lifetime_s"}, exclude_none=True)
    life = {} if fleet.lifetime_s is None else {"lifetime_seconds": fleet.lifetime_s}
    return {**said, **life, "fleet_name": fleet.name, "zones": list(fleet.zones)}
