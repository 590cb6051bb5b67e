"""Begin a job, or a further run of one: upload, store, and give its secrets to a supervisor that advances it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ControlError, NotEndedError, ResumeError, SubmitError
from ..removal.removing import remove_leftovers
from ..secrets.providing import give_secrets, values_of
from ..store.store import LostRaceError, Store
from ..supervisor.outdated import replace_if_different
from ..supervisor.spawn import ensure_supervisor
from . import resumption
from .submission import prepare, submitted_sources
from .submittable_offers import usable_offers

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec
    from ...jobspecs.plan import Offer, Plan
    from ..store.model import JobRow
    from .origin import Origin
    from .resumption import Resumption
    from .upload import ProgressCallback


def begin_job(
    store: Store,
    loaded: LoadedSpec,
    plan: Plan,
    *,
    origin: Origin | None,
    on_progress: ProgressCallback | None,
    supervise: bool,
) -> JobRow:
    """Submit a job; return its row. See jobs.submit()."""
    offers = usable_offers(loaded.spec, plan)
    _prepare_supervisor(offers, supervise=supervise)
    values = values_of(submitted_sources(loaded))
    row = prepare(loaded, offers, on_progress or _no_progress, origin)
    if supervise:
        give_secrets(row.id, values, "not submitted")  # before it is stored, so that it does not begin by waiting
    begin = "" if row.source is None else f" from step {row.source.step:,} of {row.source.job}"
    store.insert_job(row, f"submitted{begin}; the best offer is {row.offers[0].label}")
    if supervise:
        _supervise(row.id, "submitted")
    return row


def begin_run(
    store: Store, draft: Resumption, plan: Plan, *, on_progress: ProgressCallback | None, supervise: bool
) -> None:
    """Begin a further run of an ended job. See Job.begin_run()."""
    offers = usable_offers(draft.spec, plan)
    values = values_of(draft.sources)
    _prepare_supervisor(offers, supervise=supervise)
    row = resumption.prepare(draft, offers, on_progress or _no_progress)
    message = f"run {row.run.number}: {draft.describe_start()}; the best offer is {row.offers[0].label}"
    try:
        store.resume_job(draft.row, row, message)
    except LostRaceError as error:
        if remove_leftovers(store, draft.row):
            raise ResumeError(f"{row.id} was removed by another command") from error
        raise NotEndedError(f"{row.id} was resumed, or otherwise changed, by another command") from error
    if supervise:
        # Not earlier: the supervisor drops the values of a job that has ended
        give_secrets(row.id, values, "resumed")
        _supervise(row.id, "resumed")


def _prepare_supervisor(offers: Sequence[Offer], *, supervise: bool) -> None:
    """Replace a supervisor that cannot launch on these offers' targets."""
    if supervise and replace_if_different({offer.cloud for offer in offers}):
        # Needed now: another process may have stored a job for the supervisor that was just stopped
        ensure_supervisor()


def _supervise(job_id: str, what: str) -> None:
    """Ensure that a supervisor advances a job that was just stored. Raises SubmitError."""
    try:
        ensure_supervisor(job_id)
    except ControlError as error:
        raise SubmitError(f"{job_id} is {what}, and waits: {error}") from error


def _no_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""
