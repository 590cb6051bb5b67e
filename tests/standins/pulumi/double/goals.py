"""Desired state of a resource as a program registers it, and handling of ignored changes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import wire
from ..wire import Props
from .backend import Name
from .state import STACK_TYPE


class UnmodelledError(Exception):
    """The program uses a feature that the double does not support."""


@dataclass(frozen=True)
class Goal:
    """One registration."""

    urn: str
    type: str
    name: str
    custom: bool
    parent: str
    inputs: Props
    provider: str
    version: str
    dependencies: list[str]
    property_dependencies: dict[str, list[str]]
    protect: bool
    delete_before_replace: bool | None
    """None: as the provider's diff says."""
    ignore_changes: list[str]
    replace_on_changes: list[str]
    aliases: list[str]
    """Alias URNs."""
    additional_secret_outputs: list[str] = field(default_factory=list)
    retain_on_delete: bool = False
    deleted_with: str = ""

    @property
    def at(self) -> dict[str, str]:
        return {"urn": self.urn, "type": self.type, "name": self.name}

    @classmethod
    def of(cls, request: Any, stack: Name) -> Goal:
        """Convert a registration request. Raises UnmodelledError."""
        for name in ("importId", "remote", "replace_with", "transforms", "hooks", "packageRef", "state_migrations"):
            value = getattr(request, name)
            if value.ListFields() if name == "hooks" else value:
                raise UnmodelledError(f"{request.type} {request.name}: the double of the engine does not do {name}")
        return cls(
            urn=urn_of(stack, request.parent, request.type, request.name),
            type=request.type,
            name=request.name,
            custom=request.custom,
            parent=request.parent,
            inputs=wire.without_outputs(wire.from_struct(request.object)),
            provider=request.provider,
            version=request.version,
            dependencies=sorted(set(request.dependencies)),
            property_dependencies={
                key: sorted(value.urns) for key, value in request.propertyDependencies.items() if value.urns
            },
            protect=request.protect,
            delete_before_replace=request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None,
            ignore_changes=list(request.ignoreChanges),
            replace_on_changes=list(request.replaceOnChanges),
            aliases=[*request.aliasURNs, *(_alias(one, request, stack) for one in request.aliases)],
            additional_secret_outputs=list(request.additionalSecretOutputs),
            retain_on_delete=request.retainOnDelete,
            deleted_with=request.deletedWith,
        )


def urn_of(stack: Name, parent: str, kind: str, name: str) -> str:
    """Return the URN, whose type is prefixed with the parents' types, except the stack's."""
    above = parent.split("::")[2] if parent else STACK_TYPE
    qualified = kind if above == STACK_TYPE else f"{above}${kind}"
    return f"urn:pulumi:{stack.stack}::{stack.project}::{qualified}::{name}"


def _alias(alias: Any, request: Any, stack: Name) -> str:
    if alias.WhichOneof("alias") == "urn":
        return str(alias.urn)
    spec = alias.spec
    parent = "" if spec.noParent else spec.parentUrn or request.parent
    there = Name(spec.project or stack.project, spec.stack or stack.stack)
    return urn_of(there, parent, spec.type or request.type, spec.name or request.name)


def ignoring(new: Props, old: Mapping[str, Any], paths: Iterable[str]) -> Props:
    """Return the new inputs with the old values at these paths: `tags`, `tags.Name`, `scaling[0].size`, `*`."""
    result: Props = copy.copy(new)
    for path in paths:
        if path == "*":
            return dict(old)
        result = _replaced(result, old, _steps(path))
    return result


def _steps(path: str) -> list[str | int]:
    """Split a path into keys and indices; handles `tags["a.b"]`."""
    found = re.findall(r'\["([^"]*)"\]|\[(\d+)\]|([^.\[\]]+)', path)
    return [quoted or (int(number) if number else word) for quoted, number, word in found]


def _replaced(new: Any, old: Any, steps: list[str | int]) -> Any:
    """Return the new value with the old one at the path; a missing old value removes the key."""
    if not steps:
        return copy.deepcopy(old)
    first, rest = steps[0], steps[1:]
    if isinstance(first, int):
        there = new if isinstance(new, list) else []
        before = old[first] if isinstance(old, list) and first < len(old) else None
        return [_replaced(one, before, rest) if at == first else one for at, one in enumerate(there)]
    mapping = dict(new) if isinstance(new, Mapping) else {}
    before = old.get(first) if isinstance(old, Mapping) else None
    value = _replaced(mapping.get(first), before, rest)
    if value is None:
        mapping.pop(first, None)
    else:
        mapping[first] = value
    return mapping
