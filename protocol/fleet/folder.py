"""Access to the objects of a fleet's folder; one listing becomes a View."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...storage.objects import JobDir
from ...storage.store import Entry
from ..jobdir import Record, RecordError
from .records import FLEET_KEY, End, Failure, Freed, Holding, Order, Settings, member_key, order_key, place_of
from .view import OrderView, Place, View

log = logging.getLogger("cloudgpu.fleet")

_R = TypeVar("_R", bound=Record)
_ORDER = re.compile(r"orders/(\d{8})/((?:order|end)\.json)", re.ASCII)
_OF_NODE = re.compile(r"orders/(\d{8})/(claims|freed)/([\w-]{1,64}\.[1-9]\d{0,8})", re.ASCII)
_MEMBER = re.compile(r"members/([^/]+)/((?:beat|left|failed)\.json)")
_NODE = re.compile(r"[\w-]{1,64}\.[1-9]\d{0,8}", re.ASCII)
KEPT_S = 7 * 86_400.0
"""Seconds for which objects of ended orders and of machines that are gone are kept."""


@dataclass(slots=True)
class _Mark:
    """An object written by this process, whose modification time is used to read the store's clock."""

    key: str
    written: float
    """Monotonic time of the object's last write."""
    modified: float | None = None
    """Store's time of that write, taken only from the next listing: a later one may show a write of another process."""


class Fleet:
    """The folder of one fleet. Every method raises JobDirError. Thread-safe."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._dir = JobDir(self.url)
        self._known: dict[str, Record | None] = {}
        """Cache of records that never change, by key; None: the object is invalid."""
        self._refused: set[str] = set()
        """Keys whose object was logged as invalid."""
        self._settings: tuple[float, Settings] = (-1.0, Settings())
        self._mark: _Mark | None = None
        self._lock = threading.Lock()

    @property
    def is_local(self) -> bool:
        """True if the folder is on this computer, where polling costs nothing."""
        return self._dir.folder is not None

    def mark(self, key: str, record: Record) -> None:
        """Write a heartbeat, which is also used to read the store's clock."""
        self._dir.put(key, record.to_bytes())
        self._mark = _Mark(key, time.monotonic())

    def put(self, key: str, record: Record) -> None:
        self._dir.put(key, record.to_bytes())

    def create(self, key: str, record: Record) -> bool:
        """Create an object unless it exists; return whether it has this record now. Records must name their writer."""
        return self._dir.create(key, record.to_bytes())

    def delete(self, key: str) -> None:
        self._dir.delete(key)

    def order(self, wanted: Order) -> int:
        """Append an order to the queue and return its number. Idempotent for a launch token."""
        while True:
            view = self.view()
            found = view.of_token(wanted.token)
            if found is not None:
                return found.number
            if self._dir.create(order_key(view.newest + 1), wanted.to_bytes()):
                return view.newest + 1

    def _read_settings(self, found: Entry | None) -> Settings:
        """Return the settings, read again if they were replaced. An invalid object keeps the previous ones."""
        if found is None:
            return Settings()
        if self._settings[0] != found.modified:
            settings = self._parse(Settings, FLEET_KEY)
            self._settings = (found.modified, self._settings[1] if settings is None else settings)
        return self._settings[1]

    def view(self) -> View:
        """Return the state of the fleet. Takes one listing and reads its new records."""
        with self._lock:
            return self._view()

    def _view(self) -> View:
        entries = self._dir.entries("")
        by_key = {entry.key: entry for entry in entries}
        listed = Listed.of(entries)
        now, settings = self._now(by_key), self._read_settings(by_key.get(FLEET_KEY))
        beats = {machine: now - entry.modified for machine, entry in listed.members["beat.json"].items()}
        staying = {name: age for name, age in beats.items() if name not in listed.members["left.json"]}
        alive = [name for name, age in staying.items() if age < settings.silent_s]
        orders: list[OrderView] = []
        unreadable: dict[int, float | None] = {}
        seen: set[str] = set()
        for number in listed.orders["order.json"]:
            one = self._order_view(number, listed, alive, now)
            if one is None:
                end = listed.orders["end.json"].get(number)
                unreadable[number] = None if end is None else now - end.modified
            elif one.order.token not in seen:
                seen.add(one.order.token)
                orders.append(one)
        newest = max(listed.orders["order.json"], default=0)
        failed, old = _failed(listed, beats, now), list(_old(entries, now, newest))
        return View(orders, alive, sorted(beats.values()), newest, settings, failed, old, unreadable)

    def failure(self, machine: str) -> Failure | None:
        """Return why a machine's bootstrap gave up; None: it did not, or its record was deleted or is invalid."""
        return self._parse(Failure, member_key(machine, "failed.json"))

    def _now(self, by_key: Mapping[str, Entry]) -> float:
        """Return the time by the store's clock, because the clocks of machines differ."""
        mark = self._mark
        if mark is not None and mark.modified is None and mark.key in by_key:
            mark.modified = by_key[mark.key].modified
        if mark is not None and mark.modified is not None:
            return mark.modified + time.monotonic() - mark.written
        return max((entry.modified for entry in by_key.values()), default=0.0)

    def _order_view(self, number: int, listed: Listed, alive: Sequence[str], now: float) -> OrderView | None:
        """Return the state of an order; None: it was removed meanwhile, or is invalid."""
        order = self._parse(Order, order_key(number), forever=True)
        if order is None or not all(map(_NODE.fullmatch, order.nodes)):
            return None
        claims = listed.claims.get(number, {})
        places = [self._place(number, place_of(node), listed, alive) for node in order.nodes]
        begun = min((entry.modified for entry in claims.values()), default=now)
        age = now - listed.orders["order.json"][number].modified
        return OrderView(number, order, places, self._end(number, listed), age, now - begun)

    def _end(self, number: int, listed: Listed) -> End | None:
        """Return why an order has ended; None: it has not. An invalid object also ends it."""
        found = listed.orders["end.json"].get(number)
        if found is None:
            return None
        end = self._parse(End, found.key, forever=True)
        return End("it was ended for a reason that cannot be read", "", found.modified) if end is None else end

    def _place(self, number: int, name: str, listed: Listed, alive: Sequence[str]) -> Place:
        claims = listed.claims.get(number, {})
        incarnation = max((int(node.rpartition(".")[2]) for node in claims if place_of(node) == name), default=0)
        if not incarnation:
            return Place(name, 0, "", "free")
        node = f"{name}.{incarnation}"
        # An invalid claim belongs to no machine: another one takes the next incarnation.
        holding = self._parse(Holding, claims[node].key, forever=True)
        machine = "" if holding is None else holding.machine
        let_go = listed.freed.get(number, {}).get(node)
        if let_go is None:
            return Place(name, incarnation, machine, "held" if machine in alive else "lost")
        freed = self._parse(Freed, let_go.key, forever=True)
        outcome = "error" if freed is None else freed.outcome
        if outcome == "lost":
            return Place(name, incarnation, machine, "lost")
        return Place(name, incarnation, machine, "done", outcome, claims[node].modified, let_go.modified)

    def _parse(self, kind: type[_R], key: str, *, forever: bool = False) -> _R | None:
        """Return a record; None: it no longer exists, or is invalid, which is logged once.

        `forever`: an existing object never changes, so it is cached. Raises JobDirError.
        """
        if forever and key in self._known:
            known = self._known[key]
            return known if isinstance(known, kind) else None
        found: _R | None = None
        try:
            found = kind.read(self._dir, key)
        except RecordError as error:
            if key not in self._refused:
                log.warning("it is passed over: %s", error)
                self._refused.add(key)
            if forever:
                self._known[key] = None
        if forever and found is not None:
            self._known[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Listed:
    """A listing of a fleet's folder, without unknown keys."""

    members: Mapping[str, dict[str, Entry]]
    """Name of the object -> machine -> entry."""
    orders: Mapping[str, dict[int, Entry]]
    """Name of the object -> number of the order -> entry."""
    claims: dict[int, dict[str, Entry]]
    """Number of the order -> node -> entry."""
    freed: dict[int, dict[str, Entry]]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Listed:
        """Sort the objects by their keys."""
        found = cls(defaultdict(dict), defaultdict(dict), {}, {})
        for entry in entries:
            if member := _MEMBER.fullmatch(entry.key):
                found.members[member[2]][member[1]] = entry
            elif order := _ORDER.fullmatch(entry.key):
                found.orders[order[2]][int(order[1])] = entry
            elif node := _OF_NODE.fullmatch(entry.key):
                by_order = found.claims if node[2] == "claims" else found.freed
                by_order.setdefault(int(node[1]), {})[node[3]] = entry
        return found


def _failed(listed: Listed, beats: Mapping[str, float], now: float) -> dict[str, float]:
    """Return machine -> seconds since its bootstrap gave up. Leaves out machines that were recreated under the same
    name and have sent a heartbeat since."""
    heard: dict[str, float] = {}
    for own, age in beats.items():
        name = own.rpartition("-")[0]
        heard[name] = min(age, heard.get(name, age))
    ages = {machine: now - entry.modified for machine, entry in listed.members["failed.json"].items()}
    return {machine: age for machine, age in ages.items() if age < heard.get(machine, float("inf"))}


def _old(entries: Sequence[Entry], now: float, newest: int) -> Iterator[str]:
    """Yield the stale keys of ended orders and of machines that are gone. The newest order is kept for its number."""
    old = Listed.of([entry for entry in entries if _is_old(entry, now)])
    ended = {f"{number:08d}" for number in old.orders["end.json"] if number != newest}
    gone, failed = old.members["beat.json"], {entry.key for entry in old.members["failed.json"].values()}
    for entry in reversed(entries):  # order.json before end.json: an order without end.json counts as open
        folder, _, rest = entry.key.partition("/")
        name = rest.partition("/")[0]
        is_left_over = (folder == "orders" and name in ended) or (folder == "members" and name in gone)
        if is_left_over or entry.key in failed:
            yield entry.key


def _is_old(entry: Entry, now: float) -> bool:
    return now - entry.modified > KEPT_S
