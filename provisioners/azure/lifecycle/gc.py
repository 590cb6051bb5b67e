"""Resources on Azure that cloudgpu tagged, of every owner, and their removal: for `cloudgpu gc`.

All resources of a launch are in its resource group, so gc lists the groups and then their contents. Only role
assignments are outside: they are found by the group's tags or, after the group was deleted, by their descriptions.
Launches are removed by the same code that a supervisor uses (teardown.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any

from ....jobspecs import catalog
from ...base import ProvisionError
from ...shared import tags
from ...tagged_resources import Leftover, Listing, Resource, Tagged, group_by_launch
from ..catalog.regions import check_regions, regions_of
from ..clients import Clients, Json, answer_of, as_dicts, ignore_not_found
from ..operations import state_of
from ..resources.identity import role_assignments_of
from ..resources.instance_cache import InstanceCache
from ..resources.orphans import find_orphans, remove_orphans
from ..resources.resource_groups import Group, groups_of
from .teardown import Teardown

_GROUPS_AT_ONCE = 8
_ADDRESS_USD_H = Decimal("0.005")
"""List price in US dollars per hour of a public IPv4 address: Standard, static; the same in nearly all regions. Source:
"IP address pricing"."""
_UNPAID = frozenset({"PowerState/deallocated", "PowerState/deallocating"})
"""States in which only the machine's disk is billed. Source: "States and billing status of Azure VMs"."""
_KINDS = {
    "microsoft.compute/virtualmachines": "virtual machine",
    "microsoft.compute/virtualmachinescalesets": "scale set",
    "microsoft.compute/disks": "disk",
    "microsoft.compute/availabilitysets": "availability set",
    "microsoft.compute/proximityplacementgroups": "proximity placement group",
    "microsoft.network/networkinterfaces": "network interface",
    "microsoft.network/publicipaddresses": "public address",
    "microsoft.network/networksecuritygroups": "network security group",
    "microsoft.network/applicationsecuritygroups": "application security group",
    "microsoft.network/virtualnetworks": "virtual network",
    "microsoft.managedidentity/userassignedidentities": "managed identity",
}
"""Resource type in lower case -> name for users; other types are shown as they are."""


# --- find -------------------------------------------------------------------------------------------------------------


def find(regions: Sequence[str], clients: Clients | None = None) -> Listing:
    """Return the resources of every owner in these regions (none: all). Raises ProvisionError."""
    clients = clients or Clients()
    if regions:
        check_regions(regions, regions_of(clients))
    groups = [group for group in groups_of(clients) if not regions or group.region in regions]
    missed: dict[str, str] = {}
    found: list[Tagged] = []
    with ThreadPoolExecutor(_GROUPS_AT_ONCE, "cloudgpu-find") as pool:
        looks = {group.name: pool.submit(lambda one: list(_in_group(clients, one)), group) for group in groups}
        for name, look in looks.items():
            try:
                found += look.result()
            except ProvisionError as error:
                missed[name] = str(error)
    if not regions:  # role assignments have no region
        try:
            found += [
                Tagged(Resource("role assignment", one.name, "", f"on {one.scope.rpartition('/')[2]}"), one.tags)
                for one in find_orphans(clients)
            ]
        except ProvisionError as error:
            missed["role assignments"] = str(error)
    return Listing(group_by_launch("azure", found), missed)


def _in_group(clients: Clients, group: Group) -> Iterator[Tagged]:
    """Yield the group, its contents, and its role assignments. Raises ProvisionError."""
    ours = {**group.tags, tags.TOKEN: group.token}
    yield Tagged(Resource("resource group", group.name, group.region, group.state), ours)
    resources = clients.resources.resources
    for item in _listed(clients, group, partial(resources.list_by_resource_group, group.name, expand="createdTime")):
        kind = _KINDS.get(str(item["type"]).lower(), str(item["type"]))
        look = {"virtual machine": _machine, "disk": _disk}.get(kind)
        detail, price = look(clients, group, str(item["name"])) if look else ("", Decimal(0))
        if kind == "public address":
            price = _ADDRESS_USD_H
        thing = Resource(kind, str(item["name"]), group.region, detail, price, _moment(item.get("createdTime")))
        yield Tagged(thing, {**ours, **(item.get("tags") or {}), tags.TOKEN: group.token})
    for scope, name in role_assignments_of(clients, group):
        ask: Callable[[], Any] = partial(clients.authorization.role_assignments.get, scope, name, cls=answer_of)
        if _unless_gone(clients, f"look at the role assignment {name}", ask) is not None:
            yield Tagged(Resource("role assignment", name, "", f"on {scope.rpartition('/')[2]}"), ours)


def _machine(clients: Clients, group: Group, name: str) -> tuple[str, Decimal | None]:
    """Return a description of the machine, and its price in US dollars an hour; None: unknown."""
    ask = partial(clients.compute.virtual_machines.get, group.name, name, expand="instanceView", cls=answer_of)
    found = _unless_gone(clients, f"look at {name}", ask)
    if found is None:
        return "gone", Decimal(0)
    properties = found["properties"]
    size = str((properties.get("hardwareProfile") or {}).get("vmSize", ""))
    reserved = bool((properties.get("capacityReservation") or {}).get("capacityReservationGroup"))
    market = "spot" if properties.get("priority") == "Spot" else "reservation" if reserved else "on-demand"
    codes = {str(one.get("code")) for one in (properties.get("instanceView") or {}).get("statuses") or ()}
    power = next((code.partition("/")[2] for code in codes if code.startswith("PowerState/")), state_of(found).lower())
    price = Decimal(0) if codes & _UNPAID else _machine_price(size, group.region, market)
    return f"{size} {market}, {power}", price


def _disk(clients: Clients, group: Group, name: str) -> tuple[str, Decimal | None]:
    found = _unless_gone(
        clients, f"look at {name}", partial(clients.compute.disks.get, group.name, name, cls=answer_of)
    )
    if found is None:
        return "gone", Decimal(0)
    size = int(found["properties"].get("diskSizeGB") or 0)
    price = catalog.disk_price("azure", group.region)
    amount = None if price is None else round(price.amount * int(catalog.billed_disk_gb("azure", size)), 6)
    return f"{size} GB, {str(found['properties'].get('diskState', '')).lower()}", amount


def _machine_price(size: str, region: str, market: str) -> Decimal | None:
    for machine in catalog.machine_types("azure").get(size, ()):
        found = catalog.price("azure", size, machine.accelerator, machine.counts[0], region, market)
        return None if found is None else found.amount
    return None


def _listed(clients: Clients, group: Group, ask: Callable[[], Any]) -> list[Json]:
    """Return the listed resources; []: the group no longer exists."""

    def call() -> list[Json]:
        with ignore_not_found():
            return as_dicts(ask())
        return []

    return clients.ask(f"look at what is in {group.name}", call)


def _unless_gone(clients: Clients, doing: str, ask: Callable[[], Any]) -> Json | None:
    def call() -> Json | None:
        with ignore_not_found():
            found: Json = dict(ask())
            return found
        return None

    return clients.ask(doing, call)


def _moment(text: object) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


# --- remove -----------------------------------------------------------------------------------------------------------


def remove(leftover: Leftover, clients: Clients | None = None) -> None:
    """Remove all resources of a leftover. Idempotent; returns when nothing is billed any more. Raises
    ProvisionError."""
    clients = clients or Clients()
    Teardown(clients, InstanceCache(clients), leftover.token).run()
    if all(thing.kind == "role assignment" for thing in leftover.things):
        remove_orphans(clients, leftover.token)
