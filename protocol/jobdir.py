"""The job dir: the only meeting place of the control side and the machines. Standard library and obstore only.

    <job_dir>/<job id>/
      job.json                          the resolved spec; its sha256 is what a machine is told at boot
      code/<sha256>.tar.gz
      agent/<sha256>.pyz                what a machine in a cloud fetches first, and runs
      attempts/0001/attempt.json        offer, nodes, ranks
      attempts/0001/stop.json           what is wanted of this attempt's machines: Stop
      attempts/0001/signal.json         changes when these machines are to look, or are watched: Signal
      attempts/0001/nodes/worker-0.1/   claim (create-only), address.json, notice.json, heartbeat.json,
                                        log/00000001.gz ..., result.json (create-only)
      attempts/0001/generations/0002.json     create-only: how the program goes on after one of its processes died
      checkpoints/<step>-<attempt>-<nonce>/   shards, manifests, COMMIT.json written last
      outputs/

Every write that decides something is create-only: local folders have no compare-and-swap, and none is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from ..storage.errors import JobDirError, MissingError, RecordError, is_login, is_permanent
from ..storage.objects import JobDir
from ..storage.store import Entry
from ..storage.stores import SCHEMES, portable_url
from ..storage.urls import local_url
from .records import Record

__all__ = [
    "JOB_KEY",
    "SCHEMES",
    "Address",
    "AttemptRecord",
    "Claim",
    "Entry",
    "Generation",
    "GenerationKind",
    "Heartbeat",
    "JobDir",
    "JobDirError",
    "JobRecord",
    "MissingError",
    "NodeRecord",
    "Notice",
    "Outcome",
    "Progress",
    "Record",
    "RecordError",
    "Result",
    "Signal",
    "Span",
    "Stop",
    "StopReason",
    "Timeline",
    "agent_key",
    "attempt_key",
    "code_key",
    "generation_key",
    "is_login",
    "is_permanent",
    "local_url",
    "node_key",
    "portable_url",
    "read_generation",
]

JOB_KEY = "job.json"


def code_key(sha256: str) -> str:
    return f"code/{sha256}.tar.gz"


def agent_key(sha256: str) -> str:
    return f"agent/{sha256}.pyz"


def attempt_key(attempt: int, name: str = "attempt.json") -> str:
    return f"attempts/{attempt:04d}/{name}"


def node_key(attempt: int, node: str, name: str) -> str:
    return f"attempts/{attempt:04d}/nodes/{node}/{name}"


def generation_key(attempt: int, generation: int) -> str:
    return attempt_key(attempt, f"generations/{generation:04d}.json")


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """job.json: what a machine needs to know of a job, resolved, so that it needs no parser of job files."""

    MOST_BYTES: ClassVar[int] = 64 << 20
    MOST_CHARACTERS: ClassVar[int] = 64 << 20
    job_id: str
    name: str
    run: str | list[str]
    """A string is run by the shell, a list is executed as it is; likewise `setup`."""
    args: list[str] = field(default_factory=list)
    setup: str | list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    launcher: str = "auto"
    code: str | None = None
    """sha256 of the code archive, see code_key(); None: nothing was shipped."""
    search_path: str | None = None
    """PATH for setup and program; None: the machine's own. Only a job for the submitter's own machine has one."""
    submitter_env: dict[str, str] | None = None
    """Variables of the submitter's shell, by an allow-list, in place of the machine's; None: the machine's own. Only a
    job for the submitter's own machine has them."""
    checkpoint_every: str | int = "auto"
    """"auto" or seconds."""
    checkpoint_keep: int = 3
    checkpoint_on_damage: str = "stop"
    """"stop" or "restart": when every checkpoint is damaged."""
    inputs: dict[str, str | dict[str, str]] = field(default_factory=dict)
    """Path on the machine, relative to the code's folder or absolute -> URL of what is fetched there, or for each cloud
    its own."""
    outputs: list[str] = field(default_factory=list)
    """Paths relative to the code's folder: copied to outputs/ when the program has ended."""
    gpu_idle_s: int | None = None
    """The job is stopped when its GPUs do nothing for so long: nodes with GPUs tell for how long theirs have."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The whole JobSpec as stored; for people and for a later version, machines do not read it."""

    def inputs_on(self, cloud: str) -> dict[str, str]:
        """Those of machines of a cloud."""
        found = {path: where if isinstance(where, str) else where.get(cloud) for path, where in self.inputs.items()}
        return {path: url for path, url in found.items() if url is not None}


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """One machine's place in an attempt."""

    node: str
    role: str
    index: int
    rank: int
    gpus: int
    """Whole GPUs, each of which gets its own process under `torchrun`; 0: one process on the CPU."""


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """attempt.json. `nodes` are NodeRecord objects as JSON, in rank order."""

    MOST_BYTES: ClassVar[int] = 16 << 20
    attempt: int
    offer: dict[str, Any]
    nodes: list[Annotated[dict[str, Any], NodeRecord]]
    failures_left: int = 0
    """How many failures of the program may be answered by starting it again on the same machines."""
    interruptions_left: int | None = 0
    """Likewise, when the program asks to be run again; None: without limit."""
    heals: bool = False
    """A lost node is replaced, or done without: those that are left wait for the Generation that says so."""
    job_dir: str = ""
    """URL of the job's folder that this attempt works with, if the job has moved there: this record is in both, that
    one and the one which it has left; "": it is in the only one."""
    earlier: dict[str, Any] = field(default_factory=dict)
    """Interruptions of the job's earlier attempts: checkpoint.interval.History as JSON."""


GenerationKind = Literal["failure", "interruption", "members", "closed"]


@dataclass(frozen=True, slots=True)
class Generation(Record):
    """generations/<g>.json, create-only: what follows upon generation g - 1 of an attempt's program.

    They are numbered from 2 and without gaps. Each says what the attempt has used of its budget by then. `failure` and
    `interruption` begin with a process that died, on the nodes there are. `members` is the supervisor's word: from then
    on the nodes are others. `closed` is the last: the program has ended on some node, `reason` says how, and
    starts nowhere again.
    """

    MOST_BYTES: ClassVar[int] = 16 << 20
    generation: int
    kind: GenerationKind
    node: str
    """Whose process died, or which node has ended, was lost or has joined."""
    group: bool
    """All nodes start anew; else this one only."""
    reason: str
    pause_s: float
    """To wait before it starts: a program that dies again and again costs less so."""
    failures: int
    """Of this attempt, by now."""
    interruptions: int
    time: float
    """Epoch seconds, by the node's clock."""
    nonce: str
    """Whose it is: two nodes may find one and the same end."""
    nodes: list[Annotated[dict[str, Any], NodeRecord]] | None = None
    """NodeRecord objects as JSON, in rank order, of all nodes from now on; None: they are those of before."""
    grace_s: float = 0.0
    """What a program that still runs has to save and end by itself before it is killed."""
    saved_step: int = 0
    """Of `members`: steps in the newest checkpoint the nodes had told of by then."""


def read_generation(job_dir: JobDir, attempt: int, number: int) -> Generation | None:
    """Return the generation of a number; None: there is none yet. Raises JobDirError.

    One that cannot be read, or says that it has another number, ends the row as `closed` does: its node cannot follow
    it either, and no other can be created in its place.
    """
    key = generation_key(attempt, number)
    try:
        found = Generation.read(job_dir, key)
    except RecordError as error:
        reason = str(error)
    else:
        if found is None or found.generation == number:
            return found
        reason = f"{job_dir.url}/{key} has the number {found.generation}"
    return Generation(number, "closed", "", True, reason, 0.0, 0, 0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Claim(Record):
    """Create-only: which machine process holds a rank's incarnation."""

    machine: str
    nonce: str
    time: float


PORTS = range(1, 1 << 16)


@dataclass(frozen=True, slots=True)
class Address(Record):
    """Where the other nodes reach this one; rank 0's is MASTER_ADDR and MASTER_PORT."""

    host: str
    port: Annotated[int, PORTS]


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """What the program's Checkpointer says of itself, through the file named by CLOUDGPU_PROGRESS."""

    IS_LENIENT: ClassVar[bool] = True
    restored_step: int | None = None
    """Steps done in the checkpoint this process started from; None: it started from nothing."""
    step: int = 0
    """Steps done by now, those before the restore included."""
    saved_step: int | None = None
    """Steps done in the newest committed checkpoint."""
    step_seconds: float = 0.0
    """Time spent in training steps by this process (waiting for data included)."""
    blocked_seconds: float = 0.0
    """Time the training stood still for saving."""
    restore_seconds: float = 0.0
    saved_seconds: float | None = None
    """Of `step_seconds`, what the newest committed checkpoint holds; None: unknown."""
    cost: float | None = None
    """For how long a save usually blocks, in seconds; None: there was none."""
    lag: float | None = None
    """How long a save usually takes from the copy until it is durable, in seconds."""
    interval: float | None = None
    """Seconds between two saves, as they are due now; None: they go by steps."""
    mean: float | None = None
    """Seconds between two interruptions, as they are expected now."""


Phase = Literal["setup", "waiting", "running", "stopping"]


@dataclass(frozen=True, slots=True)
class Heartbeat(Record):
    """heartbeat.json, rewritten every second; in an object store every 3 or, in the steady state, every 90.

    `sequence` tells a live node without comparing clocks.
    """

    MOST_BYTES: ClassVar[int] = 4 << 20
    sequence: int
    time: float
    phase: Phase
    """waiting: it came to replace a lost node, and is ready to be a member."""
    progress: Annotated[dict[str, Any], Progress] | None = None
    gpu_idle_s: float | None = None
    """For how long no GPU of this node has done anything while the program ran; None: not watched, or unknown."""
    timeline: Annotated[dict[str, Any], Timeline] | None = None
    """Timeline as JSON."""
    next_s: float = 0.0
    """Seconds until the next heartbeat, at most; 0: an agent that does not say."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Return it with a phase that only a newer agent knows as `running`: that node lives, and is not waiting."""
        return {**value, "phase": "running"} if _is_unknown(value.get("phase"), Phase) else value


@dataclass(frozen=True, slots=True)
class Span(Record):
    """One generation of the program on one node. Times are epoch seconds, as everywhere in a Timeline."""

    generation: int
    started: float
    first_step: float | None = None
    """When a step was first seen to be done, within a heartbeat; None: none was."""
    ended: float | None = None
    """When none of its processes was left."""
    reason: str = ""
    """Why it ended; "" while it lasts, and after success."""
    progress: Annotated[dict[str, Any], Progress] | None = None
    """Progress as JSON, the last that this generation told."""


@dataclass(frozen=True, slots=True)
class Timeline(Record):
    """What a node did when. The clock is read once and measured from there: times never go back."""

    claimed: float
    setup: float | None = None
    """When the code was there and the setup began."""
    ready: float | None = None
    """When the setup was done: what follows is the program."""
    spans: list[Annotated[dict[str, Any], Span]] = field(default_factory=list)
    """Span objects as JSON, oldest first."""
    ended: float | None = None
    """When everything that was staged had been written."""


NoticeKind = Literal["preempt", "terminate", "reboot", "maintenance", "freeze"]


@dataclass(frozen=True, slots=True)
class Notice(Record):
    """notice.json: the provider's word (or `cloudgpu preempt`'s) that this machine will go at `deadline` (epoch s)."""

    kind: NoticeKind
    deadline: float
    source: str
    seconds: float | None = None
    """From its writing to the deadline; it counts from sight where the two clocks differ by more."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Return it with a kind that only a newer version knows as `terminate`: then all is saved."""
        return {**value, "kind": "terminate"} if _is_unknown(value.get("kind"), NoticeKind) else value


StopReason = Literal["cancel", "duration", "cost", "gpu_idle", "peer"]


@dataclass(frozen=True, slots=True)
class Stop(Record):
    """stop.json: every node of the attempt is to save, if it can, and end before `deadline` (epoch s)."""

    reason: StopReason
    deadline: float
    seconds: float | None = None
    """As in Notice."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Return it with a reason that only a newer supervisor knows as `cancel`: the node is to end all the same."""
        return {**value, "reason": "cancel"} if _is_unknown(value.get("reason"), StopReason) else value


EXIT_CODES = range(-(1 << 31), 1 << 31)
"""Range of the store's column. Exit codes of Windows do not occur."""


@dataclass(frozen=True, slots=True)
class Signal(Record):
    """signal.json: an attempt's machines poll it, and look at stop.json and notice.json when it has changed."""

    nonce: str
    """Makes each signal differ from the one before."""
    watch_s: float = 0.0
    """Seconds, from when a machine sees it, for which a command watches the job; 0: none does."""


Outcome = Literal["succeeded", "failed", "again", "preempted", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Result(Record):
    """result.json, create-only: how a node ended.

    succeeded: exit 0; failed: the program's or the setup's own failure; again: the program asks to be run again;
    preempted: ended upon a notice; stopped: ended upon stop.json; error: cloudgpu itself could not go on (bad job dir,
    unsafe archive ...).
    """

    MOST_BYTES: ClassVar[int] = 4 << 20
    outcome: Outcome
    exit_code: Annotated[int, EXIT_CODES] | None
    """Of the program; negative: killed by that signal; None: it never ran."""
    reason: str
    started: float
    ended: float
    progress: Annotated[dict[str, Any], Progress] | None = None
    final: bool = False
    """The program says that running it again is of no use."""
    timeline: Annotated[dict[str, Any], Timeline] | None = None
    """Timeline as JSON."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Return it with an outcome that only a newer agent knows as `error`, whose reason names it."""
        outcome = value.get("outcome")
        if not _is_unknown(outcome, Outcome):
            return value
        reason = f"unknown outcome {outcome!r:.80}: {value.get('reason')!s:.1000}"
        return {**value, "outcome": "error", "reason": reason}


def _is_unknown(word: object, known: object) -> bool:  # a Literal
    """Return whether a value is a word, but none of these."""
    return isinstance(word, str) and word not in get_args(known)
