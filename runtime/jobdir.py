"""The job dir: the only meeting place of the control side and the machines. Standard library and obstore only.

    <job_dir>/<job id>/
      job.json                          the resolved spec; its sha256 is what a machine is told at boot
      code/<sha256>.tar.gz
      attempts/0001/attempt.json        offer, nodes, ranks
      attempts/0001/stop.json           what is wanted of this attempt's machines: Stop
      attempts/0001/nodes/worker-0.1/   claim (create-only), address.json, notice.json, heartbeat.json,
                                        log/00000001.gz ..., result.json (create-only)
      attempts/0001/generations/0002.json     create-only: how the program goes on after one of its processes died
      checkpoints/<step>-<attempt>-<nonce>/   shards, manifests, COMMIT.json written last
      outputs/

Every write that decides something is create-only: local folders have no compare-and-swap, and none is needed.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote, unquote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

JOB_KEY = "job.json"
SCHEMES = ("file", "s3", "gs", "az")
PART = 8 << 20
"""Bytes per request of an upload."""
UPLOADS = 4
"""Requests of an upload that run at the same time."""

# A stalled connection must not look like a stalled job: everyone who calls has its own patience and tries again.
# Plain http is used where an endpoint is set to it, such as a store of one's own (AWS_ENDPOINT_URL), and nowhere else.
_CLIENT: ClientConfig = {"timeout": "30s", "connect_timeout": "5s", "allow_http": True}
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=30)}

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


def generation_key(attempt: int, generation: int) -> str:
    return attempt_key(attempt, f"generations/{generation:04d}.json")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it."""

    key: str
    size: int
    modified: float
    """Epoch seconds, by the store's clock."""


class JobDir:
    """One job's folder in an object store or a file system, by URL. Keys are relative, with `/`.

    Opening makes nothing. A local folder that is not there yet is made by the first write, unless `make` is false: so
    for all who work on a job that was submitted. One that was there and has been deleted since is not made again:
    writing to it fails, so that whoever writes notices, and nothing is there to be read.
    """

    def __init__(self, url: str, *, make: bool = True) -> None:
        self.url = url.rstrip("/")
        self.make = make
        self._folder: Path | None = None
        self._store: ObjectStore | None = None
        scheme, colon, rest = self.url.partition("://")
        if not colon or scheme not in SCHEMES:
            raise JobDirError(f"{url} cannot be used as a job dir: expected a URL of {', '.join(SCHEMES)}")
        if scheme == "file":
            # Not through from_url(), which cuts the path at a `#` or `?` that was left unquoted.
            self._folder = Path(unquote(rest.removeprefix("localhost")))
            if not self._folder.is_absolute():
                raise JobDirError(f"{url} cannot be used as a job dir: expected file:// and an absolute path")
            self._open_folder()
            return
        try:
            self._store = from_url(self.url, client_options=_CLIENT, retry_config=_RETRY)
        except (BaseError, ValueError, OSError) as error:
            raise JobDirError(f"{self.url} cannot be used as a job dir: {_cause(error)}") from error

    @property
    def folder(self) -> Path | None:
        """The local folder that this is; None in an object store."""
        return self._folder

    def writable_folder(self) -> Path | None:
        """The same, there to be written into: for whoever must see to it that files reach the disk."""
        if self._folder is not None:
            self._call("writing", self._writable)
        return self._folder

    def put(self, key: str, data: bytes | Path) -> None:
        """Write bytes or a file's content, replacing what is there; readers see the old or the new object, no part."""
        self._call(f"writing {key}", lambda: obstore.put(self._writable(), key, data))

    def upload(self, key: str, pieces: Iterator[memoryview]) -> None:
        """Write what is too large for one request, a piece at a time; the object appears when all of them are there.

        Pieces are sent from where they lie: they must not change until this returns. At most UPLOADS are under way.
        """
        self._call(
            f"writing {key}",
            lambda: obstore.put(self._writable(), key, pieces, chunk_size=PART, max_concurrency=UPLOADS),
        )

    def create(self, key: str, data: bytes) -> bool:
        """Write only if nothing has this key; True if the object there is this one.

        A retried write whose first answer was lost finds its own object: so equal content counts as won, and content
        that decides something must name its writer.
        """
        try:
            self._call(f"creating {key}", lambda: obstore.put(self._writable(), key, data, mode="create"))
        except _ExistsError:
            return self.get(key) == data
        return True

    def get(self, key: str) -> bytes:
        """The object's bytes; raises MissingError."""
        return self._call(f"reading {key}", lambda: bytes(obstore.get(self._readable(), key).bytes()))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, which must lie inside the object; raises MissingError."""
        return self._call(
            f"reading {key}", lambda: bytes(obstore.get_range(self._readable(), key, start=start, end=end))
        )

    def find(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is no such object."""
        try:
            return self.get(key)
        except MissingError:
            return None

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """The object's bytes, or None if there is no such object."""
        try:
            return self._call(f"looking for {key}", lambda: obstore.head(self._readable(), key)["size"])
        except MissingError:
            return None

    def download(self, key: str, path: Path) -> None:
        """Write the object into a local file, a piece at a time. Raises MissingError; OSError is of the local file."""
        doing = f"reading {key}"
        pieces = iter(self._call(doing, lambda: obstore.get(self._readable(), key).stream(min_chunk_size=1 << 20)))
        with path.open("wb") as file:
            while (piece := self._call(doing, lambda: next(pieces, None))) is not None:
                file.write(piece)

    def list(self, prefix: str) -> Sequence[str]:
        """Keys under a folder, sorted; empty if there is no such folder."""
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str, after: str | None = None) -> Sequence[Entry]:
        """Objects under a folder in the order of their keys, those after `after` only."""
        # A listing of a local folder that vanishes meanwhile says so with NotFound: it is then empty.
        try:
            found = self._call(f"listing {prefix}", lambda: list(self._entries(prefix, after)))
        except MissingError:
            return []
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders right under a folder, sorted."""
        try:
            listed = self._call(
                f"listing {prefix}", lambda: obstore.list_with_delimiter(self._readable(), prefix.rstrip("/") + "/")
            )
        except MissingError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if it is gone already."""
        try:
            self._call(f"deleting {key}", lambda: obstore.delete(self._readable(), key))
        except MissingError:
            return

    def _entries(self, prefix: str, after: str | None) -> Iterator[Entry]:
        for batch in obstore.list(self._readable(), prefix.rstrip("/") + "/", offset=after, chunk_size=1_000):
            for meta in batch:
                yield Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def _open_folder(self) -> ObjectStore | None:
        """The store of a local folder, once the folder is there."""
        if self._store is None and self._folder is not None and self._folder.is_dir():
            try:
                self._store = LocalStore(prefix=self._folder)
            except (BaseError, OSError) as error:
                raise JobDirError(f"{self.url} cannot be used as a job dir: {_cause(error)}") from error
        return self._store

    def _readable(self) -> ObjectStore:
        store = self._open_folder()
        # What lies where the folder was, such as a file, has none of its objects.
        if store is None or (self._folder is not None and not self._folder.is_dir()):
            raise FileNotFoundError(self.url)
        return store

    def _writable(self) -> ObjectStore:
        if self._folder is not None and not self._folder.is_dir():
            if self._store is not None or not self.make:
                raise JobDirError(f"{self.url}: the folder has been deleted")
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._readable()

    def _call(self, doing: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except AlreadyExistsError as error:
            raise _ExistsError(f"{self.url}: {doing}: there is such an object already") from error
        except (NotFoundError, FileNotFoundError) as error:
            raise MissingError(f"{self.url}: {doing}: there is no such object") from error
        except (BaseError, OSError, ValueError) as error:
            raise JobDirError(f"{self.url}: {doing} failed: {_cause(error)}") from error


class _ExistsError(JobDirError):
    """A create-only write came second."""


def _cause(error: Exception) -> str:
    """The first line: what follows in obstore's messages is for its own developers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


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
class JobRecord(Record):
    """job.json: what a machine needs to know of a job, resolved, so that it needs no parser of job files."""

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
    checkpoint_every: str | int = "auto"
    """"auto" or seconds."""
    checkpoint_keep: int = 3
    gpu_idle_s: int | None = None
    """The job is stopped when its GPUs do nothing for so long: nodes with GPUs tell for how long theirs have."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The whole JobSpec as stored; for people and for a later version, machines do not read it."""


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
    failures_left: int = 0
    """How many failures of the program may be answered by starting it again on the same machines."""
    interruptions_left: int | None = 0
    """Likewise, when the program asks to be run again; None: without limit."""


GenerationKind = Literal["failure", "interruption", "closed"]


@dataclass(frozen=True, slots=True)
class Generation(Record):
    """generations/<g>.json, create-only: what follows upon generation g - 1 of an attempt's program.

    They are numbered from 2 and without gaps. Each begins with a process that died, and says what the attempt has used
    of its budget by then; `closed` is the last: the program has ended on some node and is not started again anywhere.
    """

    generation: int
    kind: GenerationKind
    node: str
    """Whose process died, or which node has ended."""
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


@dataclass(frozen=True, slots=True)
class Heartbeat(Record):
    """heartbeat.json, rewritten about once a second; `sequence` tells a live node without comparing clocks."""

    sequence: int
    time: float
    phase: Literal["setup", "running", "stopping"]
    progress: dict[str, Any] | None = None
    gpu_idle_s: float | None = None
    """For how long no GPU of this node has done anything while the program ran; None: not watched, or unknown."""
    timeline: dict[str, Any] | None = None
    """Timeline as JSON."""


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
    progress: dict[str, Any] | None = None
    """Progress as JSON, the last that this generation told."""


@dataclass(frozen=True, slots=True)
class Timeline(Record):
    """What a node did when. The clock is read once and measured from there: times never go back."""

    claimed: float
    setup: float | None = None
    """When the code was there and the setup began."""
    ready: float | None = None
    """When the setup was done: what follows is the program."""
    spans: list[dict[str, Any]] = field(default_factory=list)
    """Span objects as JSON, oldest first."""
    ended: float | None = None
    """When everything that was staged had been written."""


@dataclass(frozen=True, slots=True)
class Notice(Record):
    """notice.json: the provider's word (or `cloudgpu preempt`'s) that this machine will go at `deadline` (epoch s)."""

    kind: Literal["preempt", "terminate", "reboot", "maintenance", "freeze"]
    deadline: float
    source: str
    seconds: float | None = None
    """From its writing to the deadline; it counts from sight where the two clocks differ by more."""


StopReason = Literal["cancel", "duration", "cost", "gpu_idle", "peer"]


@dataclass(frozen=True, slots=True)
class Stop(Record):
    """stop.json: every node of the attempt is to save, if it can, and end before `deadline` (epoch s)."""

    reason: StopReason
    deadline: float
    seconds: float | None = None
    """As in Notice."""


Outcome = Literal["succeeded", "failed", "again", "preempted", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Result(Record):
    """result.json, create-only: how a node ended.

    succeeded: exit 0; failed: the program's or the setup's own failure; again: the program asks to be run again;
    preempted: ended upon a notice; stopped: ended upon stop.json; error: cloudgpu itself could not go on (bad job dir,
    unsafe archive ...).
    """

    outcome: Outcome
    exit_code: int | None
    """Of the program; negative: killed by that signal; None: it never ran."""
    reason: str
    started: float
    ended: float
    progress: dict[str, Any] | None = None
    final: bool = False
    """The program says that running it again is of no use."""
    timeline: dict[str, Any] | None = None
    """Timeline as JSON."""
