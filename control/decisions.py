"""What comes next for a job that has no attempt under way: another attempt, or its end. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from ..jobspecs.plan import Offer
from . import cost
from .model import Attempt, JobRow, Policy
from .outcomes import NodeView

GRACE_S = {"cancel": 30.0, "peer": 30.0, "duration": 120.0, "cost": 120.0, "gpu_idle": 120.0}
"""How long programs may take to save and end, by the cause of the stop."""

FRUITLESS_LIMIT = 5
"""So many interruptions in a row without a new checkpoint are borne; one more, and the job fails."""

_BACKOFF_S = {"lost": (1.0, 60.0), "failed": (1.0, 60.0), "round": (15.0, 600.0), "wait": (0.5, 30.0)}
"""First and longest pause; each is twice the one before."""


@dataclass(frozen=True, slots=True)
class End:
    """The job ends."""

    state: str
    cause: str
    reason: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A new attempt is made."""

    offer: Offer
    round: int
    pause_s: float
    reason: str
    """Why there is another one; "" for the first."""


def backoff(kind: str, tries: int) -> float:
    """Seconds to wait before the try after `tries` (from 1) in vain."""
    first, most = _BACKOFF_S[kind]
    return float(min(most, first * 2.0 ** min(tries - 1, 30)))


def wanted_end(job: JobRow, current: Attempt | None, now: float) -> End | None:
    """Whether the job shall end although nothing is wrong: its user's wish, or a limit."""
    policy = job.policy
    if job.state == "stopping":
        return End(_STOPPED_AS[job.cause], job.cause, job.reason)
    if job.goal == "cancel":
        return End("cancelled", "cancel", "cancelled by its user")
    if policy.duration_s is not None and now - job.created >= policy.duration_s:
        limit = datetime.timedelta(seconds=policy.duration_s)
        return End("stopped", "duration", f"limits.duration reached: {limit} since it was submitted")
    if policy.cost_usd is not None:
        already = cost.spent(job, current, now)
        price = current.price if current is not None and current.state != "ended" else Decimal(0)
        if already is None or price is None:
            return End("stopped", "cost", "limits.cost is set and the price is unknown")
        if already + cost.reserve(policy.cost_usd, price, GRACE_S["cost"]) >= policy.cost_usd:
            return End("stopped", "cost", f"limits.cost reached: {already:.2f} of {policy.cost_usd} USD spent")
    return None


def idle_end(job: JobRow, nodes: Sequence[NodeView]) -> End | None:
    """Whether the job shall end because none of its GPUs does anything. What is not known is no reason to end."""
    limit = job.policy.gpu_idle_s
    idle = [node.gpu_idle_s for node in nodes if node.has_gpus and node.end is None]
    if limit is None or not idle or any(seconds is None or seconds < limit for seconds in idle):
        return None
    from ..jobspecs.units import format_duration  # here, for it loads Pydantic, which nothing else of a tick needs

    return End("stopped", "gpu_idle", f"limits.gpu_idle reached: no GPU did anything for {format_duration(limit)}")


_STOPPED_AS = {"cancel": "cancelled", "duration": "stopped", "cost": "stopped", "gpu_idle": "stopped"}


def decide(job: JobRow, attempts: Sequence[Attempt], now: float) -> End | Start:
    """What follows upon the newest of the attempts, all of which have ended."""
    last = attempts[-1] if attempts else None
    if last is not None and last.outcome == "succeeded":
        return End("succeeded", "", "", 0)
    end = wanted_end(job, last, now)
    if end is not None:
        return end
    if last is None:
        return _start(job, attempts, 0.0, "")
    return _AFTER[last.outcome](job, attempts)


def _after_failure(job: JobRow, attempts: Sequence[Attempt]) -> End | Start:
    last = attempts[-1]
    failures = used(attempts).failures
    if last.cause == "user":
        return End("failed", "user", last.reason, last.exit_code)
    if failures > job.policy.failures:
        return End("failed", "failed", last.reason, last.exit_code)
    reason = f"retry {failures} of {job.policy.failures} after: {last.reason}"
    return _start(job, attempts, backoff("failed", failures), reason)


def _after_error(_job: JobRow, attempts: Sequence[Attempt]) -> End | Start:
    return End("failed", "error", attempts[-1].reason, attempts[-1].exit_code)


def _after_interruption(job: JobRow, attempts: Sequence[Attempt]) -> End | Start:
    last, policy = attempts[-1], job.policy
    interruptions = used(attempts).interruptions
    if policy.preemptions is not None and interruptions > policy.preemptions:
        reason = f"interrupted {interruptions} times, and retry.preemption is {policy.preemptions}: {last.reason}"
        return End("failed", last.outcome, reason, last.exit_code)
    fruitless = fruitless_in_a_row(attempts)
    if fruitless > FRUITLESS_LIMIT:
        reason = f"interrupted {fruitless} times in a row without a new checkpoint; the last time: {last.reason}"
        return End("failed", last.outcome, reason, last.exit_code)
    # After the first one at once; when it happens again and again, ever more slowly.
    pause = backoff("lost", fruitless - 1) if fruitless > 1 else 0.0
    return _start(job, attempts, pause, f"interrupted: {last.reason}")


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a program was, or may be, started again."""

    failures: int
    interruptions: int


@dataclass(frozen=True, slots=True)
class TriesLeft:
    """As Tries; None: without limit."""

    failures: int
    interruptions: int | None


def used(attempts: Sequence[Attempt]) -> Tries:
    """Of both budgets: by attempts that ended, and within attempts, where the program was started again in place."""
    in_place = [(attempt.generations or [{}])[-1] for attempt in attempts]
    return Tries(
        sum(last.get("failures", 0) for last in in_place) + sum(one.outcome == "failed" for one in attempts),
        sum(last.get("interruptions", 0) for last in in_place) + sum(one.outcome in _INTERRUPTIONS for one in attempts),
    )


def left_in_place(policy: Policy, attempts: Sequence[Attempt]) -> TriesLeft:
    """What the machines of a new attempt may use of the budgets by themselves."""
    so_far, limit = used(attempts), policy.preemptions
    interruptions = None if limit is None else max(0, limit - so_far.interruptions)
    return TriesLeft(max(0, policy.failures - so_far.failures), interruptions)


def _after_refusal(job: JobRow, attempts: Sequence[Attempt]) -> End | Start:
    last = attempts[-1]
    if last.cause in _FINAL_REFUSALS:
        return End("failed", last.cause, f"no machines: {_tried(attempts)}")
    return _start(job, attempts, 0.0, f"{place(Offer.from_json(last.offer))}: {last.reason}")


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
_FINAL_REFUSALS = frozenset({"auth", "invalid"})


def fruitless_in_a_row(attempts: Sequence[Attempt]) -> int:
    """Newest attempts that were lost, or asked to be run again, and left no newer checkpoint than there was.

    Preemptions with a notice are the provider's doing and do not count, but do not break the row either.
    """
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        attempt = attempts[index]
        before = max((saved_step(earlier) for earlier in attempts[:index]), default=0)
        if attempt.outcome not in _INTERRUPTIONS or saved_step(attempt) > before:
            return count
        count += attempt.outcome != "preempted"
    return count


def saved_step(attempt: Attempt) -> int:
    """Of the newest checkpoint that any generation of its program told of; 0: none."""
    spans = (attempt.timeline or {}).get("spans") or []
    told = [attempt.progress, *(span.get("progress") for span in spans)]
    return max(int((progress or {}).get("saved_step") or 0) for progress in told)


# -- where

_Place = tuple[str, ...]


def _start(job: JobRow, attempts: Sequence[Attempt], pause_s: float, reason: str) -> End | Start:
    """The best offer that was not refused; when all were, another round after a pause, unless there is no hope."""
    offers = [Offer.from_json(offer) for offer in job.offers]
    refused = [attempt for attempt in attempts if attempt.outcome == "refused"]
    for ever in (attempt for attempt in refused if attempt.cause in _HOPELESS):
        offers = [offer for offer in offers if not _covers(ever, offer)]
    if not offers:
        return End("failed", "no-machines", f"no machines: {_tried(attempts)}")
    this_round = [attempt for attempt in refused if attempt.round == job.round and attempt.cause not in _HOPELESS]
    fresh = [offer for offer in offers if not any(_covers(attempt, offer) for attempt in this_round)]
    if fresh:
        return Start(fresh[0], job.round, pause_s, reason)
    pause = max(pause_s, backoff("round", job.round + 1))
    return Start(offers[0], job.round + 1, pause, f"every offer was refused; the last: {reason}")


_HOPELESS = frozenset({"quota", "not_offered"})
"""Asking there again is of no use while the job lives."""


def _covers(refused: Attempt, offer: Offer) -> bool:
    """Whether that refusal speaks of this offer too."""
    theirs = Offer.from_json(refused.offer)
    if _machines(theirs) != _machines(offer) and refused.cause != "quota":
        return False
    if theirs.market != offer.market:
        return False
    depth = {"cloud": 1, "region": 2, "zone": 3}.get(refused.scope, 3)
    return _place(theirs)[:depth] == _place(offer)[:depth]


def _place(offer: Offer) -> _Place:
    return (offer.cloud, offer.region, offer.zone or "")


def _machines(offer: Offer) -> _Place:
    return tuple(role.machine_type for role in offer.roles)


def place(offer: Offer) -> str:
    """`gcp us-central1-a spot n1-standard-8`; `this machine`."""
    types = "" if offer.cloud == "local" else "+".join(dict.fromkeys(_machines(offer)))
    return f"{offer.place} {types}".rstrip()


def _tried(attempts: Sequence[Attempt]) -> str:
    """Every place where machines were asked for in vain since they were last got, each once, with the reason."""
    tried: dict[str, str] = {}
    for attempt in attempts:
        if attempt.outcome == "refused":
            tried[place(Offer.from_json(attempt.offer))] = attempt.reason
        else:
            tried.clear()
    return "; ".join(f"{where}: {why}" for where, why in tried.items())
