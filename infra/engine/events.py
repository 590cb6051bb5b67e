"""What an engine tells of a run, event by event: the steps it plans or takes, and why it failed."""

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
"""Of Pulumi's; the two halves of a replacement are not among them, for `replace` tells of both."""
_PARTS = {"create-replacement": "replace", "delete-replaced": "delete", "discard-replaced": "delete"}
"""Of a replacement, as steps that are taken: each takes its time."""
_QUIET = frozenset({"same", "read", "refresh"})
_COLOR = re.compile(r"<\{%.*?%\}>|\x1b\[[0-9;]*m")
_TRACEBACK = re.compile(r"\nTraceback \(most recent call last\):.*", re.S)
_SAYS_NOTHING = re.compile(
    r"^(update|preview|refresh|destroy) (failed|canceled)$|Resource monitor has terminated", re.I
)
"""Errors that only follow from another."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes, or would become, of one resource."""

    op: Op
    kind: str
    """Pulumi's type, e.g. `aws:ec2/vpc:Vpc`."""
    name: str
    """In the stack."""
    keys: tuple[str, ...] = ()
    """Properties that differ; of a replacement, those that cause it."""
    protected: bool = False

    @property
    def changes(self) -> bool:
        return self.op not in _QUIET


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is being done to a resource, or is done."""

    change: Change
    state: State
    seconds: float = 0.0
    """It took so long."""


@dataclass(slots=True)
class Watch:
    """Takes the events of one run, of whichever thread; `tell` hears of every step that changes something."""

    tell: Callable[[Step], object] = lambda _step: None
    changes: list[Change] = field(default_factory=list)
    """In the order in which the engine came to them; a component, which is nothing in the cloud, is not among them."""
    errors: list[str] = field(default_factory=list)
    """Each with the resource that it is about."""
    whole: list[str] = field(default_factory=list)
    """Errors of the whole run: where one of a resource came before, they only follow from it."""
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
        self._tell(step, "begun", 0.0)

    def _ended(self, step: StepEventMetadata, state: State) -> None:
        begun = self._begun.pop((step.urn, step.op.value), None)
        if begun is not None:
            self._tell(step, state, time.monotonic() - begun)

    def _tell(self, step: StepEventMetadata, state: State, seconds: float) -> None:
        op = _PARTS.get(step.op.value) or _OPS.get(step.op.value, "same")
        change = _change(step, op)  # type: ignore[arg-type]  # the tables' values are of Op
        if change.changes or state == "failed":
            self.tell(Step(change, state, seconds))

    def _diagnostic(self, severity: str, message: str, urn: str) -> None:
        text = _TRACEBACK.sub("", _COLOR.sub("", message)).strip()
        if severity == "error" and text and not _SAYS_NOTHING.search(text):
            named = _named(urn)
            (self.errors if named else self.whole).append(f"{named}{text}")
        elif severity == "warning" and text:
            self.warnings.append(f"{_named(urn)}{text}")


def _is_thing(step: StepEventMetadata) -> bool:
    """Whether it is something in the cloud: a component is not, nor is the stack, nor a provider."""
    state = step.new or step.old
    return bool(state and state.custom) and not step.type.startswith("pulumi:")


def _change(step: StepEventMetadata, op: Op) -> Change:
    state = step.old or step.new
    keys = step.keys or step.diffs or [] if op in ("update", "replace") else []
    return Change(op, step.type, name_of(step.urn), tuple(keys), bool(state and state.protect))


def name_of(urn: str) -> str:
    """`network` of `urn:pulumi:stack::project::parent$type::network`."""
    return urn.rpartition("::")[2]


def kind_of(urn: str) -> str:
    """`aws:ec2/vpc:Vpc` of an urn."""
    parts = urn.split("::")
    return parts[2].rpartition("$")[2] if len(parts) > 3 else ""


def _named(urn: str) -> str:
    kind = kind_of(urn)
    return f"{name_of(urn)} ({kind}): " if kind and not kind.startswith("pulumi:pulumi:") else ""


def counted(changes: Iterable[Change]) -> dict[Op, int]:
    """How many of each operation, of those that change something."""
    found: dict[Op, int] = {}
    for change in changes:
        if change.changes:
            found[change.op] = found.get(change.op, 0) + 1
    return found
