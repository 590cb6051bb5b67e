"""Fleet: an instance template and a regional managed instance group; two of each if it mixes spot and on-demand."""

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
from ..arguments import check_arguments, check_fleet_name, check_size, fleet_spec, translate_provision_errors
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
"""Pulumi's InstanceTemplate names that differ from Compute Engine's InstanceProperties; "": the level is omitted."""
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
"""Pulumi's RegionInstanceGroupManager names that differ from Compute Engine's; "": the level is omitted."""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet."""

    region: str
    """Name of the Google Cloud region, e.g. `us-central1`."""
    machine_type: str
    """Machine type, e.g. `g2-standard-8`."""
    accelerator: NotRequired[str]
    """Canonical name of the GPU, e.g. `L4`. Default: none."""
    gpus: NotRequired[str]
    """Number of GPUs per machine, e.g. `8`. Default: 1 with an accelerator."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot`, or `reservation`."""
    on_demand: NotRequired[int]
    """Number of a spot fleet's machines that are bought on demand, as a separate group. Default: 0."""
    size: NotRequired[int]
    """Number of machines. Default: 1. A machine that leaves the group shrinks it until the next `up`, or permanently
    with `ignore_changes=["targetSize"]` on the group (a transformation)."""
    zones: NotRequired[list[str]]
    """Zones for the machines. Default: three zones that Compute Engine chooses."""
    disk_gb: NotRequired[float]
    """Size of each machine's disk in GB. Default: 100."""
    peers: NotRequired[bool]
    """The machines communicate: they are in one zone, placed close together where the machine type allows, and may
    connect to each other. Default: false."""
    lifetime_seconds: NotRequired[int]
    """Seconds after which a machine shuts itself down; Compute Engine deletes it ten minutes later. Default: never."""
    heal: NotRequired[bool]
    """Recreate machines that disappear or stop. Default: true. Programs on the machines are not health-checked: that
    would require an open port."""
    reservation: NotRequired[str]
    """With market reservation, a specifically targeted reservation, `projects/P/reservations/R`. Default: any open one;
    without capacity there the machines are on demand."""
    read_secrets: NotRequired[bool]
    """The machines' tokens get the OAuth scope cloud-platform, without which Secret Manager refuses them. Default:
    false."""
    image: pulumi.Input[str]
    """Self link, or `projects/P/global/images/…`, of an image that boots with UEFI."""
    user_data: pulumi.Input[str]
    """Startup script of the machines."""
    network: pulumi.Input[str]
    """Self link of the network: GpuNetwork's `network_link`."""
    subnetwork: pulumi.Input[str]
    """Self link of a subnetwork with Private Google Access: machines get no external addresses."""
    service_account: pulumi.Input[str]
    """E-mail address of the machines' service account: MachineRole's `email`."""
    fleet_name: NotRequired[str]
    """Value of the label cloudgpu-fleet and part of the group's and machines' names. Default: the component's name."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds: after it any cleanup may scale the group to zero, and OrphanReaper does. Default: never.
    A change replaces no machine."""
    owner: NotRequired[str]
    """Value of the label `cloudgpu-owner`. Default: derived from the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional labels of machines and disks."""


class GpuFleet(pulumi.ComponentResource):
    """Fleet of identical machines: lost machines are recreated, and a new template replaces machines zone by zone.

    The template is built by the same functions as the single machines of `cloudgpu submit`.
    """

    template: pulumi.Output[str]
    """Unique self link of the instance template; in a mixed fleet, the spot machines' template."""
    group: pulumi.Output[str]
    """Self link of the managed instance group; in a mixed fleet, the spot machines' group."""
    base_group: pulumi.Output[str]
    """In a mixed fleet, the self link of the on-demand machines' group; otherwise ""."""

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
        """Create template and group of one market; return the template's unique self link and the group's self link."""
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
            # Waiting would block the update for as long as a zone lacks capacity.
            wait_for_instances=False,
            opts=child_of(self, delete_before_replace=True),
        )
        return made.self_link_unique, machines.self_link


def template_arguments(
    fleet: FleetSpec, args: GpuFleetArgs, policies: list[pulumi.Output[str]] | None = None
) -> dict[str, Any]:
    """Return keyword arguments of compute.InstanceTemplate. Raises ArgumentError for an unsupported fleet."""
    # Without the expiry, which the group has: a new expiry would change the template and replace all machines.
    labels = {key: _text(value) for key, value in labels_of(args, fleet.name).items() if key != tags.EXPIRES}
    with translate_provision_errors(fleet.name):
        wire = template(
            fleet,
            at=Attachment("", _text(args["network"]), _text(args["subnetwork"]), private_access=True),
            image=_text(args["image"]),
            service_account=_text(args["service_account"]),
            labels=labels,
            script=_text(pulumi.Output.from_input(args["user_data"]).apply(_script)),
            reservation=args.get("reservation"),
            reads_secrets=args.get("read_secrets", False),
            policies=[_text(one) for one in policies or []],
        )
    return keywords(compute.InstanceTemplateArgs, _nested(wire), _RENAMES)


def _nested(wire: dict[str, Any]) -> dict[str, Any]:
    """Restructure fields that Pulumi nests differently, or has as one value where Compute Engine has a list."""
    made = dict(wire)
    (made["service_accounts"],) = wire["service_accounts"]
    if "resource_policies" in wire:
        (made["resource_policies"],) = wire["resource_policies"]
    scheduling = dict(wire["scheduling"])
    if scheduling["provisioning_model"] == "SPOT":
        scheduling["preemptible"] = True  # Compute Engine sets it; Pulumi's provider would send false
    if "local_ssd_recovery_timeout" in scheduling:
        scheduling["local_ssd_recovery_timeout"] = [scheduling["local_ssd_recovery_timeout"]]
    affinity = dict(wire["reservation_affinity"])
    named = {key: affinity.pop(key) for key in ("key", "values") if key in affinity}
    if named:
        affinity["specific_reservation"] = named
    return {**made, "scheduling": scheduling, "reservation_affinity": affinity}


def _group_arguments(fleet: FleetSpec, called: str, made_of: pulumi.Input[str]) -> dict[str, Any]:
    """Return keyword arguments of compute.RegionInstanceGroupManager."""
    wire = group(fleet, called=called, base=called, template=_text(made_of))
    distribution = {**wire["distribution_policy"], "zones": list(fleet.zones)}  # Pulumi expects zone names only
    if not fleet.zones:
        del distribution["zones"]
    return keywords(
        compute.RegionInstanceGroupManagerArgs, {**wire, "distribution_policy": distribution}, _RENAMES_OF_GROUPS
    )


def expiry_port(args: Mapping[str, Any]) -> compute.RegionInstanceGroupManagerNamedPortArgs:
    """Return the group's expiry as a named port that is never used for connections.

    Only named ports are returned by a list of groups and can be changed without effect on the machines. A group has no
    labels, its description is immutable, and changed labels or metadata of all its machines replace the machines.
    Without an expiry the port is named `…never`, because the provider keeps the old ports if none are given.
    """
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
    """Cast an input to str: the template's builder only passes values on, so an Output can take a string's place."""
    return cast(str, value)
