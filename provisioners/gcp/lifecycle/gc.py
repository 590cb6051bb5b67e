"""Find and remove resources labelled by cloudgpu, of all owners, on Compute Engine, for `cloudgpu gc`.

Launches are removed by the same code that a supervisor uses (teardown.py). This module finds the resources without
local state: instances, disks that outlived them, and resources without labels, whose tags are in the description:
firewall rules, groups, their templates and placement policies. The rule `cloudgpu-closed-<network>` belongs to no
launch and is kept.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ....jobspecs import catalog
from ....jobspecs.suggest import did_you_mean
from ...base import ProvisionError
from ...shared import tags
from ...tagged_resources import Leftover, Listing, Resource, Tagged, group_by_launch
from ..clients import READ_S, WRITE_S, Clients, ignore_not_found, need_sdk
from ..labels import from_labels, launch_name, region_of
from ..resources import instance_groups, network
from ..resources.instance_cache import InstanceCache
from ..rest import last_part
from .teardown import Teardown, delete

if TYPE_CHECKING:
    from google.cloud import compute_v1

_OURS = f"labels.{tags.OWNER}:*"
_MARKETS = {"SPOT": "spot", "FLEX_START": "flex-start", "RESERVATION_BOUND": "reservation"}
_PARTS = {"group": "instance group", "template": "instance template", "placement policy": "placement policy"}
"""Kind in instance_groups.py -> name for users. Teardown removes these; all of them have a token."""
_STOPPED = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
"""States in which only the instance's disk is billed."""
_DELETING_S = 180.0
"""Seconds for which remove() waits for a deletion that it starts itself."""
_POLL_S = 3.0
_UNREACHABLE = "UNREACHABLE"


# --- find -------------------------------------------------------------------------------------------------------------


def find(regions: Sequence[str], clients: Clients | None = None) -> Listing:
    """Return the resources of every owner in these regions (none: all). Raises ProvisionError.

    Six calls list the resources of all regions. Firewall rules and templates have no region.
    """
    need_sdk()
    clients = clients or Clients()
    _check_regions(clients, regions)
    missed: dict[str, str] = {}
    found = [*_instances(clients, missed), *_disks(clients, missed), *_rules(clients), *_parts(clients, missed)]
    wanted = [one for one in found if not regions or not one.thing.region or one.thing.region in regions]
    kept = group_by_launch("gcp", wanted)
    if regions:  # rules have no region: skip launches with machines in other regions only
        elsewhere = {one.tags.get(tags.TOKEN) for one in found if one.thing.region} - {
            one.tags.get(tags.TOKEN) for one in wanted if one.thing.region
        }
        kept = [one for one in kept if one.token not in elsewhere]
    return Listing(
        kept, {one: why for one, why in missed.items() if not regions or {one, region_of(one)} & set(regions)}
    )


def _check_regions(clients: Clients, regions: Sequence[str]) -> None:
    if not regions:
        return
    path, doing = "compute/v1/projects/{project}/regions", "ask for the project's regions"
    known = [
        item["name"]
        for page in clients.rest.pages("compute", path, doing, fields="items(name),nextPageToken")
        for item in page.get("items") or ()
    ]
    for region in regions:
        if region not in known:
            meant = did_you_mean(region, known) or f"there are {', '.join(sorted(known))}"
            message = f"Google Cloud has no region {region} for this project; {meant}"
            raise ProvisionError("invalid", message, scope="region")


def _instances(clients: Clients, missed: dict[str, str]) -> Iterator[Tagged]:
    from google.cloud import compute_v1

    request = compute_v1.AggregatedListInstancesRequest(project=clients.project, filter=_OURS, max_results=500)

    def ask() -> list[tuple[str, compute_v1.InstancesScopedList]]:
        return list(clients.instances.aggregated_list(request, retry=None, timeout=READ_S))

    for scope, listed in clients.ask("look for machines that are labelled", ask):
        _note(scope, listed.warning, missed)
        for one in listed.instances:
            zone = last_part(one.zone)
            machine_type, market = last_part(one.machine_type), _MARKETS.get(one.scheduling.provisioning_model, "")
            thing = Resource(
                "instance",
                f"{zone}/{one.name}",
                region_of(zone),
                f"{machine_type} {market or 'on-demand'}, {one.status}",
                Decimal(0) if one.status in _STOPPED else _price(one, region_of(zone), market or "on-demand"),
                _moment(one.creation_timestamp),
            )
            yield Tagged(thing, from_labels(one.labels))


def _disks(clients: Clients, missed: dict[str, str]) -> Iterator[Tagged]:
    from google.cloud import compute_v1

    request = compute_v1.AggregatedListDisksRequest(project=clients.project, filter=_OURS, max_results=500)

    def ask() -> list[tuple[str, compute_v1.DisksScopedList]]:
        return list(clients.disks.aggregated_list(request, retry=None, timeout=READ_S))

    for scope, listed in clients.ask("look for disks that are labelled", ask):
        _note(scope, listed.warning, missed)
        for one in listed.disks:
            zone = last_part(one.zone)
            price = catalog.disk_price("gcp", region_of(zone))
            thing = Resource(
                "disk",
                f"{zone}/{one.name}",
                region_of(zone),
                f"{one.size_gb} GB, {'attached' if one.users else 'not attached'}",
                None if price is None else round(price.amount * one.size_gb, 6),
                _moment(one.creation_timestamp),
            )
            yield Tagged(thing, from_labels(one.labels))


def _rules(clients: Clients) -> Iterator[Tagged]:
    for rule in network.rules_of(clients):
        yield Tagged(Resource("firewall rule", rule.name, ""), rule.tags)


def _parts(clients: Clients, missed: dict[str, str]) -> Iterator[Tagged]:
    for kind, called in _PARTS.items():
        listed = instance_groups.find(clients, kind)
        missed |= {place: f"{place} cannot be reached: {why}" for place, why in listed.unreachable.items()}
        for one in listed.found:
            if one.token:
                size = f"of {one.size} machines" if kind == "group" else ""
                thing = Resource(called, f"{one.region}/{one.name}".lstrip("/"), one.region, size)
                yield Tagged(dataclasses.replace(thing, created=_moment(one.created)), one.tags)


def _note(scope: str, warning: Any, missed: dict[str, str]) -> None:  # the SDK does not name its type
    """Record an unreachable zone, which must not be mistaken for an empty one."""
    if warning.code == _UNREACHABLE:
        missed[last_part(scope)] = f"{last_part(scope)} cannot be reached: {warning.message}"


def _price(instance: compute_v1.Instance, region: str, market: str) -> Decimal | None:
    """Return US dollars per hour from the tables; None: unknown."""
    name = last_part(instance.machine_type)
    gpus = next(iter(instance.guest_accelerators), None)
    known = catalog.machine_types("gcp").get(name, ())
    if len(known) == 1:  # its accelerators are built in
        [machine] = known
        count = next(iter(machine.counts), Fraction(0))
    else:
        named = "" if gpus is None else last_part(gpus.accelerator_type)
        found = next((one for one in known if one.provider_accelerator == named), None)
        if found is None:
            return None
        machine, count = found, Fraction(0 if gpus is None else gpus.accelerator_count)
    price = catalog.price("gcp", name, machine.accelerator, count, region, market)
    return None if price is None else price.amount


def _moment(text: str) -> float | None:
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


# --- remove -----------------------------------------------------------------------------------------------------------


def remove(leftover: Leftover, clients: Clients | None = None) -> None:
    """Remove all resources of a leftover. Idempotent; returns when nothing is billed any more. Raises
    ProvisionError."""
    clients = clients or Clients()
    named = [thing.id for thing in leftover.things if thing.kind == "instance"]
    if leftover.token:
        Teardown(clients, InstanceCache(clients), leftover.token, leftover.owner, named).run()
    for kind, remove_one in _REMOVE.items():
        for thing in leftover.things:
            if thing.kind == kind:
                remove_one(clients, thing.id)


def _remove_instance(clients: Clients, machine: str) -> None:
    """Delete an instance with its disk, and wait until it is gone."""
    zone, _, name = machine.partition("/")
    delete(clients, machine)
    _wait_until_gone(
        clients,
        machine,
        lambda: clients.instances.get(project=clients.project, zone=zone, instance=name, retry=None, timeout=READ_S),
    )


def _remove_disk(clients: Clients, disk: str) -> None:
    zone, _, name = disk.partition("/")

    def start() -> None:
        with ignore_not_found():
            clients.disks.delete_unary(project=clients.project, zone=zone, disk=name, retry=None, timeout=WRITE_S)

    clients.ask(f"delete the disk {name} in {zone}", start)
    _wait_until_gone(
        clients,
        disk,
        lambda: clients.disks.get(project=clients.project, zone=zone, disk=name, retry=None, timeout=READ_S),
    )


def _wait_until_gone(clients: Clients, what: str, look: Callable[[], object]) -> None:
    def is_there() -> bool:
        with ignore_not_found():
            look()
            return True
        return False

    until = clients.clock.monotonic() + _DELETING_S
    while clients.ask(f"look at {what}", is_there):
        if clients.clock.monotonic() > until:
            message = f"{what} was told to end {_DELETING_S:.0f} s ago, and is still there"
            raise ProvisionError("transient", message, scope="zone", code="StillThere")
        clients.clock.sleep(_POLL_S)


def _remove_rule(clients: Clients, name: str) -> None:
    network.remove_rule(clients, name.removeprefix(launch_name("")))


_REMOVE: dict[str, Callable[[Clients, str], None]] = {
    "instance": _remove_instance,
    "disk": _remove_disk,
    "firewall rule": _remove_rule,
}
"""Kind -> function that removes it, in order: resources that others depend on are last."""
