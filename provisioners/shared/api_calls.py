"""Helpers of calls to any cloud API: error translation, retries with a timeout, all-or-nothing launches."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from ..base import Ended, ErrorClass, ProvisionError
from ..boot.record import is_loopback
from .clock import Clock
from .errors import rules

log = logging.getLogger("cloudgpu.provisioners")

ErrorTranslator = Callable[[Exception, str, Clock], ProvisionError | None]
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
def translate_errors(translator: ErrorTranslator, doing: str, clock: Clock) -> Iterator[None]:
    """Raise ProvisionError in the place of an SDK's errors, with what was being done. Other errors pass."""
    try:
        yield
    except ProvisionError:
        raise
    except Exception as error:
        translated = translator(error, doing, clock)
        if translated is None:
            raise
        raise translated from error


def retry(call: Callable[[], _T], *, timeout_s: float, clock: Clock) -> _T:
    """Retry `call` with backoff and jitter while it raises `throttled` or `transient`. Raises the last ProvisionError.

    `call` must be idempotent, e.g. by its client token. Within attentive() the retries end after LAUNCH_PATIENCE_S: the
    supervisor repeats the whole launch then, and nothing sleeps meanwhile.
    """
    timeout_s = timeout_s if _attention.get() is None else min(timeout_s, LAUNCH_PATIENCE_S)
    until, delay = clock.monotonic() + timeout_s, _PAUSE_S[0]
    while True:
        try:
            return call()
        except ProvisionError as error:
            wait = max(delay * random.uniform(0.5, 1.0), error.retry_after or 0.0)  # noqa: S311 - spreads callers
            if error.error_class not in UNKNOWN or clock.monotonic() + wait > until:
                raise
        pause(clock, wait)
        delay = min(2 * delay, _PAUSE_S[1])


def ask(call: Callable[[], _T], translator: ErrorTranslator, doing: str, *, timeout_s: float, clock: Clock) -> _T:
    """Return the answer of a call to an SDK, which is retried as retry() says. Raises ProvisionError."""

    def once() -> _T:
        with translate_errors(translator, doing, clock):
            return call()

    return retry(once, timeout_s=timeout_s, clock=clock)


# -- launches that can be interrupted

LAUNCH_PATIENCE_S = 10.0
"""A call within a launch is retried for this long, in seconds; after it the supervisor decides when to launch again."""

_attention: ContextVar[Callable[[], bool] | None] = ContextVar("attention", default=None)


class LaunchInterruptedError(Exception):
    """A launch was given up between two calls, since its machines are not wanted any more. What it made is still there:
    terminate() ends it."""


@contextlib.contextmanager
def attentive(is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Ask `is_unwanted` at each pause() of the launch within; raise LaunchInterruptedError there if it says so."""
    token = _attention.set(is_unwanted)
    try:
        yield
    finally:
        _attention.reset(token)


def pause(clock: Clock, seconds: float) -> None:
    """Sleep between two tries or two polls. Raises LaunchInterruptedError within attentive()."""
    is_unwanted = _attention.get()
    if is_unwanted is not None and is_unwanted():
        raise LaunchInterruptedError
    clock.sleep(seconds)


def with_context(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return `function` for another thread, to run there within the attentive() of this one."""
    context = contextvars.copy_context()
    return lambda *arguments: context.copy().run(function, *arguments)


# -- credentials


class Forgetting(Protocol):
    """Clients with credentials."""

    def forget(self) -> None: ...


class HasClients(Protocol):
    """A provisioner whose clients can read the credentials anew."""

    @property
    def _clients(self) -> Forgetting: ...


_Self = TypeVar("_Self", bound=HasClients)
_P = ParamSpec("_P")


def renewing(verb: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
    """Return the verb so that credentials that were not accepted are read anew, once, and the verb is repeated. A token
    may have been revoked a moment ago, and the next one is good. Credentials that are refused are never kept."""

    @functools.wraps(verb)
    def repeated(self: _Self, *arguments: _P.args, **more: _P.kwargs) -> _T:
        try:
            with logged_in(self._clients.forget):
                return verb(self, *arguments, **more)
        except ProvisionError as error:
            if not error.is_login:
                raise
            first = error
        with logged_in(self._clients.forget):
            try:
                return verb(self, *arguments, **more)
            except ProvisionError as error:
                error.may_have_created |= first.may_have_created
                error.has_started |= first.has_started
                raise

    return cast("Callable[Concatenate[_Self, _P], _T]", repeated)


@contextlib.contextmanager
def logged_in(forget: Callable[[], None]) -> Iterator[None]:
    """Call `forget` when credentials were refused, so that the next call reads them anew."""
    try:
        yield
    except ProvisionError as error:
        if error.error_class in ("auth", "expired"):
            forget()
        raise


def last_of(ends: Iterable[Ended]) -> Ended:
    """Return what is true of several parts of a launch."""
    found = list(ends)
    times = [one.at for one in found]
    known = [at for at in times if at is not None]
    return Ended(any(one.has_started for one in found), max(known) if known and len(known) == len(times) else None)


# -- several machines


@contextlib.contextmanager
def mark_may_have_created() -> Iterator[None]:
    """Set `may_have_created` of errors raised within: a call that creates something was sent before them."""
    try:
        yield
    except ProvisionError as error:
        error.may_have_created = True
        raise


@contextlib.contextmanager
def cleaning_up(job_id: str) -> Iterator[None]:
    """Log what is raised within: it must not replace the error that the cleanup follows."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the first error says what to do
        log.warning("%s: the cleanup after a refused launch failed, and is repeated later: %s", job_id, error)


@mark_may_have_created()
def all_or_none(
    names: Sequence[_Name],
    start: Callable[[_Name], _T],
    end: Callable[[Mapping[_Name, _T]], None],
    *,
    at_once: int,
) -> dict[_Name, _T]:
    """Start one machine for each name: the first alone, then `at_once` at a time. Raises ProvisionError for a refusal.

    Without capacity one machine was asked for, and with it many do not wait for each other. After a final refusal those
    that were started are handed to `end`. After any other error they stay for the next launch() with the same token.
    """
    started: dict[_Name, _T] = {}
    refusals: list[ProvisionError] = []
    batches = [names[:1], *(names[at : at + at_once] for at in range(1, len(names), at_once))]
    with ThreadPoolExecutor(at_once, "cloudgpu-launch") as pool:
        for batch in batches:
            calls: dict[_Name, Future[_T]] = {name: pool.submit(with_context(start), name) for name in batch}
            for name, call in calls.items():
                try:
                    started[name] = call.result()
                except ProvisionError as error:
                    refusals.append(error)
            if refusals:
                break
    if not refusals:
        return started
    final = next((error for error in refusals if error.is_final), None)
    if final is not None and started:
        with cleaning_up("machines"):
            end(started)
    raised = final or refusals[0]
    raised.has_started = bool(started)
    raise raised


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
