"""Provisioner protocol that every target implements, its requests and results, and ProvisionError."""

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
"""Class of an error. auth: the account lacks a permission. expired: the credentials must be renewed."""
Scope = Literal["zone", "region", "market", "cloud", "attempt"]
"""Scope of an error. market: all offers of the same market in the cloud. attempt: only the zones that the attempt
tried; `hints` lists the offer's untried zones."""
_UNAUTHENTICATED = 401
"""HTTP status for credentials that are not accepted (RFC 9110, 15.5.2)."""
_RENAMED_KEYS = {
    **dict.fromkeys(("project", "subscription", "account"), "account"),
    **{name: name for name in ("region", "zone", "owner")},
}
"""Key in Allocation.details of earlier versions -> field of Allocation that holds the value now."""
_LAUNCHED = "launched:"
"""Prefix of keys in `details` of earlier versions: `launched:<node>` holds the node's launch time."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One machine to launch."""

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
    """Agent file in the job dir, which a cloud machine fetches and runs."""

    key: str
    """Key in the job dir, e.g. `agent/<sha256>.pyz`."""
    sha256: str
    """The machine refuses a file with another hash."""
    architecture: str
    """`x86_64` or `arm64`, as spelled in the tables of machine types."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner with which all created resources are tagged; `find()` filters by it."""

    name: str


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Declarative request for an attempt's nodes; contains everything that a target needs to launch them.

    Idempotent: a repeated request with the same token and nodes yields the same machines. Nodes that earlier requests
    with this token did not name are added: a lost machine is replaced by requesting its next incarnation (`worker-1.2`
    for `worker-1.1`). A node that was started once and is gone is not started again.
    """

    job_id: str
    attempt: int
    token: str
    """Idempotency token, derived from (job, attempt, place) and stored before the call."""
    owner: Owner
    job_dir: str
    """URL of this job's folder: `job_dir` of the job file, and the job id."""
    job_sha256: str
    """Hash of job.json; the machine refuses a file with another hash."""
    region: str
    zone: str | None
    market: str
    disk_gb: float
    nodes: tuple[NodeRequest, ...]
    lifetime_s: int | None
    """Seconds after which the machine terminates itself unconditionally; None: no limit."""
    expires: float | None = None
    """Epoch seconds after which any user may delete the launch's resources (stored in a tag); None: never."""
    agent: AgentFile | None = None
    """None: the target provides the agent itself (`local`)."""
    reads: tuple[str, ...] = ()
    """URLs (`s3://bucket/prefix`) outside the job dir that the machines may read: the job's inputs."""
    writes: tuple[str, ...] = ()
    """URLs outside the job dir that the machines may write: the job's outputs."""
    secrets: tuple[str, ...] = ()
    """References (jobspecs/secret_references.py) to the secrets that the machines read themselves."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Role -> container image in which its program runs, for roles whose job file names one."""
    grouped: bool = False
    """True: the machines form a dedicated group that replaces lost machines (provisioners/stacks/job_groups.py). All
    nodes must then have the same machine type."""
    account: str = ""
    """Account to launch in (provisioners/shared/accounts.py); credentials of another account are refused. "": any."""
    secrets_pass: str = field(default="", repr=False)
    """With it the machines prove to the supervisor that they are the job's (protocol/sealed_secrets.py); "": the job
    has no secrets that the supervisor sends."""
    may_be_retry: bool = field(default=False, compare=False)
    """True if the same request may have been sent before, without an answer; for targets that cannot detect this by
    the token."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The machines of one request, as the target knows them. JSON values only.

    It names the nodes of that request only. terminate() ends everything tagged with the token, including machines that
    no allocation names.
    """

    target: str
    job_id: str
    attempt: int
    token: str
    machines: dict[str, str]
    """Node -> the target's id of its machine."""
    region: str = ""
    """Region as offers spell it; "": unknown. Region, owner and account are known even if the launch call got no
    answer."""
    zone: str = ""
    """Zone as the provider spells it; "": unknown, or none."""
    owner: str = ""
    """Owner.name; "": unknown."""
    account: str = ""
    """Id of the account (shared/accounts.py); "": unknown, or the target has none."""
    launched_at: dict[str, float] = field(default_factory=dict)
    """Node -> epoch seconds at which launch() started its machine; machines that already existed are left out."""
    details: dict[str, str] = field(default_factory=dict)
    """Additional data, specific to the target."""
    is_fresh: bool = field(default=False, compare=False)
    """True if the launch() call that returned this started all machines: billing began no earlier than that call. False
    if an earlier call, whose answer was lost, may have started some."""

    def age_s(self, node: str, now: float) -> float:
        """Return seconds since the launch of a node's machine; infinity if launch() found an existing machine."""
        return now - self.launched_at.get(node, -math.inf)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allocation:
        """Deserialize the result of to_json(), including that of earlier versions, which kept some fields in
        `details`."""
        details: dict[str, str] = dict(value.get("details", {}))
        moved: dict[str, Any] = {field: details.pop(key) for key, field in _RENAMED_KEYS.items() if key in details}
        launched = [key for key in details if key.startswith(_LAUNCHED)]
        times = {key.removeprefix(_LAUNCHED): float(details.pop(key)) for key in launched}
        if "launched" in details:  # one launch time for all machines of a group
            times = dict.fromkeys(value["machines"], float(details.pop("launched")))
        return cls(**{**value, **moved, **({"launched_at": times} if times else {}), "details": details})


@dataclass(frozen=True, slots=True)
class NodeState:
    """Observed state of a node's machine. In the phase `gone` it does not run and is no longer billed."""

    node: str
    phase: Literal["pending", "running", "gone"]
    detail: str = ""
    """Text from the provider, e.g. `terminated: Server.SpotInstanceTermination: …`."""
    reclaimed: bool = False
    """True if the provider says that it reclaimed the machine: it did not fail, and no user terminated it."""
    restarting: bool = False
    """True if the provider is restarting the machine, e.g. after host maintenance: missing heartbeats do not mean that
    it is lost."""
    queued: bool = False
    """True if the node waits for a machine, unbilled: missing heartbeats do not mean that it is lost."""
    refused: ProvisionError | None = None
    """The error with which the provider refused a node after launch() had returned; the node never ran and is gone.
    Never `throttled` or `transient`."""


class ProvisionError(Exception):
    """Error of a launch, observation or termination; callers decide by `error_class` what to do about it."""

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
        """The provider's error code, or ""."""
        self.hints = tuple(hints)
        """Zones that the provider named as having capacity, as offers spell them."""
        self.retry_after = retry_after
        """Seconds after which to retry, if the provider named a time."""
        self.status = status
        """HTTP status of the answer; None: no answer, or unknown."""
        self.advice = advice
        """Advice to the user, also contained in the message; "": none."""
        self.is_unsent = is_unsent
        """True if the call was not sent: the local rate limit (shared/token_bucket.py) allows it after `retry_after`
        seconds."""
        self.may_have_created = False
        """True if a create call was sent before this error: resources may exist, and the caller must clean up."""
        self.has_started = False
        """True if machines were started before this error; they may have been billed."""

    def as_class(self, error_class: ErrorClass, more: str) -> ProvisionError:
        """Return a copy of the error with another class and `more` appended to its message."""
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
        """Return whether a retry would fail too. Otherwise a launch keeps its resources: launch() is retried with the
        same token and finds them."""
        return self.error_class not in ("throttled", "transient") and not self.is_login


@dataclass(frozen=True, slots=True)
class TerminateResult:
    """Result of Provisioner.terminate()."""

    has_started: bool
    """True if a machine existed, or may have existed."""
    at: float | None = None
    """Epoch seconds at which the last machine was gone, before other resources were deleted; None: unknown."""


class Provisioner(Protocol):
    """Operations of a target. Each of them may be repeated after a crash at any point."""

    def launch(self, request: LaunchRequest) -> Allocation:
        """Launch the machines. Idempotent: the same token gives the same machines. Raises ProvisionError."""

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return one state per node of the allocation. Raises ProvisionError."""

    def terminate(self, allocation: Allocation) -> TerminateResult | None:
        """Terminate the machines and delete the resources created for them. Idempotent; returns when nothing is billed
        any more. None: it is unknown what existed. Raises ProvisionError."""

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Terminate only the machines of these nodes, e.g. of lost nodes whose machines may still exist. Idempotent;
        does not wait until they are gone. Raises ProvisionError."""

    def find(self, owner: Owner) -> list[Allocation]:
        """Return every allocation tagged with this owner. Needs no local state: for gc, and after a crash."""

    def account(self) -> str:
        """Return the id of the credentials' account; "": the target has no accounts. Cached while the same credentials
        are used. Raises ProvisionError."""

    def check_account(self, account: str) -> None:
        """Raise ProvisionError(auth) if the credentials belong to another account; no-op for "".

        The other methods do the same for the account of their request or allocation. After credentials were refused,
        the next call reads them anew.
        """

    def price(self, offer: Offer) -> Decimal | None:
        """Return the whole offer's current price in US dollars an hour; None: nothing newer than the plan is known.

        Called just before launch() and stored with the attempt. Never raises: an unknown price does not prevent a
        launch.
        """


@runtime_checkable
class Explainer(Protocol):
    """Optional protocol of provisioners that can read a machine's console output."""

    def explain(self, allocation: Allocation, node: str) -> str:
        """Return the last console lines of a node that stopped sending heartbeats; "": there are none. Read-only; costs
        one or two API calls. Raises ProvisionError."""


@runtime_checkable
class HasShortage(Protocol):
    """Optional protocol of provisioners with a fixed set of machines, for which jobs queue."""

    def shortage(self, nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
        """Return why launch() could not start the nodes now; "": it could. Read-only and cheap.

        `ahead`: accelerator -> number of GPUs reserved for other jobs; CPU -> number of other jobs' nodes without GPUs.
        Raises ProvisionError.
        """


def launch_token(job_id: str, attempt: int, region: str, zone: str | None) -> str:
    """Return the idempotency token of a launch: 32 hex digits, a hash of (job, attempt, place)."""
    text = "\0".join((job_id, str(attempt), region, zone or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def node_token(token: str, node: str, *more: str) -> str:
    """Return the idempotency token of one machine of a launch, sent with the call that starts it: 32 hex digits.

    `more` distinguishes calls that the provider must not treat as retries, e.g. a call for another zone.
    """
    return hashlib.sha256("\0".join((token, node, *more)).encode()).hexdigest()[:32]
