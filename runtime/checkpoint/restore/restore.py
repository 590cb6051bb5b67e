"""Select and load the checkpoint to resume from: the newest that every rank can read and verify.

A checkpoint that is damaged in two reads is marked (DAMAGED.json), and the next older one is tried. A checkpoint that
cannot be read at the moment (store unavailable, permission denied) is skipped without a mark. If none can be restored,
the checkpoints marked by earlier runs are verified again, since the fault may have been in the reader. An error is
raised if none of these can be restored either: StoreUnavailableError if at least one may be readable later, else
AllDamagedError, unless `on_damage` is "restart".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....protocol.checkpoint_names import Name
from ....protocol.jobdir import JobDirError
from ..data import random_state
from ..errors import AllDamagedError, CheckpointError, StoreUnavailableError, UnusableError, list_damaged, logger
from ..format.manifest import RankManifest
from ..format.placement import Placements
from ..store import COMMIT
from .loading import Files, load
from .readable_store import ReadableStore
from .verified_reads import retry_if_damaged

if TYPE_CHECKING:
    from ..ranks import Ranks
    from ..store import Commit

Cached = Callable[[Name], tuple[bytes, memoryview] | None]
"""Type of WriterClient.cached, which returns this rank's manifest and data of a checkpoint if this machine's memory
still holds them."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint as loaded for this rank."""

    name: Name
    commit: Commit
    snapshot: dict[str, Any]
    """The saved snapshot. Tensors own their memory; they are DTensors where the live object has DTensors."""


def restore(
    store: ReadableStore, ranks: Ranks, *, objects: Mapping[str, object], cached: Cached, on_damage: str = "stop"
) -> Restored | None:
    """Return the newest checkpoint that all ranks verified; None if there are no checkpoints. Collective.

    objects    the live objects by name; only read, for the mesh and placements of DTensors
    cached     returns this machine's copy of a checkpoint, which is used instead of the store if it verifies
    on_damage  "restart": return None also if all checkpoints are damaged

    Raises CheckpointError if there are checkpoints but none can be used, or if the newest does not fit the objects;
    StoreUnavailableError if one of them may be readable later.
    """
    search = _Search(store, ranks, objects, cached)
    if (found := search.among(store.committed)) is not None:
        return found
    if (found := search.among(store.damaged)) is not None:
        ranks.from_first(lambda: _unmark(store, found.name))
        return found
    search.check_failures(on_damage)
    return None


class _Search:
    """Search over checkpoints, with the reason why each could not be used; makes the same decisions on every rank."""

    def __init__(self, store: ReadableStore, ranks: Ranks, objects: Mapping[str, object], cached: Cached) -> None:
        self._store, self._ranks, self._objects, self._cached = store, ranks, objects, cached
        self._tried: dict[Name, _Verdict] = {}

    def among(self, listing: Callable[[], list[Name]]) -> Restored | None:
        """Return the first checkpoint of a listing that can be used."""
        # List again after each pass: an earlier process may have committed its last save, and removed older ones.
        while names := [name for name in _listed(listing, self._ranks) if name not in self._tried]:
            placements = Placements(self._objects)
            for name in names:
                found, verdicts = _attempt(self._store, name, self._ranks, placements, self._cached)
                if not any(verdicts):
                    return found
                failures = [one for one in verdicts if one]
                # A rank that may be able to read it later takes precedence over ranks that found it damaged.
                self._tried[name] = min(failures, key=lambda one: one.damaged)
        return None

    def check_failures(self, on_damage: str) -> None:
        """Raise an error if no checkpoint could be used, unless the training may start from the beginning."""
        unreadable = [str(name) for name, verdict in self._tried.items() if not verdict.damaged]
        if unreadable:
            raise StoreUnavailableError(
                f"{self._store}: no checkpoint could be restored ({', '.join(unreadable)}): see above"
            )
        if not self._tried:
            return
        reasons = [f"{name}: {verdict.reason}" for name, verdict in self._tried.items()]
        if on_damage == "restart":
            if self._ranks.rank == 0:
                logger().warning(
                    f"{self._store}: every checkpoint is damaged: training starts over. They are kept for you to look "
                    f"at; remove them when you have:{list_damaged(reasons)}"
                )
            return
        raise AllDamagedError(str(self._store), reasons)


def _attempt(
    store: ReadableStore, name: Name, ranks: Ranks, placements: Placements, cached: Cached
) -> tuple[Restored | None, list[_Verdict | None]]:
    """Try to read one checkpoint; return it and the verdicts of all ranks, None for a rank that can use it. Collective.

    The checkpoint is None if any rank cannot use it. Raises CheckpointError if it does not fit the program, and any
    unexpected error of this rank.
    """
    found, verdict, error = _try(lambda: _read(store, name, ranks, placements, cached))
    verdicts = ranks.gather(verdict)
    if error is not None:
        raise error
    if misfit := next((one for one in verdicts if one and one.does_not_fit), None):
        raise CheckpointError(f"{store}: checkpoint {name} does not fit this program: {misfit.reason}")
    if not any(verdicts):
        return found, verdicts
    if ranks.rank == 0:
        _report(store, name, verdicts)
    return None, verdicts  # drops `found`, whose memory is needed for the next one


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Reason why a rank cannot use a checkpoint."""

    reason: str
    damaged: bool = False
    """True if the checkpoint is damaged permanently, for every reader."""
    does_not_fit: bool = False
    """True if the checkpoint does not fit this program, or reading it raised an unexpected error."""


def _try(call: Callable[[], Restored]) -> tuple[Restored | None, _Verdict | None, Exception | None]:
    """Return (result of `call`, None, None), or (None, verdict, unexpected error or None).

    Nothing is raised here, because ranks must exchange their verdicts first.
    """
    try:
        return call(), None, None
    except UnusableError as error:
        return None, _Verdict(str(error), damaged=error.damaged), None
    except JobDirError as error:
        return None, _Verdict(str(error)), None
    except CheckpointError as error:
        return None, _Verdict(str(error), does_not_fit=True), None
    except Exception as error:  # noqa: BLE001 - raised by _attempt(); e.g. out of memory
        return None, _Verdict(f"{type(error).__name__}: {error}", does_not_fit=True), error


def _listed(listing: Callable[[], list[Name]], ranks: Ranks) -> list[Name]:
    try:
        return ranks.from_first(listing)
    except JobDirError as error:
        raise StoreUnavailableError(f"checkpoints cannot be read: {error}") from error


def _read(store: ReadableStore, name: Name, ranks: Ranks, placements: Placements, cached: Cached) -> Restored:
    commit = retry_if_damaged(lambda: store.read_commit(name), store.local_path(name, COMMIT))
    files = Files(store, name, commit)
    snapshot: dict[str, Any] | None = None
    if ranks.world == files.world and (slot := _surviving(cached(name), files.manifest(ranks.rank))):
        try:
            snapshot = load(files, ranks.rank, ranks.world, placements, slot)
        except UnusableError as error:  # the process died while it overwrote the slot: use the store
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
    """Return this machine's copy of the rank's data, not verified yet; None if there is none of sufficient size."""
    if found is None or len(found[1]) < manifest.size:
        return None
    return found[1][: manifest.size]


def _unmark(store: ReadableStore, name: Name) -> None:
    logger().info(f"checkpoint {name} was marked as damaged, and every byte of it verifies now: it is used again")
    try:
        store.unmark_damaged(name)
    except JobDirError as error:
        logger().warning(f"checkpoint {name} is still marked as damaged: {error}")


def _report(store: ReadableStore, name: Name, verdicts: Sequence[_Verdict | None]) -> None:
    """Log why a checkpoint is skipped; mark a damaged one, so that later runs skip it."""
    rank, verdict = next((rank, verdict) for rank, verdict in enumerate(verdicts) if verdict)
    logger().warning(f"checkpoint {name} is passed over (rank {rank}): {verdict.reason}")
    damage = next((one.reason for one in verdicts if one and one.damaged), None)
    if damage is None:
        return
    try:
        if name in store.committed():  # else it has been removed in the meantime
            store.mark_damaged(name, damage)
    except JobDirError as error:
        logger().warning(f"checkpoint {name} could not be marked as damaged: {error}")
