"""How machines are got: one protocol for every target, and the errors it may raise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

ErrorClass = Literal["capacity", "quota", "auth", "invalid", "throttled", "transient", "not_offered"]
Scope = Literal["zone", "region", "cloud"]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One machine to get."""

    node: str
    """`<role>-<index>.<incarnation>`, e.g. `worker-0.1`; unique within the attempt."""
    role: str
    index: int
    rank: int
    machine_type: str
    accelerator: str | None
    count: Fraction


@dataclass(frozen=True, slots=True)
class Owner:
    """Who everything created is tagged with; `find()` looks for it."""

    name: str


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything a target needs to start an attempt's machines; printable, made before any effect."""

    job_id: str
    attempt: int
    token: str
    """Derived from (job, attempt, place) and stored before the call: the same token means the same machines."""
    owner: Owner
    job_dir: str
    """URL of this job's folder, `<job_dir>/<job id>`."""
    job_sha256: str
    """Of job.json: the machine refuses any other."""
    region: str
    zone: str | None
    market: str
    disk_gb: float
    nodes: tuple[NodeRequest, ...]
    lifetime_s: int | None
    """The machine ends itself after so long, whatever happens; None: no limit."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The machines of an attempt, as the target knows them. JSON values only."""

    target: str
    job_id: str
    attempt: int
    token: str
    machines: dict[str, str]
    """node -> the target's id of its machine."""
    details: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        return cls(**value)


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is really there. `gone` means: nothing of it runs and nothing bills any more."""

    node: str
    phase: Literal["pending", "running", "gone"]
    detail: str = ""


class ProvisionError(Exception):
    """A launch, observation or termination failed; `error_class` says what to do about it (design: errors as data)."""

    def __init__(self, error_class: ErrorClass, message: str, *, scope: Scope = "zone", code: str = "") -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.scope: Scope = scope
        self.code = code


class Provisioner(Protocol):
    """The four verbs of a target. Every one may be called again after a crash at any point."""

    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the machines. Idempotent: the same token gives the same machines. Raises ProvisionError."""

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """One state per node of the allocation. Raises ProvisionError."""

    def terminate(self, allocation: Allocation) -> None:
        """End the machines. Idempotent; returns when nothing bills any more. Raises ProvisionError."""

    def find(self, owner: Owner) -> list[Allocation]:
        """Every allocation tagged with this owner, without local state: for gc and after a crash."""


def launch_token(job_id: str, attempt: int, region: str, zone: str | None) -> str:
    """32 hex digits, the same for the same (job, attempt, place): a repeated call finds its own machines."""
    text = "\0".join((job_id, str(attempt), region, zone or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
