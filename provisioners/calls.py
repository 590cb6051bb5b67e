"""What calls to any cloud have in common: errors told in our words, patience with an end, machines all or none."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import TypeVar

from .base import ErrorClass, ProvisionError
from .boot.record import is_loopback
from .clock import Clock
from .errors import rules

Understand = Callable[[Exception, str, Clock], ProvisionError | None]
"""(an error of a cloud's SDK, what was being done, the time) -> what it means; None: it is none of the SDK's."""

UNKNOWN: frozenset[ErrorClass] = frozenset({"throttled", "transient"})
"""After these it is not known what came of a call, and it may be repeated if it is one that may be."""
_PAUSE_S = (1.0, 15.0)
_SKEW_S = 240.0
"""AWS takes signatures, and Google assertions, that are at most some five minutes off."""

_TRY_ELSEWHERE = frozenset({"capacity", "not_offered"})

_T = TypeVar("_T")
_Place = TypeVar("_Place")
_Name = TypeVar("_Name")


@contextlib.contextmanager
def told(understand: Understand, doing: str, clock: Clock) -> Iterator[None]:
    """Raise ProvisionError in the place of an SDK's errors, with what was being done. Bugs stay what they are."""
    try:
        yield
    except ProvisionError:
        raise
    except Exception as error:
        understood = understand(error, doing, clock)
        if understood is None:
            raise
        raise understood from error


def insist(call: Callable[[], _T], clock: Clock, patience_s: float) -> _T:
    """Call again, with pauses, while it raises `throttled` or `transient`. Raises the last ProvisionError.

    `call` must be one that may be repeated: with the same client token, say.
    """
    until, pause = clock.monotonic() + patience_s, _PAUSE_S[0]
    while True:
        try:
            return call()
        except ProvisionError as error:
            wait = max(pause * random.uniform(0.5, 1.0), error.retry_after or 0.0)  # noqa: S311 - spreads callers
            if error.error_class not in UNKNOWN or clock.monotonic() + wait > until:
                raise
        clock.sleep(wait)
        pause = min(2 * pause, _PAUSE_S[1])


@contextlib.contextmanager
def logged_in(forget: Callable[[], None]) -> Iterator[None]:
    """Credentials that were refused are not used again: `forget` them, so that the next call reads them anew."""
    try:
        yield
    except ProvisionError as error:
        if error.error_class in ("auth", "expired"):
            forget()
        raise


# -- several machines


@contextlib.contextmanager
def asking_for_machines() -> Iterator[None]:
    """What is raised meanwhile says so: even credentials that are refused may have been taken a moment before."""
    try:
        yield
    except ProvisionError as error:
        error.asked = True
        raise


@asking_for_machines()
def all_or_none(
    names: Sequence[_Name],
    start: Callable[[_Name], _T],
    end: Callable[[Mapping[_Name, _T]], None],
    *,
    at_once: int,
) -> dict[_Name, _T]:
    """Start one machine for each name: the first alone, then so many at a time. Raises the ProvisionError of a refusal.

    So where there is no capacity one machine was asked for, and where there is, many do not wait for each other. After
    a refusal those that were started are handed to `end`; but not if it is unknown what came of a call (UNKNOWN): then
    they stay for whoever calls again with the same token.
    """
    started: dict[_Name, _T] = {}
    refusals: list[ProvisionError] = []
    batches = [names[:1], *(names[at : at + at_once] for at in range(1, len(names), at_once))]
    with ThreadPoolExecutor(at_once, "cloudgpu-launch") as pool:
        for batch in batches:
            calls: dict[_Name, Future[_T]] = {name: pool.submit(start, name) for name in batch}
            for name, call in calls.items():
                try:
                    started[name] = call.result()
                except ProvisionError as error:
                    refusals.append(error)
            if refusals:
                break
    if not refusals:
        return started
    final = next((error for error in refusals if error.error_class not in UNKNOWN), None)
    if final is not None and started:
        end(started)
    raise final or refusals[0]


def first_with_room(
    places: Sequence[_Place],
    start: Callable[[_Place], None],
    *,
    turn: int,
    has_begun: Callable[[], bool],
    on_refusal: Callable[[ProvisionError], None],
    zone_of: Callable[[_Place], str] = str,
) -> None:
    """Start all machines in one of several places, in the next one if the first has no room. Raises ProvisionError: the
    refusal of all of them, `capacity` if one of them was only full.

    A place where some machines came to be before another was refused (`has_begun`) is the last that is tried. They are
    ended, but may have booted by then and taken their nodes in the job dir, which no other machine can have within this
    attempt. So the next attempt begins one place further: `turn` counts attempts from 0. The refusal has the scope
    `attempt` then, and its hints are the zones of the places that were not tried.
    """
    first = turn % len(places)
    order = [*places[first:], *places[:first]]
    refusals: list[ProvisionError] = []
    for place in order:
        try:
            return start(place)
        except ProvisionError as error:
            if error.error_class not in _TRY_ELSEWHERE:
                raise
            on_refusal(error)
            refusals.append(error)
            if has_begun():
                break
    final = next((one for one in refusals if one.error_class == "capacity"), refusals[-1])
    left = order[len(refusals) :]
    if left:
        final.scope, final.hints = "attempt", tuple(zone_of(place) for place in left)
    elif len(refusals) > 1:
        final.scope = "region"
    raise final


# -- what answers say


def known_name(error: BaseException) -> str:
    """The class of an exception that errors.csv may know: the first that is not a mere base."""
    known = frozenset[str]().union(*(rule.codes for rule in rules()))
    return next((base.__name__ for base in type(error).__mro__ if base.__name__ in known), type(error).__name__)


def retry_after_s(text: str | None, clock: Clock) -> float | None:
    """Seconds that a header `Retry-After` asks for, as a number or as a date (RFC 9110); None: it asks for none."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    moment = _moment(text)
    return None if moment is None else max(moment - clock.now(), 0.0)


def clock_is_off(date: str | None, clock: Clock, whose: str) -> str:
    """`; this computer's clock is 7 minutes ahead of AWS's`, by an answer's header `Date`; "": it is not off, or
    nobody can tell. A wrong clock is refused as wrong credentials are."""
    moment = None if date is None else _moment(date)
    skew = 0.0 if moment is None else clock.now() - moment
    if abs(skew) <= _SKEW_S:
        return ""
    where = "ahead of" if skew > 0 else "behind"
    return f"; this computer's clock is {abs(skew) / 60:.0f} minutes {where} {whose}'s"


def check_encrypted(setting: str, url: str) -> None:
    """Raises ProvisionError for an endpoint that would be sent credentials in the open: plain http is for this very
    machine, where tests are."""
    if url.startswith("http:") and not is_loopback(url):
        message = f"{setting}: {url} is not encrypted: credentials would be sent in the open; use https"
        raise ProvisionError("invalid", message, scope="cloud")


def _moment(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
