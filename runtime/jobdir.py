"""The job dir: the only meeting place of the control side and the machines. Standard library and obstore only.

    <job_dir>/<job id>/
      job.json                          the resolved spec; its sha256 is what a machine is told at boot
      code/<sha256>.tar.gz
      attempts/0001/attempt.json        offer, nodes, ranks
      attempts/0001/stop.json           what is wanted of this attempt's machines: Stop
      attempts/0001/nodes/worker-0.1/   claim (create-only), address.json, notice.json, heartbeat.json,
                                        log/00000001.gz ..., result.json (create-only)
      checkpoints/<step>-<attempt>-<nonce>/   shards, manifests, COMMIT.json written last
      outputs/

Every write that decides something is create-only: local folders have no compare-and-swap, and none is needed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

JOB_KEY = "job.json"
SCHEMES = ("file", "s3", "gs", "az")

_T = TypeVar("_T")


class JobDirError(Exception):
    """The job dir cannot be read or written; the message names it and says why."""


class MissingError(JobDirError):
    """No object has this key."""


def code_key(sha256: str) -> str:
    return f"code/{sha256}.tar.gz"


def attempt_key(attempt: int, name: str = "attempt.json") -> str:
    return f"attempts/{attempt:04d}/{name}"


def node_key(attempt: int, node: str, name: str) -> str:
    return f"attempts/{attempt:04d}/nodes/{node}/{name}"


class JobDir:
    """One job's folder in an object store or a file system, by URL. Keys are relative, with `/`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            # A local folder is made on the first write, not here: looking at a job must create nothing.
            self._store = from_url(self.url, mkdir=True) if self.url.startswith("file:") else from_url(self.url)
        except (BaseError, ValueError, OSError) as error:
            raise JobDirError(f"{self.url} cannot be used as a job dir: {error}") from error

    def put(self, key: str, data: bytes) -> None:
        """Write, replacing what is there; readers see the old or the new object, never a part."""
        self._call(f"writing {key}", lambda: obstore.put(self._store, key, data))

    def create(self, key: str, data: bytes) -> bool:
        """Write only if nothing has this key; True if the object there is this one.

        A retried write whose first answer was lost finds its own object: so equal content counts as won, and content
        that decides something must name its writer.
        """
        try:
            obstore.put(self._store, key, data, mode="create")
        except AlreadyExistsError:
            return self.get(key) == data
        except (BaseError, OSError) as error:
            raise self._error(f"creating {key}", error) from error
        return True

    def get(self, key: str) -> bytes:
        """The object's bytes; raises MissingError."""
        return self._call(f"reading {key}", lambda: bytes(obstore.get(self._store, key).bytes()))

    def find(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is no such object."""
        try:
            return self.get(key)
        except MissingError:
            return None

    def list(self, prefix: str) -> list[str]:
        """Keys under a folder, sorted; empty if there is no such folder."""
        # A listing of a local folder that vanishes meanwhile says so with NotFound: it is then empty.
        try:
            return self._call(f"listing {prefix}", lambda: sorted(self._paths(prefix)))
        except MissingError:
            return []

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if it is gone already."""
        try:
            self._call(f"deleting {key}", lambda: obstore.delete(self._store, key))
        except MissingError:
            return

    def _paths(self, prefix: str) -> Iterator[str]:
        for batch in obstore.list(self._store, prefix.rstrip("/") + "/"):
            yield from (meta["path"] for meta in batch)

    def _call(self, doing: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (NotFoundError, FileNotFoundError) as error:
            raise MissingError(f"{self.url}: {doing}: there is no such object") from error
        except (BaseError, OSError) as error:
            raise self._error(doing, error) from error

    def _error(self, doing: str, error: Exception) -> JobDirError:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return JobDirError(f"{self.url}: {doing} failed: {cause}")


def local_url(path: Path) -> str:
    """The file:// URL of a folder, any character in its name quoted."""
    return "file://" + quote(str(path.resolve()))


class Record:
    """A JSON object of the job dir. Reading is lenient: fields of another version are dropped."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises JobDirError if the bytes are no such record."""
        try:
            value: Mapping[str, Any] = json.loads(data)
            fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every Record is a dataclass
            return cls(**{name: value[name] for name in value if name in fields})
        except (ValueError, TypeError) as error:
            raise JobDirError(f"not a {cls.__name__}: {error}") from error

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":")).encode()  # type: ignore[call-overload]


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

    attempt: int
    offer: dict[str, Any]
    nodes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Claim(Record):
    """Create-only: which machine process holds a rank's incarnation."""

    machine: str
    nonce: str
    time: float


@dataclass(frozen=True, slots=True)
class Address(Record):
    """Where the other nodes reach this one; rank 0's is MASTER_ADDR and MASTER_PORT."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """What the program's Checkpointer says of itself, through the file named by CLOUDGPU_PROGRESS."""

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


@dataclass(frozen=True, slots=True)
class Heartbeat(Record):
    """heartbeat.json, rewritten about once a second; `sequence` tells a live node without comparing clocks."""

    sequence: int
    time: float
    phase: Literal["setup", "running", "stopping"]
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Notice(Record):
    """notice.json: the provider's word (or `cloudgpu preempt`'s) that this machine will go at `deadline` (epoch s)."""

    kind: Literal["preempt", "terminate", "reboot", "freeze"]
    deadline: float
    source: str


StopReason = Literal["cancel", "duration", "cost", "peer"]


@dataclass(frozen=True, slots=True)
class Stop(Record):
    """stop.json: every node of the attempt is to save, if it can, and end before `deadline` (epoch s)."""

    reason: StopReason
    deadline: float


Outcome = Literal["succeeded", "failed", "preempted", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Result(Record):
    """result.json, create-only: how a node ended.

    succeeded: exit 0; failed: the program's or the setup's own failure; preempted: ended upon a notice;
    stopped: ended upon stop.json; error: cloudgpu itself could not go on (bad job dir, unsafe archive ...).
    """

    outcome: Outcome
    exit_code: int | None
    """Of the program; negative: killed by that signal; None: it never ran."""
    reason: str
    started: float
    ended: float
    progress: dict[str, Any] | None = None
