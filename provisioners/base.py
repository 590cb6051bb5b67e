"""How machines are got: one protocol for every target, and the errors it may raise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, Protocol, runtime_checkable

from ..jobspecs.plan import Offer

ErrorClass = Literal["capacity", "quota", "auth", "expired", "invalid", "throttled", "transient", "not_offered"]
"""auth: the account lacks a permission. expired: the credentials are refused until they are renewed."""
Scope = Literal["zone", "region", "market", "cloud", "attempt"]
"""Scope of an error. market: all offers of the same market in the cloud. attempt: only the zones that it tried;
`hints` are the zones of its offer that it did not try."""
_UNAUTHENTICATED = 401
"""HTTP status: the credentials are not accepted (RFC 9110, 15.5.2)."""
_MOVED = {
    **dict.fromkeys(("project", "subscription", "account"), "account"),
    **{name: name for name in ("region", "zone", "owner")},
}
"""Key in Allocation.details of earlier versions -> the field that it is now."""
_LAUNCHED = "launched:"
"""Beginning of such a key, followed by a node: the time of its launch."""


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
class AgentFile:
    """The agent as one file in the job dir: what a machine in a cloud fetches and runs."""

    key: str
    """In the job dir, e.g. `agent/<sha256>.pyz`."""
    sha256: str
    """The machine runs nothing else."""
    architecture: str
    """`x86_64` or `arm64`, as in the tables of machine types."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who everything created is tagged with; `find()` looks for it."""

    name: str


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """ "These nodes shall be there": everything a target needs for it; printable, made before any effect.

    The same token and the same nodes: the same machines. Nodes that a request with this token did not name before are
    added, so a lost machine is replaced by asking for its next incarnation (`worker-1.2` for `worker-1.1`). A node that
    was started once and is gone is not started again.
    """

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
    expires: float | None = None
    """Epoch seconds after which anybody may remove what this made (it is tagged so); None: never."""
    agent: AgentFile | None = None
    """None: the target has an agent of its own (`local`)."""
    reads: tuple[str, ...] = ()
    """URLs (`s3://bucket/prefix`) outside the job dir that the machines may read: the job's inputs."""
    writes: tuple[str, ...] = ()
    """Likewise, that they may write: the job's outputs."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Role -> container image in which its program runs, of roles whose job file names one."""
    grouped: bool = False
    """The machines are a group of their own, which replaces lost ones by itself (provisioners/stacks/job_groups.py).
    All nodes have the same machine type then."""
    account: str = ""
    """The account to launch in (provisioners/shared/accounts.py): credentials of another one are refused; "": any."""
    repeated: bool = field(default=False, compare=False)
    """Somebody may have asked for the same before, and had no answer. For targets that cannot tell by the token."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The machines of one request, as the target knows them. JSON values only.

    It names what that request asked for. terminate() ends everything under the token, also what no allocation names.
    """

    target: str
    job_id: str
    attempt: int
    token: str
    machines: dict[str, str]
    """node -> the target's id of its machine."""
    region: str = ""
    """Region as offers spell it; "": unknown. Like `owner` and `account`, known even if the launch was not answered."""
    zone: str = ""
    """Zone as the provider spells it; "": unknown, or none."""
    owner: str = ""
    """Owner.name; "": unknown."""
    account: str = ""
    """Id of the account (shared/accounts.py); "": unknown, or the target has none."""
    launched_at: dict[str, float] = field(default_factory=dict)
    """node -> epoch seconds, of machines that launch() has started; not of those that it found there."""
    details: dict[str, str] = field(default_factory=dict)
    """Further data of the target."""
    is_fresh: bool = field(default=False, compare=False)
    """All machines were started by the call of launch() that has returned it, none by an earlier one whose answer was
    lost: they are paid for from the beginning of that call on."""

    def age_s(self, node: str, now: float) -> float:
        """Return seconds since the launch of a node's machine; infinity if launch() has found it there."""
        return now - self.launched_at.get(node, -math.inf)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        """Read what to_json() has written, also where earlier versions kept what are fields now in `details`."""
        details: dict[str, str] = dict(value.get("details", {}))
        moved: dict[str, Any] = {field: details.pop(key) for key, field in _MOVED.items() if key in details}
        launched = [key for key in details if key.startswith(_LAUNCHED)]
        times = {key.removeprefix(_LAUNCHED): float(details.pop(key)) for key in launched}
        if "launched" in details:  # of a whole group
            times = dict.fromkeys(value["machines"], float(details.pop("launched")))
        return cls(**{**value, **moved, **({"launched_at": times} if times else {}), "details": details})


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is really there. `gone` means: nothing of it runs and nothing bills any more."""

    node: str
    phase: Literal["pending", "running", "gone"]
    detail: str = ""
    """The provider's own words, e.g. `terminated: Server.SpotInstanceTermination: …`."""
    taken: bool = False
    """The provider says that it took the machine back: it did not fail, and nobody ended it."""
    returns: bool = False
    """The provider starts the same machine again, as after maintenance of its host: that it is silent until then tells
    nothing."""
    queued: bool = False
    """It waits for a machine, and nothing bills meanwhile: that nothing is heard of it tells nothing."""
    refused: ProvisionError | None = None
    """It is gone and never ran, for the provider had no machine for it after all: what launch() would have raised, had
    the provider said so at once. Never `throttled` or `transient`."""


class ProvisionError(Exception):
    """A launch, observation or termination failed; `error_class` says what to do about it (design: errors as data)."""

    def __init__(
        self,
        error_class: ErrorClass,
        message: str,
        *,
        scope: Scope = "zone",
        code: str = "",
        hints: Sequence[str] = (),
        retry_after: float | None = None,
        status: int | None = None,
        advice: str = "",
        is_unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.scope: Scope = scope
        self.code = code
        """The provider's, or ""."""
        self.hints = tuple(hints)
        """Zones that the provider named as having capacity, as offers spell them."""
        self.retry_after = retry_after
        """Seconds after which to ask again, where the provider said so."""
        self.status = status
        """HTTP status of the answer; None: there was none, or it is not known."""
        self.advice = advice
        """Advice to the user, which is part of the message; "": none."""
        self.is_unsent = is_unsent
        """The call was held back here, for the provider would only have refused it before `retry_after`."""
        self.may_have_created = False
        """Raised after the first call that makes anything: something may be there, whatever the error says."""
        self.has_started = False
        """Machines were started before it, and may have been billed."""

    def as_class(self, error_class: ErrorClass, more: str) -> ProvisionError:
        """Return the same error with another class, and more text."""
        changed = ProvisionError(
            error_class,
            f"{self}{more}",
            scope=self.scope,
            code=self.code,
            hints=self.hints,
            retry_after=self.retry_after,
            status=self.status,
            advice=self.advice,
            is_unsent=self.is_unsent,
        )
        changed.may_have_created, changed.has_started = self.may_have_created, self.has_started
        return changed

    @property
    def is_login(self) -> bool:
        """Return whether the credentials were refused, as opposed to a missing permission."""
        return self.error_class == "expired" or (self.error_class == "auth" and self.status == _UNAUTHENTICATED)

    @property
    def is_final(self) -> bool:
        """Return whether a retry would be refused too. Otherwise the resources of a launch stay: launch() is retried
        with the same token and finds them."""
        return self.error_class not in ("throttled", "transient") and not self.is_login


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of terminate()."""

    has_started: bool
    """A machine was there, or may have been."""
    at: float | None = None
    """Epoch seconds at which no machine was left, before the rest was removed; None: not known."""


class Provisioner(Protocol):
    """The verbs of a target, and its price. Every one may be called again after a crash at any point."""

    def launch(self, request: LaunchRequest) -> Allocation:
        """Start the machines. Idempotent: the same token gives the same machines. Raises ProvisionError."""

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """One state per node of the allocation. Raises ProvisionError."""

    def terminate(self, allocation: Allocation) -> Ended | None:
        """End the machines and remove what was made for them. Idempotent; returns when nothing bills any more. None:
        what there was is not known. Raises ProvisionError."""

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """End some of the machines, and nothing else: those of lost nodes, which may still be there. Idempotent; does
        not wait for their end. Raises ProvisionError."""

    def find(self, owner: Owner) -> list[Allocation]:
        """Every allocation tagged with this owner, without local state: for gc and after a crash."""

    def account(self) -> str:
        """Return the id of the account that the credentials belong to; "": the target has no accounts. Raises
        ProvisionError. The answer is cached for as long as the same credentials are used."""

    def check_account(self, account: str) -> None:
        """Raise ProvisionError(auth) if the credentials belong to another account than this; "": nothing is asked.

        The other verbs do the same for the account of their request or allocation. Credentials that were refused are
        read anew by the next call.
        """

    def price(self, offer: Offer) -> Decimal | None:
        """US dollars an hour of the whole offer at this moment; None: nothing newer than the plan is known.

        Asked just before launch(), and frozen with the attempt. Never raises: a price that is not told stops nothing.
        """


@runtime_checkable
class Explainer(Protocol):
    """What a target's provisioner may be beside: it can read what a machine has written on its console."""

    def explain(self, allocation: Allocation, node: str) -> str:
        """The last lines, for a node that has fallen silent; "": there are none. Costs a call or two, and changes
        nothing. Raises ProvisionError."""


@runtime_checkable
class Shared(Protocol):
    """Optional protocol of provisioners whose machines are fixed, so that jobs wait for one another."""

    def shortage(self, nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
        """Return why launch() could not start the nodes now; "": nothing is short. Costs little, and changes nothing.

        `ahead`: accelerator -> GPUs that are kept for other jobs; CPU -> nodes of others without GPUs. Raises
        ProvisionError.
        """


def launch_token(job_id: str, attempt: int, region: str, zone: str | None) -> str:
    """32 hex digits, the same for the same (job, attempt, place): a repeated call finds its own machines."""
    text = "\0".join((job_id, str(attempt), region, zone or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def node_token(token: str, node: str, *more: str) -> str:
    """32 hex digits for one machine of a launch, to be sent with the call that starts it: a repeated call is known.

    `more` tells apart what the provider must not take for a repetition, e.g. another zone.
    """
    return hashlib.sha256("\0".join((token, node, *more)).encode()).hexdigest()[:32]
