"""A fleet: an instance template and a managed instance group of one region; two of each where it is mixed."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

import pulumi
from pulumi_gcp import compute

from ...jobspecs.fleets import FleetSpec
from ...provisioners.boot.startup_script import MAX_SCRIPT_BYTES
from ...provisioners.gcp.machine.template import (
    EXPIRES_PORT,
    check_fleet,
    fleet_name,
    group,
    is_placed,
    placement,
    template,
)
from ...provisioners.gcp.resources.network import Attachment, within_rule
from ...provisioners.shared import tags
from ..arguments import check_arguments, check_fleet_name, check_size, fleet_spec, refusals
from ..components import child_of, expiry_of
from ..pulumi_arguments import keywords
from .common import TYPES, firewall_arguments, labels_of

_RENAMES = {
    "description": "instance_description",
    "disks.initialize_params": "",
    "guest_accelerators.accelerator_count": "count",
    "guest_accelerators.accelerator_type": "type",
    "metadata": "",
    "metadata.items": "metadata",
    "reservation_affinity.consume_reservation_type": "type",
    "scheduling.local_ssd_recovery_timeout": "local_ssd_recovery_timeouts",
    "service_accounts": "service_account",
    "tags": "",
    "tags.items": "tags",
}
"""Where Pulumi's InstanceTemplate has other names than Compute Engine's InstanceProperties; "": no level of its own."""
_RENAMES_OF_GROUPS = {
    "distribution_policy": "",
    "distribution_policy.target_shape": "distribution_policy_target_shape",
    "distribution_policy.zones": "distribution_policy_zones",
    "update_policy.max_surge": "",
    "update_policy.max_surge.fixed": "max_surge_fixed",
    "update_policy.max_unavailable": "",
    "update_policy.max_unavailable.fixed": "max_unavailable_fixed",
    "update_policy.type_": "type",
}
"""Likewise RegionInstanceGroupManager."""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet."""

    region: str
    """Google Cloud's name of the region, e.g. `us-central1`."""
    machine_type: str
    """E.g. `g2-standard-8`."""
    accelerator: NotRequired[str]
    """Canonical name of the GPU, e.g. `L4`; omitted: none."""
    gpus: NotRequired[str]
    """GPUs of a machine, e.g. `8`; omitted: 1 where there is an accelerator."""
    market: NotRequired[str]
    """`on-demand`, `spot`, or `reservation`; omitted: on-demand."""
    on_demand: NotRequired[int]
    """Of the machines of market spot: so many are bought on demand, as a group of their own; omitted: none."""
    size: NotRequired[int]
    """Machines; omitted: 1. A machine that leaves the group by itself makes it smaller until the next `up`; with
    `ignore_changes=["targetSize"]` on the group (a transformation), for good."""
    zones: NotRequired[list[str]]
    """Where machines may be; omitted: three that Compute Engine chooses."""
    disk_gb: NotRequired[float]
    """Of each machine's disk; omitted: 100."""
    peers: NotRequired[bool]
    """The machines talk to each other: they are in one zone, close to each other where the machine type allows, and may
    reach each other. Omitted: no."""
    lifetime_seconds: NotRequired[int]
    """A machine ends itself after so long, and Compute Engine deletes it ten minutes later; omitted: never."""
    heal: NotRequired[bool]
    """A machine that vanished, or stopped, is made anew; omitted: yes. Whether programs on it are well is not looked
    at: that would take an open port."""
    reservation: NotRequired[str]
    """Of market reservation: `projects/P/reservations/R`, one that only those get into who name it; omitted: any open
    one, and where none has room the machines are on demand."""
    image: pulumi.Input[str]
    """Self link, or `projects/P/global/images/…`, of an image that boots with UEFI."""
    user_data: pulumi.Input[str]
    """Startup script of the machines."""
    network: pulumi.Input[str]
    """Self link of the network: GpuNetwork's `network_link`."""
    subnetwork: pulumi.Input[str]
    """Self link of a subnetwork with Private Google Access: machines get no external addresses."""
    service_account: pulumi.Input[str]
    """E-mail address of who the machines are: MachineRole's `email`."""
    fleet_name: NotRequired[str]
    """Value of the label cloudgpu-fleet, and part of the names of group and machines; omitted: the component's name."""
    expires: NotRequired[pulumi.Input[float]]
    """Epoch seconds after which anybody may set the group to no machines, and an OrphanReaper does; omitted: never.
    Another time replaces no machine."""
    owner: NotRequired[str]
    """As in the tag `cloudgpu-owner`; omitted: made of the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """More of them. Of machines and disks."""


class GpuFleet(pulumi.ComponentResource):
    """Identical machines that Compute Engine keeps up: what vanishes is made anew, and a new template replaces machines
    zone by zone. The template is made of the functions that `cloudgpu submit` starts single machines with."""

    template: pulumi.Output[str]
    """Unique self link of the instance template (of a mixed fleet: of its Spot machines)."""
    group: pulumi.Output[str]
    """Self link of the managed instance group (likewise)."""
    base_group: pulumi.Output[str]
    """Of a mixed fleet: self link of the group of its machines on demand; else ""."""

    def __init__(self, name: str, args: GpuFleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuFleet", name, args, GpuFleetArgs)
        super().__init__(f"{TYPES}:GpuFleet", name, {}, opts)
        fleet = _fleet(name, args)
        called = fleet_name(fleet.name)
        if fleet.peers:
            rule = within_rule(called, f"Machines of cloudgpu's fleet {fleet.name} reach each other", "")
            arguments = firewall_arguments({**rule, "network": args["network"]})
            compute.Firewall(f"{name}-within", **arguments, opts=child_of(self))
        policies = [self._placement(name, called, args["region"])] if is_placed(fleet) else []
        self.base_group = pulumi.Output.from_input("")
        if fleet.on_demand:
            machines = min(fleet.on_demand, fleet.size)
            base = fleet.model_copy(update={"market": "on-demand", "size": machines, "on_demand": 0})
            fleet = fleet.model_copy(update={"size": fleet.size - machines, "on_demand": 0})
            _, self.base_group = self._group(f"{name}-base", f"{called}-base", base, args, policies)
        self.template, self.group = self._group(name, called, fleet, args, policies)
        self.register_outputs({key: getattr(self, key) for key in ("template", "group", "base_group")})

    def _placement(self, name: str, called: str, region: str) -> pulumi.Output[str]:
        return compute.ResourcePolicy(
            f"{name}-placement",
            region=region,
            **keywords(compute.ResourcePolicyArgs, placement(called)),
            opts=child_of(self),
        ).self_link

    def _group(
        self, name: str, called: str, fleet: FleetSpec, args: GpuFleetArgs, policies: list[pulumi.Output[str]]
    ) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
        """Of one market: unique self link of the template, self link of the group."""
        made = compute.InstanceTemplate(
            f"{name}-template",
            name_prefix=f"{called}-",
            description=f"{called} {fleet.template_hash}",
            **template_arguments(fleet, args, policies),
            opts=child_of(self),
        )
        machines = compute.RegionInstanceGroupManager(
            f"{name}-group",
            region=fleet.region,
            named_ports=[expiry_port(args)],
            **_group_arguments(fleet, called, made.self_link_unique),
            # A zone without room would hold up everything else for as long as it has none.
            wait_for_instances=False,
            opts=child_of(self, delete_before_replace=True),
        )
        return made.self_link_unique, machines.self_link


def template_arguments(
    fleet: FleetSpec, args: GpuFleetArgs, policies: list[pulumi.Output[str]] | None = None
) -> dict[str, Any]:
    """Return keyword arguments of compute.InstanceTemplate. Raises ArgumentError for what cannot be a fleet."""
    # Without the expiry, which the group has: another time would be another template, new machines.
    labels = {key: _text(value) for key, value in labels_of(args, fleet.name).items() if key != tags.EXPIRES}
    with refusals(fleet.name):
        wire = template(
            fleet,
            at=Attachment("", _text(args["network"]), _text(args["subnetwork"]), private_access=True),
            image=_text(args["image"]),
            service_account=_text(args["service_account"]),
            labels=labels,
            script=_text(pulumi.Output.from_input(args["user_data"]).apply(_script)),
            reservation=args.get("reservation"),
            policies=[_text(one) for one in policies or []],
        )
    return keywords(compute.InstanceTemplateArgs, _nested(wire), _RENAMES)


def _nested(wire: dict[str, Any]) -> dict[str, Any]:
    """The few things that Pulumi has as one where Compute Engine has a list, or on another level."""
    made = dict(wire)
    (made["service_accounts"],) = wire["service_accounts"]
    if "resource_policies" in wire:
        (made["resource_policies"],) = wire["resource_policies"]
    scheduling = dict(wire["scheduling"])
    if scheduling["provisioning_model"] == "SPOT":
        scheduling["preemptible"] = True  # Compute Engine sets it itself, Pulumi's provider would set false
    if "local_ssd_recovery_timeout" in scheduling:
        scheduling["local_ssd_recovery_timeout"] = [scheduling["local_ssd_recovery_timeout"]]
    affinity = dict(wire["reservation_affinity"])
    named = {key: affinity.pop(key) for key in ("key", "values") if key in affinity}
    if named:
        affinity["specific_reservation"] = named
    return {**made, "scheduling": scheduling, "reservation_affinity": affinity}


def _group_arguments(fleet: FleetSpec, called: str, made_of: pulumi.Input[str]) -> dict[str, Any]:
    """Keyword arguments of compute.RegionInstanceGroupManager."""
    wire = group(fleet, called=called, base=called, template=_text(made_of))
    distribution = {**wire["distribution_policy"], "zones": list(fleet.zones)}  # Pulumi has their names only
    if not fleet.zones:
        del distribution["zones"]
    return keywords(
        compute.RegionInstanceGroupManagerArgs, {**wire, "distribution_policy": distribution}, _RENAMES_OF_GROUPS
    )


def expiry_port(args: Mapping[str, Any]) -> compute.RegionInstanceGroupManagerNamedPortArgs:
    """When the group expires, as a port that nobody connects to: ports are all that a group has which can be changed
    without touching its machines, and that a list of groups tells. It has no labels, its description is for ever, and
    another label or metadata for all of its machines replaces them, as another template does. Without an expiry it
    says so, too: the provider leaves a group's ports as they are where none are given."""
    when = expiry_of(args)
    name = f"{EXPIRES_PORT}never" if when is None else pulumi.Output.concat(EXPIRES_PORT, when)
    return compute.RegionInstanceGroupManagerNamedPortArgs(name=name, port=1)


def _fleet(name: str, args: Mapping[str, Any]) -> FleetSpec:
    """Return the fleet that the arguments describe. Raises ArgumentError."""
    accelerator, called = args.get("accelerator"), args.get("fleet_name") or name
    check_fleet_name(name, called)
    keys = ("market", "on_demand", "size", "disk_gb", "peers", "heal")
    given = {key: args[key] for key in keys if args.get(key) is not None}
    return fleet_spec(
        name,
        {
            **given,
            "name": called,
            "cloud": "gcp",
            "region": args["region"],
            "zones": tuple(args.get("zones") or ()),
            "machine_type": args["machine_type"],
            "accelerator": accelerator,
            "gpus": (args.get("gpus") or "1") if accelerator else "0",
            "lifetime_s": None if args.get("lifetime_seconds") is None else int(args["lifetime_seconds"]),
        },
        check_fleet,
    )


def _script(text: str) -> str:
    return check_size("user_data", text, MAX_SCRIPT_BYTES)


def _text(value: pulumi.Input[str]) -> str:
    """The template is built of texts, and passes them on as they are: an Output may stand for one."""
    return cast(str, value)
