"""Resources of a launch with a dedicated group: a regional managed instance group, its template, and an optional
placement policy.

All are named by the launch token, like its firewall rule, and have its tags in their descriptions, since groups and
policies have no labels. They are found by name or name pattern, with one call for all regions, or only in the launch's
region if an unreachable zone makes that call fail (listing.py).
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
from ..clients import READ_S, WRITE_S, Clients, ignore_not_found
from ..labels import PREFIX, from_description, launch_name, region_of
from ..listing import ask_everywhere, avoid, is_avoided
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

GROUPS = "instanceGroupManagers"
OURS = f"{PREFIX}-[0-9a-f]{{32}}"
"""Pattern of names of launches' resources; fleets' names differ (template.fleet_name())."""
_MAKE_S = 120.0
"""Timeout in seconds for creating or removing a template or a policy, and for creating a group without its machines."""
_POLL_S = 3.0
_UNREACHABLE = "UNREACHABLE"


class Part(NamedTuple):
    """An existing group, template or policy."""

    kind: str
    """A key of KINDS."""
    name: str
    region: str
    """Region; "": not regional."""
    tags: Mapping[str, str]
    created: str
    """Creation time (RFC 3339)."""
    size: int = 0
    """Target size of a group; otherwise 0."""
    zones: tuple[str, ...] = ()
    """Allowed zones of a group; (): not limited."""

    @property
    def token(self) -> str:
        """Token of its launch."""
        return self.tags.get(tags.TOKEN, "")


class Parts(NamedTuple):
    """Resources in a list."""

    found: tuple[Part, ...]
    unreachable: Mapping[str, str]
    """Region or zone -> reason why it could not be listed."""

    def of(self, region: str) -> tuple[Part, ...]:
        """Return all resources. Raises ProvisionError(transient) if `region` ("": any) was unreachable."""
        for place, why in self.unreachable.items():
            if region in {"", place, region_of(place)}:
                message = f"look for what was made: {place} cannot be reached: {why}"
                raise ProvisionError("transient", message, scope="region", code=_UNREACHABLE)
        return self.found


class Kind(NamedTuple):
    """Functions to list and delete resources of a kind."""

    pages: Callable[[Clients, str], Iterator[tuple[Any, Any]]]
    """(clients, filter) -> pages of the lists of all regions, as (scope, (resources, warning))."""
    of_region: Callable[[Clients, str, str], Iterator[Any]]
    """(clients, filter, region) -> resources in the list of one region."""
    delete: Callable[[Clients, Part], compute_v1.Operation]


def find(clients: Clients, kind: str, pattern: str = OURS, region: str = "") -> Parts:
    """Return resources of a kind whose name matches a regular expression, in all regions. One call, in pages.

    `region`: region that is queried if the list of all regions fails; "": no fallback. Raises ProvisionError.
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
    """Delete a launch's template or policy, and return when it is gone. `region`: "" if unknown. Raises
    ProvisionError."""
    name = launch_name(token)

    def is_there() -> bool:
        return bool(find(clients, kind, name, region).of(region))

    for one in find(clients, kind, name, region).of(region):
        delete = functools.partial(KINDS[kind].delete, clients, one)
        operations.remove(clients, delete, is_there, doing=f"remove the {kind} {name}", retry_timeout_s=_MAKE_S)


# --- groups -----------------------------------------------------------------------------------------------------------


class Groups:
    """Cache of listed groups, shared by all jobs of a process."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache: PollCache[str, Parts] = PollCache(
            lambda region: find(clients, "group", region=region), clients.clock
        )

    def of_launch(self, token: str, region: str) -> Part | None:
        """Return a launch's group, queried by name if no list shows it; None: it does not exist. Raises
        ProvisionError."""
        name = launch_name(token)
        found = next((one for one in self._listed(region).of(region) if one.name == name), None)
        return found or get(self._clients, name, region)

    def _listed(self, region: str) -> Parts:
        """Return a list of all regions, which all jobs share, with a fallback to the region's list."""
        if not is_avoided(self._clients):
            try:
                return self._cache.get("")
            except ProvisionError as error:
                avoid(self._clients, error)
        return self._cache.get(region)


def get(clients: Clients, name: str, region: str) -> Part | None:
    """Return a group; None: it does not exist."""

    def ask() -> Part | None:
        with ignore_not_found():
            found = clients.groups.get(
                project=clients.project, region=region, instance_group_manager=name, retry=None, timeout=READ_S
            )
            return _part("group", found)
        return None

    return clients.ask(f"look at the group {name}", ask)


def trouble(clients: Clients, group: Part) -> ProvisionError | None:
    """Return the error that keeps a group from creating machines, if a retry will not solve it; None: no such error.

    A zone without capacity does not count while the group has other zones. One call. Raises ProvisionError.
    """

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
    """Delete a launch's group with all its machines, and return when it is gone, so that no more machines are created.

    `region`: "" if unknown; `until`: monotonic time. Raises ProvisionError; the call may then be repeated.
    """
    name = launch_name(token)
    while left := _end_once(clients, name, region):
        if clients.clock.monotonic() > until:
            message = f"the group {name} in {', '.join(left)} was ended minutes ago, and is not gone yet"
            raise ProvisionError("transient", message, scope="region", code="StillThere")
        clients.clock.sleep(_POLL_S)


def _end_once(clients: Clients, name: str, region: str) -> list[str]:
    """Start the deletion; return the regions where the group exists, or may still be created after a lost response."""
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
    """Start deleting a group. Return False if it does not exist."""

    def start() -> bool:
        with ignore_not_found():
            KINDS["group"].delete(clients, group)
            return True
        return False

    return clients.ask(f"delete the group {group.name} in {group.region}", start)


# --- how resources of each kind are listed and deleted
# --------------------------------------------------------------------


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
    """List templates as a single page: they are global."""
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
"""Kind -> its functions, in removal order: resources that others depend on are last."""


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
    """Return the zone in an instance's URL."""
    return url.partition("/zones/")[2].partition("/")[0]
