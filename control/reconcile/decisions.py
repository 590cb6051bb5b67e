"""Decide what follows for a job without a running attempt: another attempt, a wait, or its end. Pure functions."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from ...jobspecs.plan import Offer
from ...jobspecs.unit_text import format_duration
from ..accounting import cost
from ..accounting.paid_time import progress_of, spans_of
from ..store.model import Attempt, JobRow, Policy, Refused
from . import login_hints
from .failover import choose, concerns, current_search
from .outcomes import NodeView
from .refusal_report import CLASSES, message, utc

GRACE_S = {"cancel": 30.0, "peer": 30.0, "duration": 120.0, "cost": 120.0, "gpu_idle": 120.0}
"""Seconds in which programs may save and end, by the cause of the stop."""

MAX_INTERRUPTIONS_WITHOUT_CHECKPOINT = 5
"""Maximum number of consecutive interruptions without a new checkpoint; after one more, the job fails."""

IN_PLACE_S = 120.0
"""Seconds from the first transient error of a place for which requests are retried there if other places exist."""

_BACKOFF_S = {
    "lost": (1.0, 60.0),
    "failed": (1.0, 60.0),
    "round": (15.0, 600.0),
    "wait": (0.5, 30.0),
    "queue": (0.2, 0.4),
    "login": (2.0, 24.0),
}
"""Cause of the wait -> first and maximum backoff in seconds; each pause is twice the previous one. The maximum of
`login` plus its jitter is 30 s, after which renewed credentials must be in use (login_hints.consequence)."""


@dataclass(frozen=True, slots=True)
class End:
    """Decision to end the job."""

    state: str
    cause: str
    reason: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Decision to start a new attempt."""

    offer: Offer
    round: int
    """Number of failed requests for this offer since machines were last obtained."""
    pause_s: float
    reason: str
    """Reason for another attempt; "" for the first."""


@dataclass(frozen=True, slots=True)
class Later:
    """Decision to wait because every place is closed for now."""

    until: float
    """Epoch seconds of the next decision, which also takes into account what other jobs found out meanwhile."""
    reason: str


@dataclass(frozen=True, slots=True)
class _Again:
    """Decision to continue after a pause, with any offer that has machines."""

    pause_s: float
    reason: str


def backoff(kind: str, tries: int) -> float:
    """Return the seconds to wait after `tries` failed tries (from 1)."""
    first, most = _BACKOFF_S[kind]
    return float(min(most, first * 2.0 ** min(tries - 1, 30)))


def jitter(most_s: float, *seed: object) -> float:
    """Return seconds from 0 up to `most_s`, fixed for a seed; spreads the retries of jobs refused together."""
    digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
    return most_s * int.from_bytes(digest[:4], "big") / 2**32


def wanted_end(job: JobRow, current: Attempt | None, now: float) -> End | None:
    """Return the end that the user's cancellation or a limit requires; None: the job may continue."""
    policy = job.policy
    if job.state == "stopping":
        return End(_STOPPED_AS[job.cause], job.cause, login_hints.plain(job.reason))
    if job.goal == "cancel":
        return End("cancelled", "cancel", "cancelled by its user")
    if policy.duration_s is not None and now - job.begun >= policy.duration_s:
        limit = datetime.timedelta(seconds=policy.duration_s)
        begun = "submitted" if job.run.begun is None else "resumed"
        return End("stopped", "duration", f"limits.duration reached: {limit} since it was {begun}")
    if policy.cost_usd is not None:
        already = cost.spent_in_run(job, current, now)
        price = current.price if current is not None and current.state != "ended" else Decimal(0)
        if already is None or price is None:
            return End("stopped", "cost", "limits.cost is set and the price is unknown")
        if already + cost.reserve(policy.cost_usd, price, GRACE_S["cost"]) >= policy.cost_usd:
            since = "" if job.run.begun is None else " since it was resumed"
            return End("stopped", "cost", f"limits.cost reached: {already:.2f} of {policy.cost_usd} USD spent{since}")
    return None


def idle_end(job: JobRow, nodes: Sequence[NodeView]) -> End | None:
    """Return the end required by limits.gpu_idle if no GPU of the job does anything; None: continue. Unknown idle
    times count as busy."""
    limit = job.policy.gpu_idle_s
    idle = [node.gpu_idle_s for node in nodes if node.has_gpus and node.end is None]
    if limit is None or not idle or any(seconds is None or seconds < limit for seconds in idle):
        return None
    return End("stopped", "gpu_idle", f"limits.gpu_idle reached: no GPU did anything for {format_duration(limit)}")


_STOPPED_AS = {"cancel": "cancelled", "duration": "stopped", "cost": "stopped", "gpu_idle": "stopped"}


def decide(
    job: JobRow, attempts: Sequence[Attempt], now: float, elsewhere: Sequence[Refused] = ()
) -> End | Start | Later:
    """Decide what follows the newest attempt of the job's run; all attempts have ended. What happened in earlier runs
    does not count.

    `attempts`: all of the job.
    `elsewhere`: recent capacity refusals of other jobs, see Store.capacity_refusals().
    """
    attempts = job.in_run(attempts)
    last = attempts[-1] if attempts else None
    if last is not None and last.outcome == "succeeded":
        return End("succeeded", "", last.reason, 0)
    end = wanted_end(job, last, now)
    if end is not None:
        return end
    follows = _AFTER[last.outcome](job, attempts) if last is not None else _Again(0.0, "")
    return follows if isinstance(follows, End) else _choose_offer(job, attempts, elsewhere, now, follows)


def _after_failure(job: JobRow, attempts: Sequence[Attempt]) -> End | _Again:
    last = attempts[-1]
    failures = used(attempts).failures
    if last.cause == "user":
        return End("failed", "user", last.reason, last.exit_code)
    if failures > job.policy.failures:
        return End("failed", "failed", last.reason, last.exit_code)
    reason = f"retry {failures} of {job.policy.failures} after: {last.reason}"
    return _Again(backoff("failed", failures), reason)


def _after_error(_job: JobRow, attempts: Sequence[Attempt]) -> End | _Again:
    return End("failed", "error", attempts[-1].reason, attempts[-1].exit_code)


def _after_interruption(job: JobRow, attempts: Sequence[Attempt]) -> End | _Again:
    last, policy = attempts[-1], job.policy
    interruptions = used(attempts).interruptions
    if policy.preemptions is not None and interruptions > policy.preemptions:
        reason = f"interrupted {interruptions} times, and retry.preemption is {policy.preemptions}: {last.reason}"
        return End("failed", last.outcome, reason, last.exit_code)
    fruitless = interruptions_without_checkpoint(attempts)
    if fruitless > MAX_INTERRUPTIONS_WITHOUT_CHECKPOINT:
        reason = f"interrupted {fruitless} times in a row without a new checkpoint; the last time: {last.reason}"
        return End("failed", last.outcome, reason, last.exit_code)
    # The first interruption is retried at once, later ones with backoff.
    pause = backoff("lost", fruitless - 1) if fruitless > 1 else 0.0
    return _Again(pause, f"interrupted: {last.reason}")


def _after_refusal(_job: JobRow, attempts: Sequence[Attempt]) -> End | _Again:
    """Return the decision to continue. The provider's message is left out, as the attempt's own reason contains it."""
    last = attempts[-1]
    return _Again(0.0, f"{CLASSES.get(last.cause, last.cause)}: {last.offer.label}")


@dataclass(frozen=True, slots=True)
class Tries:
    """Restarts of a program, used or allowed, by kind."""

    failures: int
    interruptions: int


@dataclass(frozen=True, slots=True)
class TriesLeft:
    """Restarts left in the budgets; None: without limit."""

    failures: int
    interruptions: int | None


def used(attempts: Sequence[Attempt]) -> Tries:
    """Return the restarts used so far: new attempts, and restarts in place within attempts."""
    in_place = [attempt.generations[-1] for attempt in attempts if attempt.generations]
    return Tries(
        sum(last.failures for last in in_place) + sum(one.outcome == "failed" for one in attempts),
        sum(last.interruptions for last in in_place) + sum(one.outcome in _INTERRUPTIONS for one in attempts),
    )


def left_in_place(policy: Policy, attempts: Sequence[Attempt]) -> TriesLeft:
    """Return the restarts that the machines of a new attempt may do by themselves."""
    so_far, limit = used(attempts), policy.preemptions
    interruptions = None if limit is None else max(0, limit - so_far.interruptions)
    return TriesLeft(max(0, policy.failures - so_far.failures), interruptions)


_AFTER = {
    "failed": _after_failure,
    "error": _after_error,
    "preempted": _after_interruption,
    "again": _after_interruption,
    "lost": _after_interruption,
    "stopped": _after_interruption,
    "refused": _after_refusal,
}
_INTERRUPTIONS = frozenset({"preempted", "again", "lost", "stopped"})


def interruptions_without_checkpoint(attempts: Sequence[Attempt]) -> int:
    """Count the newest consecutive attempts that were interrupted without a newer checkpoint than before.

    Preemptions with a notice are the provider's doing: they are not counted, and do not end the sequence.
    """
    count = 0
    ran = [attempt for attempt in attempts if attempt.outcome != "refused"]
    for index in range(len(ran) - 1, -1, -1):
        attempt = ran[index]
        before = max((saved_step(earlier) for earlier in ran[:index]), default=0)
        if attempt.outcome not in _INTERRUPTIONS or saved_step(attempt) > before:
            return count
        count += attempt.outcome != "preempted"
    return count


def saved_step(attempt: Attempt) -> int:
    """Return the step of the newest checkpoint that any generation of its program reported; 0: none."""
    reported = [attempt.progress, *map(progress_of, spans_of(attempt.timeline))]
    return max((progress.saved_step or 0 for progress in reported if progress), default=0)


# -- choice of the offer

SPREAD_S = 30.0
"""Seconds over which waiting jobs spread their retries of the same places. The refusal of the first applies to all."""


def _choose_offer(
    job: JobRow, attempts: Sequence[Attempt], elsewhere: Sequence[Refused], now: float, again: _Again
) -> End | Start | Later:
    """Decide to start on the best open offer, to wait, or to end if none can open within retry.capacity."""
    asked = [Refused.of(attempt) for attempt in current_search(attempts)]
    found = choose(job.offers, attempts, elsewhere, now)
    deadline = search_deadline(job, attempts)
    if isinstance(found, Offer) and (now < deadline or not asked):
        return Start(found, sum(one.offer == found for one in asked), again.pause_s, again.reason)
    if found is None:
        return _fail(asked or [Refused.of(one) for one in attempts if one.outcome == "refused"])
    opens = now if isinstance(found, Offer) else found
    refusals = [*asked, *(one for one in elsewhere if any(concerns(one, offer) for offer in job.offers))]
    if now >= deadline or (asked and opens > deadline):
        waited = f"no machines within retry.capacity of {format_duration(job.policy.capacity_s or 0)}"
        return End("failed", "capacity", message(refusals, waited))
    until = min(opens + jitter(SPREAD_S, job.id), deadline)
    return Later(until, message(refusals, f"no machines available; next try at {utc(until)}"))


def search_deadline(job: JobRow, attempts: Sequence[Attempt]) -> float:
    """Return the epoch seconds when the search for machines times out (retry.capacity); math.inf: never.

    `attempts`: all attempts of the job. If the newest is still launching, it is part of the search.
    """
    if job.policy.capacity_s is None:
        return math.inf
    attempts = job.in_run(attempts)
    before = attempts[:-1] if attempts and attempts[-1].outcome == "" else attempts
    before = before[: len(before) - len(current_search(before))]
    begun = before[-1].ended if before else None
    return (job.begun if begun is None else begun) + job.policy.capacity_s


def _fail(asked: Sequence[Refused]) -> End:
    """Return the failure of a job whose offers can never open. Its cause is the class of the last refusal if that is
    auth or invalid or if all refusals have the same class, and else `no-machines`."""
    kinds = [refusal.kind for refusal in asked] or ["no-machines"]
    decisive = kinds[-1] in ("auth", "invalid") or len(set(kinds)) == 1
    return End("failed", kinds[-1] if decisive else "no-machines", message(asked))
