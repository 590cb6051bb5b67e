"""Job dir: the only communication channel between the control side and the machines. Standard library and obstore only.

    <job_dir>/<job id>/
      job.json                          the resolved spec; machines get its sha256 at boot
      runs/<sha256>.json                the same of a later run, which `cloudgpu resume` began
      code/<sha256>.tar.gz
      agent/<sha256>.pyz                agent, which a machine in a cloud downloads first, and runs
      attempts/0001/attempt.json        offer, nodes, ranks
      attempts/0001/stop.json           request to the attempt's machines to end: Stop
      attempts/0001/signal.json         replaced when machines must read stop.json or notice.json at once: Signal
      attempts/0001/nodes/worker-0.1/   claim (create-only), address.json, notice.json, heartbeat.json,
                                        log/00000001.gz ..., result.json (create-only)
      attempts/0001/generations/0002.json     create-only: how the program continues after one of its processes died
      checkpoints/<step>-<attempt>-<nonce>/   shards, manifests, COMMIT.json written last
      outputs/

Every write that decides something is create-only: local folders have no compare-and-swap, and none is needed.
"""

from __future__ import annotations

import hashlib
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
    "read_job",
    "run_key",
]

JOB_KEY = "job.json"


def run_key(sha256: str) -> str:
    """Return the key of a later run's JobRecord; that of the first run has JOB_KEY."""
    return f"runs/{sha256}.json"


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
    """job.json: all that a machine needs to know of a job, in resolved form, so that it needs no parser of job
    files."""

    MOST_BYTES: ClassVar[int] = 64 << 20
    MOST_CHARACTERS: ClassVar[int] = 64 << 20
    job_id: str
    name: str
    run: str | list[str]
    """A string is run by the shell, a list is executed without one; the same holds for `setup`."""
    args: list[str] = field(default_factory=list)
    setup: str | list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    launcher: str = "auto"
    code: str | None = None
    """sha256 of the code archive, see code_key(); None: no code was uploaded."""
    search_path: str | None = None
    """PATH for setup and program; None: the machine's own. Set only if the job runs on the submitter's own machine."""
    submitter_env: dict[str, str] | None = None
    """Variables of the submitter's shell that are on an allow-list. They replace the machine's own variables; None:
    the machine's are used. Set only if the job runs on the submitter's own machine."""
    checkpoint_every: str | int = "auto"
    """Seconds, or "auto"."""
    checkpoint_keep: int = 3
    checkpoint_on_damage: str = "stop"
    """Action when every checkpoint is damaged: "stop" or "restart"."""
    inputs: dict[str, str | dict[str, str]] = field(default_factory=dict)
    """Path on the machine, absolute or relative to the code's folder -> URL to download, or URL for each cloud."""
    outputs: list[str] = field(default_factory=list)
    """Paths relative to the code's folder that are copied to outputs/ when the program has ended."""
    required_outputs: list[str] = field(default_factory=list)
    """Those of them without which the job fails."""
    gpu_idle_s: int | None = None
    """Seconds without GPU activity after which the job is stopped. If set, nodes with GPUs report their idle time."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The whole JobSpec in stored form, for users and later versions; machines do not read it."""
    source: dict[str, str | int] = field(default_factory=dict)
    """Job from whose checkpoint the first run started: `job`, `job_dir`, `step`; empty: from the beginning."""
    run_number: int = 1
    """Number of the run. Each has a record of its own, which agents that know of no runs refuse."""

    def inputs_on(self, cloud: str) -> dict[str, str]:
        """Return path -> URL of the inputs for machines of a cloud."""
        found = {path: where if isinstance(where, str) else where.get(cloud) for path, where in self.inputs.items()}
        return {path: url for path, url in found.items() if url is not None}


def read_job(job_dir: JobDir, sha256: str) -> bytes | None:
    """Return the job's record with this sha256; else job.json, or None if that is missing. Raises JobDirError."""
    found = job_dir.find(JOB_KEY, JobRecord.MOST_BYTES)
    if found is None or hashlib.sha256(found).hexdigest() == sha256:
        return found
    return job_dir.find(run_key(sha256), JobRecord.MOST_BYTES) or found


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """One machine of an attempt."""

    node: str
    role: str
    index: int
    rank: int
    gpus: int
    """Number of whole GPUs, each with a separate process under `torchrun`; 0: one process on the CPU."""


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """attempt.json. `nodes` are NodeRecord objects as JSON, in rank order."""

    MOST_BYTES: ClassVar[int] = 16 << 20
    attempt: int
    offer: dict[str, Any]
    nodes: list[Annotated[dict[str, Any], NodeRecord]]
    failures_left: int = 0
    """Number of restarts on the same machines that are left for failures of the program."""
    interruptions_left: int | None = 0
    """Restarts on the same machines left for when the program asks to be run again; None: without limit."""
    heals: bool = False
    """True if a lost node is replaced or done without; the others wait for the supervisor's Generation record."""
    job_dir: str = ""
    """URL of the job's folder that this attempt uses, if the job has moved there. The record is then also in the
    folder that it left. "": the job has not moved."""
    earlier: dict[str, Any] = field(default_factory=dict)
    """Interruptions of the job's earlier attempts: checkpoint.interval.History as JSON."""
    progress_since: int = 0
    """Number of the first attempt whose checkpoints may be restored, as the job has started over; 0: all may be."""


GenerationKind = Literal["failure", "interruption", "members", "closed"]


@dataclass(frozen=True, slots=True)
class Generation(Record):
    """generations/<g>.json, create-only: what follows generation g - 1 of an attempt's program.

    They are numbered from 2 without gaps. Each counts the attempt's failures and interruptions so far. `failure` and
    `interruption`: a process died, and the program restarts on the same nodes. `members`: the supervisor changes the
    nodes. `closed` is the last: the program has ended on some node for `reason`, and is not restarted on any.
    """

    MOST_BYTES: ClassVar[int] = 16 << 20
    generation: int
    kind: GenerationKind
    node: str
    """Node whose process died, or which has ended, was lost or has joined."""
    group: bool
    """True: all nodes restart the program; False: only this node."""
    reason: str
    pause_s: float
    """Seconds to wait before the restart: a backoff for programs that die repeatedly."""
    failures: int
    """Number of failures in this attempt so far."""
    interruptions: int
    time: float
    """Epoch seconds of the node's clock."""
    nonce: str
    """Identifies the writer, because two nodes may report the same end."""
    nodes: list[Annotated[dict[str, Any], NodeRecord]] | None = None
    """NodeRecord objects as JSON, in rank order, of all nodes from now on; None: unchanged."""
    grace_s: float = 0.0
    """Seconds in which a program that still runs may save and end by itself before it is killed."""
    saved_step: int = 0
    """For `members`: step of the newest checkpoint that the nodes had reported."""


def read_generation(job_dir: JobDir, attempt: int, number: int) -> Generation | None:
    """Return the generation with this number; None: it does not exist yet. Raises JobDirError.

    An invalid record, or one with another number, is returned as `closed`: no node can act on it, and the create-only
    object cannot be replaced.
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
    """claim, create-only: the machine and process that run an incarnation of a node."""

    machine: str
    nonce: str
    time: float


PORTS = range(1, 1 << 16)


@dataclass(frozen=True, slots=True)
class Address(Record):
    """Address at which the other nodes reach this one; rank 0's is MASTER_ADDR and MASTER_PORT."""

    host: str
    port: Annotated[int, PORTS]


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """Report of the program's Checkpointer, written to the file named by CLOUDGPU_PROGRESS."""

    IS_LENIENT: ClassVar[bool] = True
    restored_step: int | None = None
    """Step of the checkpoint that this process started from; None: it started without one."""
    step: int = 0
    """Steps done so far, including those before the restore."""
    saved_step: int | None = None
    """Step of the newest committed checkpoint."""
    step_seconds: float = 0.0
    """Seconds spent in training steps by this process (including waits for data)."""
    blocked_seconds: float = 0.0
    """Seconds for which saves blocked the training."""
    restore_seconds: float = 0.0
    saved_seconds: float | None = None
    """Part of `step_seconds` that the newest committed checkpoint covers; None: unknown."""
    cost: float | None = None
    """Typical seconds for which a save blocks; None: there was none."""
    lag: float | None = None
    """Typical seconds from a save's copy until the checkpoint is durable."""
    interval: float | None = None
    """Current interval in seconds between two saves; None: the interval is given in steps."""
    mean: float | None = None
    """Current estimate of the seconds between two interruptions."""


Phase = Literal["setup", "waiting", "running", "stopping"]


@dataclass(frozen=True, slots=True)
class Heartbeat(Record):
    """heartbeat.json, rewritten every second; in an object store every 3 s or, in the steady state, every 90 s.

    A rising `sequence` proves a node alive without a comparison of clocks.
    """

    MOST_BYTES: ClassVar[int] = 4 << 20
    sequence: int
    time: float
    phase: Phase
    """waiting: the node replaces a lost one, and is ready to become a member."""
    progress: Annotated[dict[str, Any], Progress] | None = None
    gpu_idle_s: float | None = None
    """Seconds for which no GPU of this node has done anything while the program ran; None: not watched, or unknown."""
    timeline: Annotated[dict[str, Any], Timeline] | None = None
    """Timeline as JSON."""
    next_s: float = 0.0
    """Maximum seconds until the next heartbeat; 0: an agent that does not announce it."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Replace a phase that only a newer agent knows by `running`: its node is alive and not waiting."""
        return {**value, "phase": "running"} if _is_unknown(value.get("phase"), Phase) else value


@dataclass(frozen=True, slots=True)
class Span(Record):
    """One generation of the program on one node. Times are epoch seconds, as everywhere in a Timeline."""

    generation: int
    started: float
    first_step: float | None = None
    """Time at which the first finished step was seen, accurate to a heartbeat; None: no step was seen."""
    ended: float | None = None
    """Time at which the last process of the generation ended; None: it runs."""
    reason: str = ""
    """Why the generation ended; "" while it lasts, and after success."""
    progress: Annotated[dict[str, Any], Progress] | None = None
    """Last Progress of this generation, as JSON."""


@dataclass(frozen=True, slots=True)
class Timeline(Record):
    """Times of a node's phases. The wall clock is read once and the rest is measured, so that times never go back."""

    claimed: float
    setup: float | None = None
    """Time at which the code was downloaded and the setup began."""
    ready: float | None = None
    """Time at which the setup was done and the program could start."""
    spans: list[Annotated[dict[str, Any], Span]] = field(default_factory=list)
    """Span objects as JSON, oldest first."""
    ended: float | None = None
    """Time at which all staged data was written."""


NoticeKind = Literal["preempt", "terminate", "reboot", "maintenance", "freeze"]


@dataclass(frozen=True, slots=True)
class Notice(Record):
    """notice.json: the provider (or `cloudgpu preempt`) announces the machine's end at `deadline` (epoch s)."""

    kind: NoticeKind
    deadline: float
    source: str
    seconds: float | None = None
    """Seconds from its writing to the deadline; counted from when it is seen if the clocks differ by more than that."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Replace a kind that only a newer version knows by `terminate`, which makes the node save everything."""
        return {**value, "kind": "terminate"} if _is_unknown(value.get("kind"), NoticeKind) else value


StopReason = Literal["cancel", "duration", "cost", "gpu_idle", "peer"]


@dataclass(frozen=True, slots=True)
class Stop(Record):
    """stop.json: request to every node of the attempt to save, if it can, and end before `deadline` (epoch s)."""

    reason: StopReason
    deadline: float
    seconds: float | None = None
    """Seconds to the deadline; see Notice."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Replace a reason that only a newer supervisor knows by `cancel`: the node must end in any case."""
        return {**value, "reason": "cancel"} if _is_unknown(value.get("reason"), StopReason) else value


EXIT_CODES = range(-(1 << 31), 1 << 31)
"""Range of the store's column. Exit codes of Windows do not occur."""


@dataclass(frozen=True, slots=True)
class Signal(Record):
    """signal.json: an attempt's machines poll it, and read stop.json and notice.json when it has changed."""

    nonce: str
    """Random text that makes each signal differ from the previous one."""
    watch_s: float = 0.0
    """Seconds, from when a machine sees it, for which a command watches the job; 0: no command does."""


Outcome = Literal["succeeded", "failed", "again", "preempted", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Result(Record):
    """result.json, create-only: how a node ended.

    succeeded: exit code 0; failed: the program or the setup failed; again: the program asks to be run again;
    preempted: ended after a notice; stopped: ended after stop.json; error: cloudgpu itself failed (bad job dir,
    unsafe archive ...).
    """

    MOST_BYTES: ClassVar[int] = 4 << 20
    outcome: Outcome
    exit_code: Annotated[int, EXIT_CODES] | None
    """Exit code of the program; negative: killed by that signal; None: it never ran."""
    reason: str
    started: float
    ended: float
    progress: Annotated[dict[str, Any], Progress] | None = None
    final: bool = False
    """True if the program declares that running it again is pointless."""
    timeline: Annotated[dict[str, Any], Timeline] | None = None
    """Timeline as JSON."""
    missing_outputs: list[str] = field(default_factory=list)
    """The job's `outputs` of which there is nothing. Only rank 0 reports them."""

    @classmethod
    def adapt(cls, value: Mapping[str, object]) -> Mapping[str, Any]:
        """Replace an outcome that only a newer agent knows by `error`, with a reason that names it."""
        outcome = value.get("outcome")
        if not _is_unknown(outcome, Outcome):
            return value
        reason = f"unknown outcome {outcome!r:.80}: {value.get('reason')!s:.1000}"
        return {**value, "outcome": "error", "reason": reason}


def _is_unknown(word: object, known: object) -> bool:  # known: a Literal
    """Return whether a value is a string that is not one of the known words."""
    return isinstance(word, str) and word not in get_args(known)
