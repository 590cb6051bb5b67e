"""Events of an engine run: planned or executed steps, and errors."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pulumi.automation.events import EngineEvent, StepEventMetadata

Op = Literal["create", "update", "replace", "delete", "read", "refresh", "same"]
State = Literal["begun", "done", "failed"]

_OPS: dict[str, Op] = {
    "create": "create",
    "import": "create",
    "update": "update",
    "replace": "replace",
    "import-replacement": "replace",
    "delete": "delete",
    "discard": "delete",
    "read": "read",
    "refresh": "refresh",
    "same": "same",
}
"""Pulumi's operation -> Op of the change. The two halves of a replacement are omitted, since `replace` covers both."""
_PARTS = {"create-replacement": "replace", "delete-replaced": "delete", "discard-replaced": "delete"}
"""Pulumi's operation for half of a replacement -> Op of its step; each half is a separate step, as it takes time."""
_QUIET = frozenset({"same", "read", "refresh"})
_COLOR = re.compile(r"<\{%.*?%\}>|\x1b\[[0-9;]*m")
_TRACEBACK = re.compile(r"\nTraceback \(most recent call last\):.*", re.S)
_SAYS_NOTHING = re.compile(
    r"^(update|preview|refresh|destroy) (failed|canceled)$|Resource monitor has terminated", re.I
)
"""Errors that are only consequences of other errors."""


@dataclass(frozen=True, slots=True)
class Change:
    """Planned or executed change of one resource."""

    op: Op
    kind: str
    """Pulumi type, e.g. `aws:ec2/vpc:Vpc`."""
    name: str
    """Name in the stack."""
    keys: tuple[str, ...] = ()
    """Properties that differ; for a replacement, those that require it."""
    protected: bool = False

    @property
    def changes(self) -> bool:
        return self.op not in _QUIET


@dataclass(frozen=True, slots=True)
class Step:
    """Start or end of an operation on a resource."""

    change: Change
    state: State
    seconds: float = 0.0
    """Duration of the operation."""


@dataclass(slots=True)
class EventCollector:
    """Collector of one run's events, thread-safe. `on_step` is called with every step that changes a resource."""

    on_step: Callable[[Step], object] = lambda _step: None
    changes: list[Change] = field(default_factory=list)
    """Changes in the engine's order, without components, which are not cloud resources."""
    errors: list[str] = field(default_factory=list)
    """Errors of resources, each with the resource's name."""
    run_errors: list[str] = field(default_factory=list)
    """Errors of the whole run; if a resource failed too, they are only consequences."""
    warnings: list[str] = field(default_factory=list)
    _begun: dict[tuple[str, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: EngineEvent) -> None:
        with self._lock:
            if event.resource_pre_event:
                self._pre(event.resource_pre_event.metadata)
            elif event.res_outputs_event:
                self._ended(event.res_outputs_event.metadata, "done")
            elif event.res_op_failed_event:
                self._ended(event.res_op_failed_event.metadata, "failed")
            elif event.diagnostic_event:
                said = event.diagnostic_event
                self._diagnostic(said.severity, said.message, said.urn or "")

    def _pre(self, step: StepEventMetadata) -> None:
        if not _is_thing(step):
            return
        op = _OPS.get(step.op.value)
        if op is not None:
            self.changes.append(_change(step, op))
        if op != "replace":
            self._began(step)

    def _began(self, step: StepEventMetadata) -> None:
        self._begun[step.urn, step.op.value] = time.monotonic()
        self._report(step, "begun", 0.0)

    def _ended(self, step: StepEventMetadata, state: State) -> None:
        begun = self._begun.pop((step.urn, step.op.value), None)
        if begun is not None:
            self._report(step, state, time.monotonic() - begun)

    def _report(self, step: StepEventMetadata, state: State, seconds: float) -> None:
        op = _PARTS.get(step.op.value) or _OPS.get(step.op.value, "same")
        change = _change(step, op)  # type: ignore[arg-type]  # the tables' values are Ops
        if change.changes or state == "failed":
            self.on_step(Step(change, state, seconds))

    def _diagnostic(self, severity: str, message: str, urn: str) -> None:
        text = _TRACEBACK.sub("", _COLOR.sub("", message)).strip()
        if severity == "error" and text and not _SAYS_NOTHING.search(text):
            named = _named(urn)
            (self.errors if named else self.run_errors).append(f"{named}{text}")
        elif severity == "warning" and text:
            self.warnings.append(f"{_named(urn)}{text}")


def _is_thing(step: StepEventMetadata) -> bool:
    """Return True for a cloud resource: not a component, the stack, or a provider."""
    state = step.new or step.old
    return bool(state and state.custom) and not step.type.startswith("pulumi:")


def _change(step: StepEventMetadata, op: Op) -> Change:
    state = step.old or step.new
    keys = step.keys or step.diffs or [] if op in ("update", "replace") else []
    return Change(op, step.type, name_of(step.urn), tuple(keys), bool(state and state.protect))


def name_of(urn: str) -> str:
    """Return the name in a URN: `network` for `urn:pulumi:stack::project::parent$type::network`."""
    return urn.rpartition("::")[2]


def kind_of(urn: str) -> str:
    """Return the type in a URN, e.g. `aws:ec2/vpc:Vpc`."""
    parts = urn.split("::")
    return parts[2].rpartition("$")[2] if len(parts) > 3 else ""


def _named(urn: str) -> str:
    kind = kind_of(urn)
    return f"{name_of(urn)} ({kind}): " if kind and not kind.startswith("pulumi:pulumi:") else ""


def count_by_operation(changes: Iterable[Change]) -> dict[Op, int]:
    """Return the number of changes for each operation, without no-ops."""
    found: dict[Op, int] = {}
    for change in changes:
        if change.changes:
            found[change.op] = found.get(change.op, 0) + 1
    return found
