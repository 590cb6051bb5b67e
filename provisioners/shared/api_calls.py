"""Helpers for cloud API calls: error translation, retries with a timeout, all-or-nothing launches."""

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

from ..base import ErrorClass, ProvisionError, TerminateResult
from ..boot.record import is_loopback
from .clock import Clock
from .errors import rules

log = logging.getLogger("cloudgpu.provisioners")

ErrorTranslator = Callable[[Exception, str, Clock], ProvisionError | None]
"""Function: (exception, description of the operation, clock) -> ProvisionError; None: not an error of the SDK."""

UNKNOWN: frozenset[ErrorClass] = frozenset({"throttled", "transient"})
"""Classes of errors after which a call's effect is unknown; an idempotent call may be retried."""
_PAUSE_S = (1.0, 15.0)
"""First and longest delay between retries, in seconds."""
_SKEW_S = 240.0
"""Clock skew in seconds that is reported: AWS and Google refuse signatures that are more than five minutes off."""

_TRY_ELSEWHERE = frozenset({"capacity", "not_offered"})

_T = TypeVar("_T")
_Place = TypeVar("_Place")
_Name = TypeVar("_Name")


@contextlib.contextmanager
def translate_errors(translator: ErrorTranslator, doing: str, clock: Clock) -> Iterator[None]:
    """Context manager: translate an SDK's exceptions to ProvisionError, with `doing` in the message. Other exceptions
    pass unchanged."""
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

    `call` must be idempotent, e.g. by its client token. Within interruptible() the timeout is at most
    LAUNCH_RETRY_TIMEOUT_S: the supervisor then retries the whole launch later, and no thread sleeps meanwhile.
    """
    timeout_s = timeout_s if _attention.get() is None else min(timeout_s, LAUNCH_RETRY_TIMEOUT_S)
    until, delay = clock.monotonic() + timeout_s, _PAUSE_S[0]
    while True:
        try:
            return call()
        except ProvisionError as error:
            wait = max(delay * random.uniform(0.5, 1.0), error.retry_after or 0.0)  # noqa: S311 - jitter
            if error.error_class not in UNKNOWN or clock.monotonic() + wait > until:
                raise
        pause(clock, wait)
        delay = min(2 * delay, _PAUSE_S[1])


def ask(call: Callable[[], _T], translator: ErrorTranslator, doing: str, *, timeout_s: float, clock: Clock) -> _T:
    """Call an SDK with translate_errors() and retry(), and return the result. Raises ProvisionError."""

    def once() -> _T:
        with translate_errors(translator, doing, clock):
            return call()

    return retry(once, timeout_s=timeout_s, clock=clock)


# -- launches that can be interrupted

LAUNCH_RETRY_TIMEOUT_S = 10.0
"""Timeout in seconds for the retries of a call within a launch; then the supervisor decides when to retry the
launch."""

_attention: ContextVar[Callable[[], bool] | None] = ContextVar("attention", default=None)


class LaunchInterruptedError(Exception):
    """A launch was aborted between two calls, because its machines are no longer wanted. The caller must terminate()
    what it created."""


@contextlib.contextmanager
def interruptible(is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Context manager: make each pause() of the launch raise LaunchInterruptedError if `is_unwanted()` is true."""
    token = _attention.set(is_unwanted)
    try:
        yield
    finally:
        _attention.reset(token)


def pause(clock: Clock, seconds: float) -> None:
    """Sleep between two retries or polls. Raises LaunchInterruptedError within interruptible() if the launch is
    unwanted."""
    is_unwanted = _attention.get()
    if is_unwanted is not None and is_unwanted():
        raise LaunchInterruptedError
    clock.sleep(seconds)


def with_context(function: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap `function` to run in another thread with this thread's context variables, e.g. interruptible()'s."""
    context = contextvars.copy_context()
    return lambda *arguments: context.copy().run(function, *arguments)


# -- credentials


class HasForget(Protocol):
    """Protocol of API clients that cache credentials."""

    def forget(self) -> None: ...


class HasClients(Protocol):
    """Protocol of provisioners whose clients can reload the credentials."""

    @property
    def _clients(self) -> HasForget: ...


_Self = TypeVar("_Self", bound=HasClients)
_P = ParamSpec("_P")


def retry_after_login(verb: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
    """Decorate a provisioner's method: if the credentials are refused, reload them and retry the method once.

    The credentials may have just been replaced by new ones. Refused credentials are never kept in the cache."""

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
    """Context manager: call `forget` if the credentials are refused, so that the next call reloads them."""
    try:
        yield
    except ProvisionError as error:
        if error.error_class in ("auth", "expired"):
            forget()
        raise


def merge_ended(ends: Iterable[TerminateResult]) -> TerminateResult:
    """Merge the results of terminating several parts of a launch; `at` is the latest time, None if any is unknown."""
    found = list(ends)
    times = [one.at for one in found]
    known = [at for at in times if at is not None]
    return TerminateResult(
        any(one.has_started for one in found), max(known) if known and len(known) == len(times) else None
    )


# -- several machines


@contextlib.contextmanager
def mark_may_have_created() -> Iterator[None]:
    """Context manager: set `may_have_created` on errors raised inside, since resources may exist even after an auth
    error."""
    try:
        yield
    except ProvisionError as error:
        error.may_have_created = True
        raise


@contextlib.contextmanager
def cleaning_up(job_id: str) -> Iterator[None]:
    """Context manager: log exceptions of a cleanup instead of raising them, so that the original error is kept."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the original error decides what to do
        log.warning("%s: the cleanup after a refused launch failed, and is repeated later: %s", job_id, error)


@mark_may_have_created()
def all_or_none(
    names: Sequence[_Name],
    start: Callable[[_Name], _T],
    end: Callable[[Mapping[_Name, _T]], None],
    *,
    at_once: int,
) -> dict[_Name, _T]:
    """Start one machine for each name: the first alone, then `at_once` in parallel. Raises ProvisionError for a
    refusal.

    The first call alone tests for capacity. After a final error the started machines are passed to `end`. After any
    other error they are kept for the next launch() with the same token.
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
    """Start all machines in the first of several places (e.g. zones) that has capacity. Raises ProvisionError if all
    places refuse: a `capacity` error if there is one, otherwise the last error.

    If a place refuses after it has started some machines (`has_begun`), no further place is tried: the started machines
    are terminated, but may have booted and claimed their nodes in the job dir, which no other machine can claim within
    this attempt. Therefore each attempt begins one place further; `turn` counts attempts from 0. The error then has the
    scope `attempt`, and the untried zones as hints.
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


# -- parsing of responses


def error_name(error: BaseException) -> str:
    """Return the name of the first class in the exception's MRO that errors.csv lists; else the exception's own class
    name."""
    known = frozenset[str]().union(*(rule.codes for rule in rules()))
    return next((base.__name__ for base in type(error).__mro__ if base.__name__ in known), type(error).__name__)


def retry_after_s(text: str | None, clock: Clock) -> float | None:
    """Parse a `Retry-After` header, a number or a date (RFC 9110), to seconds; None if it is missing or invalid."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    moment = _moment(text)
    return None if moment is None else max(moment - clock.now(), 0.0)


def clock_is_off(date: str | None, clock: Clock, whose: str) -> str:
    """Return a note on clock skew, e.g. `; this computer's clock is 7 minutes ahead of AWS's`, from a response's `Date`
    header.

    "" if the skew is small or unknown. Providers answer a wrong clock with the same error as wrong credentials."""
    moment = None if date is None else _moment(date)
    skew = 0.0 if moment is None else clock.now() - moment
    if abs(skew) <= _SKEW_S:
        return ""
    where = "ahead of" if skew > 0 else "behind"
    return f"; this computer's clock is {abs(skew) / 60:.0f} minutes {where} {whose}'s"


def check_encrypted(setting: str, url: str) -> None:
    """Raise ProvisionError for an endpoint that would receive credentials unencrypted. Plain http is allowed on the
    loopback only, for tests."""
    if url.startswith("http:") and not is_loopback(url):
        message = f"{setting}: {url} is not encrypted: credentials would be sent in the open; use https"
        raise ProvisionError("invalid", message, scope="cloud")


def _moment(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
