"""Which checkpoint a run goes on from: the newest of which every rank verified all that it needs.

One that is found damaged, twice, is quarantined (DAMAGED.json) and the next older is taken. One that cannot be read for
now (a store that does not answer, a permission) is passed over unmarked; if nothing else is left, that is an error:
beginning anew would throw away what may be readable again in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..jobdir import JobDirError
from . import random_state
from .errors import CheckpointError, PassingError, UnusableError, logger
from .loading import Files, load
from .manifest import RankManifest
from .names import Name
from .placement import Placements
from .store import COMMIT
from .verified import confirmed

if TYPE_CHECKING:
    from .ranks import Ranks
    from .store import Commit

Cached = Callable[[Name], tuple[bytes, memoryview] | None]
"""WriterClient.cached: what survives on this machine of a checkpoint that this rank staged."""


class ReadableStore(Protocol):
    """What is asked of CheckpointStore here. Every method raises JobDirError where the store cannot be read."""

    def committed(self) -> list[Name]:
        """Every checkpoint not known to be damaged, newest first."""
        ...

    def read_commit(self, name: Name) -> Commit:
        """COMMIT.json, verified; raises UnusableError."""
        ...

    def get(self, name: Name, file: str) -> bytes:
        """A whole small file; raises MissingError."""
        ...

    def get_range(self, name: Name, file: str, start: int, end: int) -> bytes:
        """Bytes of a file; raises MissingError. Fewer than asked for if the file is shorter, if the store says so."""
        ...

    def file_size(self, name: Name, file: str) -> int:
        """Bytes; raises MissingError."""
        ...

    def local_path(self, name: Name, file: str) -> Path | None:
        """Where the file lies on a mounted file system; None: in an object store."""
        ...

    def mark_damaged(self, name: Name, reason: str) -> None:
        """So that later runs pass over it, and a person can look at it meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint as this rank needs it."""

    name: Name
    commit: Commit
    snapshot: dict[str, Any]
    """As it was saved; tensors in memory of our own, as DTensors where the live object has them."""


def restore(store: ReadableStore, ranks: Ranks, *, objects: Mapping[str, Any], cached: Cached) -> Restored | None:
    """The newest checkpoint that all ranks verified; None if there has never been one, or all are damaged.

    objects   the live objects by name: asked for the mesh and placements of DTensors, not changed
    cached    read instead of the store where its content is what was committed

    Collective: every rank must call it. Raises CheckpointError if there are checkpoints, none can be used, and one of
    them only for now; or if the newest does not fit the objects.
    """
    tried: list[Name] = []
    unreadable: list[Name] = []
    # Listed again, for an earlier process may have committed its last save meanwhile, and removed what it replaces.
    while names := [name for name in _committed(store, ranks) if name not in tried]:
        placements = Placements(objects)
        for name in names:
            found, verdicts = _attempt(store, name, ranks, placements, cached)
            if not any(verdicts):
                return found
            tried.append(name)
            if any(not one.damaged for one in verdicts if one):
                unreadable.append(name)
    if unreadable:
        listed = ", ".join(map(str, unreadable))
        raise PassingError(f"{store}: no checkpoint could be restored ({listed}): see above")
    if tried and ranks.rank == 0:
        logger().warning(f"{store}: every checkpoint is damaged: training begins anew")
    return None


def _attempt(
    store: ReadableStore, name: Name, ranks: Ranks, placements: Placements, cached: Cached
) -> tuple[Restored | None, list[_Verdict | None]]:
    """One checkpoint, and what each rank says of it; None: it can use it. What nobody can help is raised."""
    found, verdict, error = _try(lambda: _read(store, name, ranks, placements, cached))
    verdicts = ranks.gather(verdict)
    if error is not None:
        raise error
    if misfit := next((one for one in verdicts if one and one.misfit), None):
        raise CheckpointError(f"{store}: checkpoint {name} does not fit this program: {misfit.reason}")
    if not any(verdicts):
        return found, verdicts
    if ranks.rank == 0:
        _report(store, name, verdicts)
    return None, verdicts  # the memory is needed for the next one


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why a rank cannot use a checkpoint."""

    reason: str
    damaged: bool = False
    """For good, whoever reads it."""
    misfit: bool = False
    """It is whole, but of another program."""


def _try(call: Callable[[], Restored]) -> tuple[Restored | None, _Verdict | None, Exception | None]:
    """What is raised on one rank is told to all before it goes on there: none is left waiting for the others."""
    try:
        return call(), None, None
    except UnusableError as error:
        return None, _Verdict(str(error), damaged=error.damaged), None
    except JobDirError as error:
        return None, _Verdict(str(error)), None
    except CheckpointError as error:
        return None, _Verdict(str(error), misfit=True), None
    except Exception as error:  # noqa: BLE001 - raised there by restore(); no room in memory, say
        return None, _Verdict(f"{type(error).__name__}: {error}", misfit=True), error


def _committed(store: ReadableStore, ranks: Ranks) -> list[Name]:
    try:
        return ranks.from_first(store.committed)
    except JobDirError as error:
        raise PassingError(f"checkpoints cannot be read: {error}") from error


def _read(store: ReadableStore, name: Name, ranks: Ranks, placements: Placements, cached: Cached) -> Restored:
    commit = confirmed(lambda: store.read_commit(name), store.local_path(name, COMMIT))
    files = Files(store, name, commit)
    snapshot: dict[str, Any] | None = None
    if ranks.world == files.world and (slot := _surviving(cached(name), files.manifest(ranks.rank))):
        try:
            snapshot = load(files, ranks.rank, ranks.world, placements, slot)
        except UnusableError as error:  # the process died while it overwrote the slot; the store has it whole
            logger().info(f"checkpoint {name} is read from the store, not from this machine's memory: {error}")
    if snapshot is None:
        snapshot = load(files, ranks.rank, ranks.world, placements, None)
    if ranks.world != files.world:
        snapshot["random"] = random_state.derive(snapshot["random"], ranks.rank, snapshot["step"])
        if ranks.rank == 0:
            logger().info(
                f"checkpoint {name} was saved by {files.world} ranks, this run has {ranks.world}: rank 0 goes on with "
                "its random numbers, the others begin new streams derived from them"
            )
    return Restored(name, commit, snapshot)


def _surviving(found: tuple[bytes, memoryview] | None, manifest: RankManifest) -> memoryview | None:
    """This machine's copy of what the manifest describes, not verified yet."""
    if found is None or len(found[1]) < manifest.size:
        return None
    return found[1][: manifest.size]


def _report(store: ReadableStore, name: Name, verdicts: Sequence[_Verdict | None]) -> None:
    """Say once why; what is damaged for good is marked, so that later runs need not look at it again."""
    rank, verdict = next((rank, verdict) for rank, verdict in enumerate(verdicts) if verdict)
    logger().warning(f"checkpoint {name} is passed over (rank {rank}): {verdict.reason}")
    damage = next((one.reason for one in verdicts if one and one.damaged), None)
    if damage is None:
        return
    try:
        if name in store.committed():  # else it has been removed meanwhile
            store.mark_damaged(name, damage)
    except JobDirError as error:
        logger().warning(f"checkpoint {name} could not be marked as damaged: {error}")
