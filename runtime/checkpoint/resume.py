"""Resume a training in a new process: begin an attempt, then restore the newest checkpoint.

All functions are collective; an error on one rank is raised on all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol.checkpoint_names import Name, run_nonce
from ...protocol.jobdir import JobDirError, is_permanent
from .errors import CheckpointError, StoreUnavailableError, TakenOverError, logger
from .restore.restore import Restored, restore
from .settings import from_environment
from .store import CheckpointStore
from .writer.client import WriterClient, finish_earlier

if TYPE_CHECKING:
    from .ranks import Ranks

DRAIN_TIMEOUT_S = 60.0
"""Timeout in seconds for the saves that an earlier process has staged."""
_LOAD_ERRORS = (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError, AssertionError)
"""Exceptions raised by load_state_dict() of various classes for a state that does not fit."""


class Attempt(NamedTuple):
    """One start of a training, on all its ranks."""

    number: int
    run: str
    """Identifier of this start: run_nonce() of rank 0."""
    unwritable: CheckpointError | None = None
    """Reason why nothing can be saved, if so. Training cannot begin then, but a finished training can be restored."""


def begin_attempt(store: CheckpointStore, ranks: Ranks, *, shared: bool) -> Attempt:
    """Begin an attempt and fence off older ones.

    shared  True: several jobs, each of which numbers its attempts from 1, may use the folder, so the number is taken
            from the folder instead of the job

    Raises TakenOverError if a newer attempt has begun.
    """
    with ranks.raise_on_all():  # before the claim, which would fence off saves that the previous process still writes
        finish_earlier(store, ranks.rank, DRAIN_TIMEOUT_S)
    attempt = ranks.from_first(lambda: _claim(store, shared=shared))
    store.job_dir.make = False  # the folder exists now; if it is deleted during training, it is not created again
    return attempt


def _claim(store: CheckpointStore, *, shared: bool) -> Attempt:
    wanted = None if shared else from_environment("CLOUDGPU_ATTEMPT", int, None)
    try:
        attempt = store.claim(wanted)
        newest = store.newest_attempt()
    except JobDirError as error:
        kind = CheckpointError if is_permanent(error) else StoreUnavailableError
        unwritable = kind(f"nothing can be saved in {store}: {error}. Mend that, or give another folder")
        return Attempt(wanted if wanted is not None else _unclaimed(store), run_nonce(), unwritable)
    if newest > attempt:
        raise TakenOverError(f"attempt {newest} has taken over {store} from this attempt {attempt}")
    return Attempt(attempt, run_nonce())


def _unclaimed(store: CheckpointStore) -> int:
    """Return the number after the newest attempt, or 1 if that cannot be read."""
    try:
        return store.newest_attempt() + 1
    except JobDirError:
        return 1


def starts_since(checkpoint: Name, attempt: int, *, shared: bool) -> int:
    """Return how many times the training was started since this checkpoint was saved, including this start.

    In a job whose folder is not `shared`, the result is 1: the numbers of its attempts do not count starts, because
    they include refused launches, and its interruptions are in $CLOUDGPU_INTERRUPTIONS.
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
    """Load the newest checkpoint into the objects; return it, or None if there is none.

    Raises CheckpointError if no checkpoint can be restored (see restore()), or if it does not fit the objects.
    """
    with ranks.raise_on_all():
        _drain(client)
    if ranks.rank == 0 and attempt.unwritable is None:  # all earlier saves are committed or have failed by now
        _clean(store, attempt.number)
    found = restore(store, ranks, objects=objects, cached=client.cached, on_damage=on_damage)
    if found is not None:
        with ranks.raise_on_all():
            _load(store, found, objects)
    return found


def _drain(client: WriterClient) -> None:
    start = time.monotonic()
    if not client.drain(DRAIN_TIMEOUT_S) and time.monotonic() - start > DRAIN_TIMEOUT_S:
        logger().warning("an earlier process's writer has not come to an end: what it still writes may be lost")


def _clean(store: CheckpointStore, attempt: int) -> None:
    """Remove unfinished checkpoints of earlier processes; an error is logged."""
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
    except _LOAD_ERRORS as error:
        raise CheckpointError(
            f"{store}: checkpoint {found.name} does not fit this program: {error}. Restore what it was saved with, or "
            "use another folder to start over"
        ) from error
