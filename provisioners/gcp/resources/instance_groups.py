"""What a launch with a group of its own makes beside machines and firewall rules: a managed instance group of one
region, its template, and for machines that are to be close to each other a placement policy.

All of them are named by the launch's token, as its firewall rule is, and have its tags in their descriptions: groups
and policies have no labels. Each is found by its name, or by what names of ours look like, in all regions by one call;
or in the region of its launch, where a zone of the world keeps Compute Engine from that (listing.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base import ProvisionError
from ...shared import tags
from ...shared.api_calls import UNKNOWN
from ...shared.errors import classify
from ...shared.poll_cache import PollCache
from .. import operations
from ..clients import READ_S, WRITE_S, Clients, gone_is_fine
from ..labels import PREFIX, from_description, launch_name, region_of
from ..listing import ask_everywhere, avoid, is_avoided
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

GROUPS = "instanceGroupManagers"
OURS = f"{PREFIX}-[0-9a-f]{{32}}"
"""Names of what belongs to a launch: a fleet's things are called otherwise (template.fleet_name())."""
_MAKE_S = 120.0
"""For a template or a policy to be made or removed; also for a group to be made, without its machines."""
_POLL_S = 3.0
_UNREACHABLE = "UNREACHABLE"


class Part(NamedTuple):
    """A group, template or policy that is there."""

    kind: str
    """A key of KINDS."""
    name: str
    region: str
    """"": it is of none."""
    tags: Mapping[str, str]
    created: str
    """RFC 3339."""
    size: int = 0
    """Of a group: how many machines it is to have."""
    zones: tuple[str, ...] = ()
    """Of a group: where it may have them, as far as it says so."""

    @property
    def token(self) -> str:
        """Of the launch."""
        return self.tags.get(tags.TOKEN, "")


class Parts(NamedTuple):
    """What a list tells."""

    found: tuple[Part, ...]
    unreachable: Mapping[str, str]
    """Region or zone -> why nothing is known of it."""

    def of(self, region: str) -> tuple[Part, ...]:
        """All. Raises ProvisionError(transient) if this region, "" for any, could not be reached: nothing was asked
        there."""
        for place, why in self.unreachable.items():
            if region in {"", place, region_of(place)}:
                message = f"look for what was made: {place} cannot be reached: {why}"
                raise ProvisionError("transient", message, scope="region", code=_UNREACHABLE)
        return self.found


class Kind(NamedTuple):
    """How things of a kind are listed and deleted."""

    pages: Callable[[Clients, str], Iterator[tuple[Any, Any]]]
    """(clients, filter) -> pages of the lists of all regions: each thing, and its parts."""
    of_region: Callable[[Clients, str, str], Iterator[Any]]
    """(clients, filter, region) -> those in the list of one region."""
    delete: Callable[[Clients, Part], compute_v1.Operation]


def find(clients: Clients, kind: str, pattern: str = OURS, region: str = "") -> Parts:
    """Those of a kind whose name fits a regular expression, in all regions. One call, as pages.

    `region`: the one that matters, "": all. It is listed if not all zones of the world can be. Raises ProvisionError.
    """
    wanted, doing = f'name eq "{pattern}"', f"look for what is called {pattern}: {kind}"

    def everywhere() -> Parts:
        found: list[Part] = []
        unreachable: dict[str, str] = {}
        for scope, (resources, warning) in KINDS[kind].pages(clients, wanted):
            found += [_part(kind, one) for one in resources]
            if warning is not None and warning.code == _UNREACHABLE:
                unreachable[last_part(scope)] = warning.message
        return Parts(tuple(found), unreachable)

    def in_region() -> Parts:
        return Parts(tuple(_part(kind, one) for one in KINDS[kind].of_region(clients, wanted, region)), {})

    there = (lambda: clients.ask(f"{doing} in {region}", in_region)) if region else None
    return ask_everywhere(clients, doing, everywhere, there)


def remove(clients: Clients, kind: str, token: str, region: str) -> None:
    """The template or policy of a launch; returns when it is gone. `region`: "" if it is not known. Raises
    ProvisionError."""
    name = launch_name(token)

    def is_there() -> bool:
        return bool(find(clients, kind, name, region).of(region))

    for one in find(clients, kind, name, region).of(region):
        delete = functools.partial(KINDS[kind].delete, clients, one)
        operations.remove(clients, delete, is_there, doing=f"remove the {kind} {name}", patience_s=_MAKE_S)


# --- groups -----------------------------------------------------------------------------------------------------------


class Groups:
    """Cache of the groups that lists show, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache: PollCache[str, Parts] = PollCache(
            lambda region: find(clients, "group", region=region), clients.clock
        )

    def of_launch(self, token: str, region: str) -> Part | None:
        """Its group; None: there is none. One that no list shows is asked for by its name. Raises ProvisionError."""
        name = launch_name(token)
        found = next((one for one in self._listed(region).of(region) if one.name == name), None)
        return found or get(self._clients, name, region)

    def _listed(self, region: str) -> Parts:
        """Return a look at all regions, which all jobs share; if that fails, one at the region."""
        if not is_avoided(self._clients):
            try:
                return self._cache.get("")
            except ProvisionError as error:
                avoid(self._clients, error)
        return self._cache.get(region)


def get(clients: Clients, name: str, region: str) -> Part | None:
    """A group; None: there is none."""

    def ask() -> Part | None:
        with gone_is_fine():
            found = clients.groups.get(
                project=clients.project, region=region, instance_group_manager=name, retry=None, timeout=READ_S
            )
            return _part("group", found)
        return None

    return clients.ask(f"look at the group {name}", ask)


def trouble(clients: Clients, group: Part) -> ProvisionError | None:
    """Why Compute Engine makes no machines for a group, where it says so and a later try will not mend it. A zone that
    has none is no reason where there are others. One call. Raises ProvisionError."""

    def ask() -> list[compute_v1.InstanceManagedByIgmError]:
        return list(
            clients.groups.list_errors(
                project=clients.project,
                region=group.region,
                instance_group_manager=group.name,
                retry=None,
                timeout=READ_S,
            )
        )

    refusals: list[ProvisionError] = []
    refusing: set[str] = set()
    for one in clients.ask(f"look at the errors of the group {group.name}", ask):
        zone = _zone_of(one.instance_action_details.instance)
        doing = f"start a machine of the group {group.name} in {zone or group.region}"
        refusal = classify("gcp", code=one.error.code, message=one.error.message, doing=doing, is_operation=True)
        if refusal.error_class in UNKNOWN:
            continue
        if refusal.scope != "zone":
            return refusal
        refusals.append(refusal)
        refusing.add(zone)
    return refusals[-1] if refusals and refusing.issuperset(group.zones) else None


def end(clients: Clients, token: str, region: str, until: float) -> None:
    """Have a launch's group deleted, with all of its machines; returns when there is none. So nothing makes machines of
    this launch any more. `region`: "" if it is not known; `until`: steady time. Raises ProvisionError, and may then be
    called again."""
    name = launch_name(token)
    while left := _end_once(clients, name, region):
        if clients.clock.monotonic() > until:
            message = f"the group {name} in {', '.join(left)} was ended minutes ago, and is not gone yet"
            raise ProvisionError("transient", message, scope="region", code="StillThere")
        clients.clock.sleep(_POLL_S)


def _end_once(clients: Clients, name: str, region: str) -> list[str]:
    """Where it is yet, or on its way by a call whose answer was lost, maybe."""
    listed = find(clients, "group", name, region).of(region)
    done = operations.of_things(clients, GROUPS, name, region)
    begun = {insert.region: insert for insert in operations.begun_by(done).values()}
    ending = {one.region for one in done if one.verb == "delete" and not one.finished}
    there = {one.region: one for one in listed}
    left = []
    for place in sorted({*there, *begun}):
        part = there.get(place) or Part("group", name, place, {}, "")
        is_coming = place in begun and not begun[place].finished
        if place in ending or _delete(clients, part) or is_coming:
            left.append(place)
    return left


def _delete(clients: Clients, group: Part) -> bool:
    """False: there is none."""

    def start() -> bool:
        with gone_is_fine():
            KINDS["group"].delete(clients, group)
            return True
        return False

    return clients.ask(f"delete the group {group.name} in {group.region}", start)


# --- how things of each kind are listed, and deleted ------------------------------------------------------------------


def _pages_of_groups(clients: Clients, wanted: str) -> Iterator[tuple[Any, Any]]:
    from google.cloud import compute_v1

    request = compute_v1.AggregatedListInstanceGroupManagersRequest(
        project=clients.project, filter=wanted, max_results=500
    )
    for scope, listed in clients.all_groups.aggregated_list(request, retry=None, timeout=READ_S):
        yield scope, (listed.instance_group_managers, listed.warning)


def _groups_of_region(clients: Clients, wanted: str, region: str) -> Iterator[Any]:
    from google.cloud import compute_v1

    request = compute_v1.ListRegionInstanceGroupManagersRequest(
        project=clients.project, region=region, filter=wanted, max_results=500
    )
    yield from clients.groups.list(request, retry=None, timeout=READ_S)


def _pages_of_templates(clients: Clients, wanted: str) -> Iterator[tuple[Any, Any]]:
    """They are of no region."""
    yield "global", (list(_templates(clients, wanted)), None)


def _templates(clients: Clients, wanted: str, _region: str = "") -> Iterator[Any]:
    from google.cloud import compute_v1

    request = compute_v1.ListInstanceTemplatesRequest(project=clients.project, filter=wanted, max_results=500)
    yield from clients.templates.list(request, retry=None, timeout=READ_S)


def _pages_of_policies(clients: Clients, wanted: str) -> Iterator[tuple[Any, Any]]:
    from google.cloud import compute_v1

    request = compute_v1.AggregatedListResourcePoliciesRequest(project=clients.project, filter=wanted, max_results=500)
    for scope, listed in clients.policies.aggregated_list(request, retry=None, timeout=READ_S):
        yield scope, (listed.resource_policies, listed.warning)


def _policies_of_region(clients: Clients, wanted: str, region: str) -> Iterator[Any]:
    from google.cloud import compute_v1

    request = compute_v1.ListResourcePoliciesRequest(
        project=clients.project, region=region, filter=wanted, max_results=500
    )
    yield from clients.policies.list(request, retry=None, timeout=READ_S)


def _delete_group(clients: Clients, one: Part) -> compute_v1.Operation:
    return clients.groups.delete_unary(
        project=clients.project, region=one.region, instance_group_manager=one.name, retry=None, timeout=WRITE_S
    )


def _delete_template(clients: Clients, one: Part) -> compute_v1.Operation:
    return clients.templates.delete_unary(
        project=clients.project, instance_template=one.name, retry=None, timeout=WRITE_S
    )


def _delete_policy(clients: Clients, one: Part) -> compute_v1.Operation:
    return clients.policies.delete_unary(
        project=clients.project, region=one.region, resource_policy=one.name, retry=None, timeout=WRITE_S
    )


KINDS = {
    "group": Kind(_pages_of_groups, _groups_of_region, _delete_group),
    "template": Kind(_pages_of_templates, _templates, _delete_template),
    "placement policy": Kind(_pages_of_policies, _policies_of_region, _delete_policy),
}
"""In the order in which they are removed: what others depend on goes last."""


def _part(kind: str, one: Any) -> Part:  # three of the SDK's classes
    is_group = kind == "group"
    return Part(
        kind,
        one.name,
        last_part(one.region),
        from_description(one.description),
        one.creation_timestamp,
        one.target_size if is_group else 0,
        tuple(last_part(zone.zone) for zone in one.distribution_policy.zones) if is_group else (),
    )


def _zone_of(url: str) -> str:
    """Of an instance."""
    return url.partition("/zones/")[2].partition("/")[0]
