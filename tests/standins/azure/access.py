"""Authorization: machines need role assignments; submitters have full access unless a test restricts them.

A request's action follows from its path and method, as in Azure Resource Manager. A reference to another resource
requires an action on that one, too ("Azure permissions"; see _LINKED).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from . import roles
from .arm import RefusedError, key, parse
from .ask import ApiRequest
from .tokens import Principal
from .world import World, refs

_METHODS = {"PUT": "write", "PATCH": "write", "GET": "read", "HEAD": "read", "DELETE": "delete", "POST": "action"}
_LINKED = {
    "microsoft.network/virtualnetworks/subnets": "join/action",
    "microsoft.network/networksecuritygroups": "join/action",
    "microsoft.network/networkinterfaces": "join/action",
    "microsoft.network/publicipaddresses": "join/action",
    "microsoft.network/natgateways": "join/action",
    "microsoft.managedidentity/userassignedidentities": "assign/action",
    "microsoft.compute/disks": "write",
    "microsoft.compute/capacityreservationgroups": "deploy/action",
    "microsoft.compute/proximityplacementgroups": "write",
}
"""Required action by type of the linked resource. Those of disks, reservations and proximity placement groups are not
verified."""


class Access:
    """Permissions granted by tests."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._allowed: dict[str, list[str]] | None = None
        self._used: set[tuple[str, str]] = set()

    def enforce(self, allowed: dict[str, list[str]] | None) -> None:
        """Restrict names to globs of actions; None: everyone except machines has full access again."""
        self._allowed = allowed
        self._used.clear()

    def used_so_far(self) -> list[tuple[str, str]]:
        return sorted(self._used)

    def entries(self, caller: Principal, scope: str) -> list[dict[str, list[str]]]:
        """Return the caller's permissions as the API lists them: an entry for each role."""
        if caller.machine:
            return roles.entries(self._world, caller, scope)
        held = ["*"] if self._allowed is None else self._allowed.get(caller.name, [])
        data = [one for one in held if one == "*" or one.startswith(roles.BLOBS)]
        return [{"actions": held, "notActions": [], "dataActions": data, "notDataActions": []}]

    def check(self, ask: ApiRequest) -> None:
        """Raise RefusedError unless the caller has the required permissions."""
        needs = [(_action(ask), _scope(ask)), *_linked(ask)]
        if _free(ask):
            return
        for number, (action, scope) in enumerate(needs):
            self._used.add((ask.caller.name, action))
            if not self._may(ask.caller, action, scope):
                raise _denied(ask.caller, action, scope, linked=number > 0)

    def _may(self, caller: Principal, action: str, scope: str) -> bool:
        if caller.machine:
            return roles.may(self._world, caller, action, scope)
        if self._allowed is None:
            return True
        return any(fnmatchcase(action.lower(), glob.lower()) for glob in self._allowed.get(caller.name, ()))


def _free(ask: ApiRequest) -> bool:
    """Return whether the request needs no permission: it polls an operation."""
    return "/locations/operation" in ask.target.kind.lower()


def _action(ask: ApiRequest) -> str:
    method, target = ask.request.method, ask.target
    if not target.namespace:
        if target.group and target.types:
            return "Microsoft.Resources/subscriptions/resourceGroups/resources/read"
        rest = [word.lower() for word in target.types]
        words = "/resourceGroups" if target.group or rest == ["resourcegroups"] else ""
        if rest in (["locations"], ["resources"]):
            words = f"/{rest[0]}"
        return f"Microsoft.Resources/subscriptions{words}/{_METHODS[method]}"
    if not target.types:
        return "Microsoft.Resources/subscriptions/providers/read"
    if target.namespace.lower() == "microsoft.resources" and list(target.types) == ["tags"]:
        return f"Microsoft.Resources/tags/{'read' if method == 'GET' else 'write'}"
    if method == "POST":
        return f"{target.kind}/{target.verb}/action"
    last = f"/{target.verb}" if target.verb and target.verb.lower() != target.kind.rpartition("/")[2].lower() else ""
    return f"{target.kind}{last}/{_METHODS[method]}"


def _scope(ask: ApiRequest) -> str:
    return ask.target.scope if ask.target.kind == roles.KIND else ask.path


def _linked(ask: ApiRequest) -> Iterator[tuple[str, str]]:
    """Yield action and resource of each reference in the body: for a subnet, not for its network."""
    if ask.request.method != "PUT":
        return
    for ref in dict.fromkeys(refs(_readable(ask))):
        kind = parse(ref).kind
        if kind.lower() in _LINKED and not key(ref).startswith(key(ask.path) + "/"):
            yield f"{kind}/{_LINKED[kind.lower()]}", ref


def _readable(ask: ApiRequest) -> dict[str, Any]:
    try:
        body = ask.body
    except RefusedError:
        return {}
    return {name: one for name, one in body.items() if name != "id"}


def _denied(caller: Principal, action: str, scope: str, *, linked: bool) -> RefusedError:
    who = f"The client '{caller.client_id}' with object id '{caller.object_id}'"
    if linked:
        text = (
            f"{who} has permission to perform the action on the scope; however, it does not have permission to perform "
            f"action(s) '{action}' on the linked scope(s) '{scope}' (respectively) or the linked scope(s) are invalid."
        )
        return RefusedError("LinkedAuthorizationFailed", 403, text)
    text = (
        f"{who} does not have authorization to perform action '{action}' over scope '{scope}' or the scope is invalid. "
        "If access was recently granted, please refresh your credentials."
    )
    return RefusedError("AuthorizationFailed", 403, text)


def names(found: Sequence[tuple[str, str]]) -> set[str]:
    """Return the actions only."""
    return {action for _, action in found}
