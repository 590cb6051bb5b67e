"""Machines that outlive a job: a scale set of virtual machines, made of the same parts as a launch's."""

import base64
from typing import Any, NotRequired, TypedDict

import pulumi
from pulumi_azure_native import compute, managedidentity, network

from ...jobspecs.fleets import FleetSpec
from ...provisioners.azure.machine.images import image_of
from ...provisioners.azure.machine.template import Standing, check_fleet, is_close, profile, scale_set, zones_of
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
"""Where Pulumi's classes have no `properties`: see infra/pulumi_arguments.py."""
_RULES = {"securityRules.properties": ""}
_FIXED = ["singlePlacementGroup", "proximityPlacementGroup", "virtualMachineProfile.priority"]
"""What Azure does not change in a scale set: another one takes its place."""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet. What decides which resources there are, and of what kind, is a plain value, no input."""

    region: str
    """Azure's name of the region."""
    machine_type: str
    """Azure's size, e.g. `Standard_ND96isr_H100_v5`."""
    accelerator: NotRequired[str]
    """Canonical name of its GPU, e.g. `H100-80GB`; omitted: it has none."""
    gpus: NotRequired[str]
    """GPUs of a machine, e.g. `8`."""
    market: NotRequired[str]
    """`on-demand`, `spot` or `reservation`; omitted: on-demand."""
    reservation: NotRequired[str]
    """Of market reservation: resource id of the capacity reservation group."""
    on_demand: NotRequired[int]
    """So many machines of a fleet of market spot are bought on demand."""
    size: NotRequired[int]
    """How many machines; omitted: 1. Machines that have left are made anew by the next update after a refresh."""
    disk_gb: NotRequired[float]
    """Of each machine's disk; omitted: 100."""
    zones: NotRequired[list[str]]
    """Zones in which machines may be, e.g. `1`; of `peers` the first is taken. Omitted: Azure chooses in the region."""
    peers: NotRequired[bool]
    """The machines talk to each other: they are in one placement group, and may reach each other by all ports."""
    lifetime_seconds: NotRequired[int]
    """A machine ends itself after so long; its user data must see to it. Another one replaces the machines."""
    heal: NotRequired[bool]
    """Machines that do not answer, and Spot machines that were taken, are replaced by Azure; omitted: true."""
    image: str
    """`publisher:offer:sku:version`, the version by its number."""
    user_data: pulumi.Input[str]
    """What machines boot with: cloud-init's, as text. Whoever may look at the machines can read it."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    subnet: pulumi.Input[str]
    """Resource id: GpuNetwork's `subnet_id`."""
    machine_role: pulumi.Input[str]
    """Resource id of the managed identity that the machines have: MachineRole's `identity_id`."""
    public_addresses: NotRequired[bool]
    """Each machine has a public address to go out by, which nothing comes in by; omitted: true. False: the subnet has a
    way out, as a NAT gateway."""
    resource_group: NotRequired[pulumi.Input[str]]
    """Name of one that is there; omitted: a new one, called like the component, which nothing else is in."""
    fleet_name: NotRequired[str]
    """Of the scale set, and value of the tag cloudgpu-fleet: lower-case letters, digits and hyphens; omitted: the
    component's name."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Omitted: made of the project and the stack."""
    expires: NotRequired[pulumi.Input[float]]
    """Epoch seconds after which anybody may remove it, by the tag of its resource group, and an OrphanReaper does,
    where the group's name begins with `cloudgpu-`; omitted: never."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of everything in it, the machines too."""


class GpuFleet(pulumi.ComponentResource):
    """A Flexible scale set. Azure replaces its machines batch by batch when the template changes, and, with `heal`, one
    by one when they do not answer."""

    group: pulumi.Output[str]
    """Resource id of the scale set."""
    resource_group: pulumi.Output[str]
    """Name of its resource group."""
    template_hash: pulumi.Output[str]
    """16 hex digits: fleets with the same one have the same machines."""

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

    def _standing(self) -> Standing:
        """Its own rules, and the group of machines that they let reach each other."""
        peers = self._peers() if self._fleet.peers else None
        closed = network.NetworkSecurityGroup(
            f"{self._name}-closed",
            network_security_group_name=SHARED,
            **self._where(),
            **keywords(network.NetworkSecurityGroupInitArgs, {"securityRules": security_rules(peers)}, _RULES),
            opts=child_of(self),
        )
        args = self._args
        return Standing(args["subnet"], closed.id, peers, args.get("public_addresses", True), args.get("reservation"))

    def _peers(self) -> pulumi.Output[str]:
        made = network.ApplicationSecurityGroup(
            f"{self._name}-peers", application_security_group_name=SHARED, **self._where(), opts=child_of(self)
        )
        return made.id

    def _scale_set(self, at: Standing) -> compute.VirtualMachineScaleSet:
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
            # Not when it expires, which its resource group tells: whether another tag replaces machines is unknown.
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
            resource_group_name=machine.apply(lambda told: part_of(told, "resourceGroups")),
            resource_name=machine.apply(lambda told: part_of(told, "userAssignedIdentities")),
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
    """The other way round: those arguments of GpuFleet that a FleetSpec says."""
    said = fleet.model_dump(exclude={"cloud", "name", "idle_s", "lifetime_s"}, exclude_none=True)
    life = {} if fleet.lifetime_s is None else {"lifetime_seconds": fleet.lifetime_s}
    return {**said, **life, "fleet_name": fleet.name, "zones": list(fleet.zones)}
