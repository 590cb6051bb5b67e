"""A process takes up a training: an attempt of its own is begun, then the newest checkpoint is restored.

All of it is collective; what fails on one rank is raised on all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol.checkpoint_names import Name, run_nonce
from ...protocol.jobdir import JobDirError, is_permanent
from .errors import CheckpointError, OutOfReachError, TakenOverError, logger
from .restore.restore import Restored, restore
from .settings import from_environment
from .store import CheckpointStore
from .writer.client import WriterClient, finish_earlier

if TYPE_CHECKING:
    from .ranks import Ranks

DRAIN = 60.0
"""Seconds that a new process waits for what an earlier one has staged."""
_MISFITS = (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError, AssertionError)
"""What load_state_dict() of this or that kind raises for a state that is not its own."""


class Attempt(NamedTuple):
    """One process's turn at a training, on all its ranks."""

    number: int
    run: str
    """run_nonce() of the first rank."""
    unwritable: CheckpointError | None = None
    """Why nothing can be saved: training cannot begin, but what is finished can be restored."""


def begin_attempt(store: CheckpointStore, ranks: Ranks, *, shared: bool) -> Attempt:
    """Fence off what may still run of older attempts.

    shared: jobs may come here one after the other, and each counts its own attempts from 1: they are counted here.
    """
    with ranks.together():  # before the claim, which fences off what is still being written of the one before
        finish_earlier(store, ranks.rank, DRAIN)
    attempt = ranks.from_first(lambda: _claim(store, shared=shared))
    store.job_dir.make = False  # it is there now; should it be deleted while we train, it stays so
    return attempt


def _claim(store: CheckpointStore, *, shared: bool) -> Attempt:
    wanted = None if shared else from_environment("CLOUDGPU_ATTEMPT", int, None)
    try:
        attempt = store.claim(wanted)
        newest = store.newest_attempt()
    except JobDirError as error:
        kind = CheckpointError if is_permanent(error) else OutOfReachError
        unwritable = kind(f"nothing can be saved in {store}: {error}. Mend that, or give another folder")
        return Attempt(wanted if wanted is not None else _unclaimed(store), run_nonce(), unwritable)
    if newest > attempt:
        raise TakenOverError(f"attempt {newest} has taken over {store} from this attempt {attempt}")
    return Attempt(attempt, run_nonce())


def _unclaimed(store: CheckpointStore) -> int:
    """Return the attempt after the newest, as far as that can be read."""
    try:
        return store.newest_attempt() + 1
    except JobDirError:
        return 1


def starts_since(checkpoint: Name, attempt: int, *, shared: bool) -> int:
    """Return how often the training was started since this checkpoint was saved, this attempt included.

    A job's attempt numbers also count launches that were refused, so they say no more than that there was one start;
    what its earlier attempts met is in CLOUDGPU_INTERRUPTIONS.
    """
    is_counted = shared or not os.environ.get("CLOUDGPU_ATTEMPT")
    return max(1, attempt - checkpoint.attempt) if is_counted else 1


def restore_objects(
    store: CheckpointStore,
    ranks: Ranks,
    attempt: Attempt,
    client: WriterClient,
    objects: Mapping[str, object],
    *,
    on_damage: str,
) -> Restored | None:
    """Load the newest checkpoint into the objects; None if there is none."""
    with ranks.together():
        _drain(client)
    if ranks.rank == 0 and attempt.unwritable is None:  # all have drained: what is not committed now never will be
        _clean(store, attempt.number)
    found = restore(store, ranks, objects=objects, cached=client.cached, on_damage=on_damage)
    if found is not None:
        with ranks.together():
            _load(store, found, objects)
    return found


def _drain(client: WriterClient) -> None:
    start = time.monotonic()
    if not client.drain(DRAIN) and time.monotonic() - start > DRAIN:
        logger().warning("an earlier process's writer has not come to an end: what it still writes may be lost")


def _clean(store: CheckpointStore, attempt: int) -> None:
    """Remove what dead writers left unfinished."""
    try:
        store.clean(attempt)
    except JobDirError as error:
        logger().warning(f"{store} could not be cleaned of unfinished checkpoints: {error}")


def _load(store: CheckpointStore, found: Restored, objects: Mapping[str, Any]) -> None:
    saved = found.snapshot["objects"]
    try:
        if missing := sorted(objects.keys() - saved.keys()):
            raise ValueError(f"it has no state of {', '.join(missing)}")
        for name in sorted(saved.keys() - objects.keys()):
            logger().warning(f"the checkpoint's state of {name!r} is not used: Checkpointer() was given no {name}=")
        for name, value in objects.items():
            value.load_state_dict(saved[name])
    except _MISFITS as error:
        raise CheckpointError(
            f"{store}: checkpoint {found.name} does not fit this program: {error}. Restore what it was saved with, or "
            "give another folder to begin anew"
        ) from error
