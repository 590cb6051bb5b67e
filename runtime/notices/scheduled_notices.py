"""Schedule of the announced events, which issues orders when they are due. Callers pass the (monotonic) time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .orders import Action, Order, Orders
from .policy import Policy, policy_of

_JITTER_S = 5.0  # tolerance between two readings of one time: a `Date` has whole seconds, and replies take time
_LEAST_S = 10.0  # minimum time left by an order, even if the event has begun: the machine may still run that long
_LINE = 200  # maximum characters of a notice in the log


@dataclass(frozen=True, slots=True)
class ProviderNotice:
    """One event announced by a metadata server, or by notice.json."""

    cloud: str
    kind: str
    """The provider's name for the kind of notice, in lower case; see policy.py."""
    id: str
    """Id of the event, which repeated notices have in common."""
    starts: float | None = None
    """Time of the event on the monotonic clock; None: not announced."""
    detail: str = ""
    """Further details, for the log."""
    machines: tuple[str, ...] = ()
    """Names of all affected machines, if the provider lists them."""


@dataclass(slots=True)
class _Entry:
    notice: ProviderNotice
    policy: Policy
    starts: float
    save_given: bool = False
    stop_given: bool = False

    def save_due(self) -> float:
        """Return the time at which to order a save; infinity: never or already done."""
        if self.policy.action != "save" or self.save_given or self.stop_given:
            return math.inf
        return -math.inf if self.policy.near_s is None else self.starts - self.policy.near_s

    def stop_due(self) -> float:
        """Return the time at which to order a stop; infinity: never or already done."""
        if self.stop_given:
            return math.inf
        if self.policy.ends_at_once(self.notice.machines):
            return -math.inf
        return math.inf if self.policy.stop_s is None else self.starts - self.policy.stop_s


class NoticeSchedule:
    """Announced events by source, and the orders due for them. Thread-safe.

    `on_stop` is called with each notice for which a stop is ordered, and the time of its event. An event that is
    withdrawn before its stop is forgotten. A stop that was ordered is not revoked: the program may have ended by then.
    """

    def __init__(
        self,
        orders: Orders,
        say: Callable[[str], None],
        on_stop: Callable[[ProviderNotice, float], None] = lambda _notice, _starts: None,
    ) -> None:
        self._orders, self._say, self._on_stop = orders, say, on_stop
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _Entry] = {}

    def update(self, source: str, notices: Sequence[ProviderNotice], now: float) -> None:
        """Replace the notices of one source by its current notices, and issue the orders that are due.

        Notices that are missing were withdrawn, or their events are over.
        """
        with self._lock:
            for notice in notices:
                entry = self._entries.get((source, notice.id))
                if entry is None:
                    self._entries[source, notice.id] = self._enter(notice, now)
                elif notice.starts is not None and abs(notice.starts - entry.starts) > _JITTER_S:
                    self._move(entry, notice.starts, now)
            announced = {notice.id for notice in notices}
            for key in [key for key in self._entries if key[0] == source and key[1] not in announced]:
                entry = self._entries.pop(key)
                self._say(f"{_title(entry)} is no longer announced")
        self.advance(now)

    def advance(self, now: float) -> None:
        """Issue the orders that are due."""
        with self._lock:
            for entry in self._entries.values():
                if entry.stop_due() <= now:
                    self._order_stop(entry, now)
                elif entry.save_due() <= now:
                    self._order_save(entry, now)

    def _enter(self, notice: ProviderNotice, now: float) -> _Entry:
        policy = policy_of(notice.cloud, notice.kind)
        starts = now + policy.lead_s if notice.starts is None else notice.starts
        entry = _Entry(notice, policy, starts)
        self._say(f"{_title(entry)}{_time_left(starts, now)}: {_consequence(policy, notice)}")
        return entry

    def _move(self, entry: _Entry, starts: float, now: float) -> None:
        if starts < entry.starts:
            entry.stop_given = False  # the deadline of the earlier order is too late
        entry.starts = starts
        self._say(f"{_title(entry)} is now{_time_left(starts, now)}")

    def _order_save(self, entry: _Entry, now: float) -> None:
        entry.save_given = True
        self._orders.add(self._order(entry, now, "save"))

    def _order_stop(self, entry: _Entry, now: float) -> None:
        entry.save_given = entry.stop_given = True
        self._orders.add(self._order(entry, now, "stop"))
        self._on_stop(entry.notice, entry.starts)

    def _order(self, entry: _Entry, now: float, action: Action) -> Order:
        policy = entry.policy
        deadline = entry.starts if policy.vanishes else max(entry.starts - policy.margin_s, now + _LEAST_S)
        return Order(
            "preempted",
            policy.word,
            _title(entry),
            deadline,
            vanishes=policy.vanishes and action == "stop",
            returns=policy.returns and action == "stop",
            action=action,
            seen=now,
        )


def _consequence(policy: Policy, notice: ProviderNotice) -> str:
    if policy.ends_at_once(notice.machines):
        return "the program is to save and end"
    return _CONSEQUENCES[policy.action, policy.stop_s is None]


_CONSEQUENCES = {
    ("save", True): "the program is to save, and trains on",
    ("save", False): "the program is to save when that is near, trains on, and ends before it",
    ("ignore", True): "nothing is done about it",
}


def _title(entry: _Entry) -> str:
    """Return a description of the notice in one line of at most _LINE characters, without unprintable ones."""
    notice = entry.notice
    text = f"notice from {notice.detail or notice.cloud}: {notice.kind}"
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:_LINE]


def _time_left(starts: float, now: float) -> str:
    left = starts - now
    if left < 0:
        return ", begun already"
    for unit, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("min", 60.0)):
        if left >= 2 * seconds:
            return f" in {left / seconds:.0f} {unit}"
    return f" in {left:.0f} s"
