"""A fleet's folder: where jobs that want machines meet machines that want jobs. Standard library and obstore only.

    <fleet dir>/
      fleet.json                         what its machines are to know: Settings; may be replaced at any time
      agent/<sha256>.pyz                 what they boot with, and run (fleet/member.py)
      members/<machine>/beat.json        rewritten by the machine every few seconds: Beat
      members/<machine>/left.json        the machine goes: nobody counts on it any more
      members/<machine>/failed.json      why its bootstrap gave up
      orders/00000007/order.json         create-only, numbered from 1 without gaps: Order
      orders/00000007/claims/worker-0.1  create-only: which machine runs this incarnation of a node: Holding
      orders/00000007/freed/worker-0.1   create-only: that machine has let go of it: Freed
      orders/00000007/end.json           create-only: nothing of it shall run any more: End
      watch.json                         whoever looks without being a member tells the time by it

Nobody connects to a machine, and there is no leader: who creates an object decides. One listing tells all that there
is, so a machine that waits makes two requests each time it looks.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ..storage.objects import JobDir
from ..storage.store import Entry
from .jobdir import Record, RecordError

log = logging.getLogger("cloudgpu.fleet")

_R = TypeVar("_R", bound=Record)

FLEET_KEY = "fleet.json"
WATCH_KEY = "watch.json"
_ORDER = re.compile(r"orders/(\d{8})/((?:order|end)\.json)", re.ASCII)
_OF_NODE = re.compile(r"orders/(\d{8})/(claims|freed)/([\w-]{1,64}\.[1-9]\d{0,8})", re.ASCII)
_MEMBER = re.compile(r"members/([^/]+)/((?:beat|left|failed)\.json)")
_NODE = re.compile(r"[\w-]{1,64}\.[1-9]\d{0,8}", re.ASCII)
KEPT_S = 7 * 86_400.0
"""What was of ended orders and of machines that are gone is kept so long."""
LAST_S = 60.0
"""So long before a machine ends itself, or its fleet expires, what it runs is told to save, and is left to another."""
SOON_S = 600.0
"""A node that ends with a failure so soon after it was claimed may have failed for its machine."""
SUSPECT_JOBS = 2
"""So many different jobs of which that happened on a machine, and none since went well, make it suspect."""
BLOCK_ENDS_EARLY_S = 1_800.0
"""So long before a Capacity Block ends AWS begins to terminate its machines ("Monitor Capacity Blocks using
EventBridge"), and says nothing on them: agents and fleets are told the end by whoever launches."""
BOOT_S = 1_200.0
"""An order that too few machines were there for, for so long, is taken back: the group cannot get them."""


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """fleet.json."""

    idle_s: float | None = None
    """A machine that had no job for so long leaves its group, and ends; None: never."""
    look_s: float | None = None
    """How often a machine beats and looks; None: every 10 s, at 0.09 USD a day in S3."""
    silent_s: float = 120.0
    """A machine that was not heard of for so long has lost its node. Its own agent is dead by then: it is killed where
    the fleet dir could not be written for two thirds of it."""
    expires: float | None = None
    """Epoch seconds: a minute before, what runs saves, and every machine leaves its group; None: never."""

    @property
    def has_expired(self) -> bool:
        """Or is about to: machines run nothing any more."""
        return self.expires is not None and time.time() >= self.expires - LAST_S


@dataclass(frozen=True, slots=True)
class Order(Record):
    """order.json: these nodes of an attempt are to run, each on one machine."""

    job_id: str
    attempt: int
    token: str
    """Of the launch: a repeated one finds its order."""
    owner: str
    """As in Owner.name."""
    job_dir: str
    job_sha256: str
    agent_key: str
    """Of the agent file in the job dir; "": the member's own agent."""
    agent_sha256: str
    nodes: list[str]
    """First incarnations, in rank order: `worker-0.1`, …"""
    lifetime_s: float | None
    """From its first claim on, whichever machines it has; None: no limit."""
    time: float


@dataclass(frozen=True, slots=True)
class Holding(Record):
    """claims/<node>."""

    machine: str
    nonce: str
    time: float


@dataclass(frozen=True, slots=True)
class Freed(Record):
    """freed/<node>: the machine does not run the node any more; what is left of it goes before another one comes."""

    outcome: str
    """`lost`: another machine may take its place. Else as in Result: the node has ended."""
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class End(Record):
    """end.json. Machines that still run a node kill it."""

    reason: str
    by: str
    time: float
    unserved: bool = False
    """There were no machines for it."""


@dataclass(frozen=True, slots=True)
class Beat(Record):
    """beat.json; that it is rewritten is the sign of life."""

    time: float
    holds: str = ""
    """`00000007/worker-0.1`; "": nothing."""


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """failed.json."""

    reason: str
    time: float


State = Literal["free", "held", "lost", "done"]


@dataclass(frozen=True, slots=True)
class Place:
    """One of the nodes that an order asks for, in its newest incarnation."""

    name: str
    """`worker-0`."""
    incarnation: int
    """0: nobody has claimed it yet."""
    machine: str
    """Which did; "": none."""
    state: State
    outcome: str = ""
    """How it ended, where it is done."""
    claimed: float = 0.0
    ended: float = 0.0
    """When, by the store's clock, where it is done."""

    @property
    def node(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def failed_soon(self) -> bool:
        return self.outcome in ("failed", "error") and self.ended - self.claimed < SOON_S

    @property
    def following(self) -> str:
        """What the next machine will be."""
        return f"{self.name}.{self.incarnation + 1}"


@dataclass(frozen=True, slots=True)
class OrderView:
    """An order, and what has become of it."""

    number: int
    order: Order
    places: Sequence[Place]
    end: End | None
    age: float
    """Seconds since it was written, by the store's clock."""
    ran_s: float = 0.0
    """Seconds since the first of its nodes was claimed, by the store's clock; 0: none was yet."""

    @property
    def is_failing(self) -> bool:
        """One of its nodes has ended, and not well: nobody is to begin with another."""
        return any(place.state == "done" and place.outcome != "succeeded" for place in self.places)

    @property
    def is_over(self) -> bool:
        """Nothing of it runs, nor will."""
        states = {place.state for place in self.places}
        return self.end is not None or states == {"done"} or (self.is_failing and "held" not in states)

    @property
    def wanting(self) -> Sequence[Place]:
        """The places that machines are to take."""
        if self.is_over or self.is_failing:
            return ()
        return [place for place in self.places if place.state in ("free", "lost")]

    @property
    def held(self) -> Sequence[Place]:
        return [place for place in self.places if place.state == "held"]

    def place(self, name: str) -> Place:
        """Return what has become of a place; one that the order does not ask for is done."""
        return next((place for place in self.places if place.name == name), Place(name, 0, "", "done"))


@dataclass(frozen=True, slots=True)
class View:
    """The whole fleet at one moment."""

    orders: Sequence[OrderView] = ()
    """In the order of their numbers; of those with one token the first only."""
    alive: Sequence[str] = ()
    """Machines that were heard of lately, and stay."""
    silent: Sequence[float] = ()
    """Seconds for which each machine there has been was not heard of, in ascending order."""
    newest: int = 0
    """Number of the newest order, ended or not."""
    settings: Settings = Settings()
    failed: Mapping[str, float] = field(default_factory=dict)
    """Machines, as their provider calls them, whose bootstrap gave up, and which nothing was heard of since -> seconds
    since then; Fleet.failure() tells why."""
    old: Sequence[str] = ()
    """Keys of what need not be kept, in the order in which they may be deleted."""
    unreadable: Mapping[int, float | None] = field(default_factory=dict)
    """Orders that cannot be read -> seconds since each was ended; None: it was not. A machine may run it all the same,
    having read it before."""

    def wanted(self, machine: str) -> tuple[OrderView, Place] | None:
        """The place that a free machine is to take. Orders are served in their turn: one begins when every older one
        has all of its machines, so that no two wait for each other with half of theirs."""
        for one in self.orders:
            if one.wanting:
                return one, one.wanting[hash(machine) % len(one.wanting)]
        return None

    @property
    def suspects(self) -> Set[str]:
        """Machines that may be broken, as by a GPU: jobs fail there. Of the nodes of an order the one that failed first
        tells of its machine; what was stopped, or failed because of it, tells nothing."""
        failures: dict[str, set[str]] = {}
        for one in self.orders:
            ended = [place for place in one.places if place.state == "done"]
            for place in ended:
                if place.outcome == "succeeded" or place.ended - place.claimed >= SOON_S:
                    failures.pop(place.machine, None)
            if first := min((place for place in ended if place.failed_soon), key=lambda it: it.ended, default=None):
                failures.setdefault(first.machine, set()).add(one.order.job_id)
        return {machine for machine, jobs in failures.items() if len(jobs) >= SUSPECT_JOBS}

    def spares(self, machine: str) -> bool:
        """Whether a suspect machine is to leave what is wanted to others: enough of them are free."""
        wanted = self.wanted(machine)
        if wanted is None or machine not in self.suspects:
            return False
        return len(self.free - self.suspects) >= len(wanted[0].wanting)

    @property
    def free(self) -> Set[str]:
        """Machines that run nothing."""
        return set(self.alive) - {place.machine for one in self.orders for place in one.held}

    def gives_way(self, number: int, name: str) -> bool:
        """Whether the machine of a place is to let go of it: the oldest order that lacks machines, of which none is
        free, can have all by those of younger ones that cannot go on either. Else two orders wait for each other, once
        machines are lost and not replaced. The youngest gives first, and no more than are lacking."""
        waiting = [one for one in self.orders if one.wanting]
        given = [(one.number, place.name) for one in reversed(waiting[1:]) for place in reversed(one.held)]
        if (number, name) not in given:
            return False
        lacking = len(waiting[0].wanting) - len(self.free)
        return lacking <= len(given) and (number, name) in given[: max(0, lacking)]

    def before(self, one: OrderView) -> int:
        """How many other orders get the machines that they lack before this one does."""
        return sum(bool(other.wanting) for other in self.orders if other.number < one.number)

    def hopeless(self, one: OrderView) -> str:
        """Why an order is to be taken back; "": it is not. It never had all of its machines, for there are not so many,
        busy ones included, and were not for BOOT_S: one that is being replaced while it waits is no reason."""
        needed = len(one.places)
        begun = all(place.incarnation for place in one.places)
        lacking_s = min(one.age, self.silent[needed - 1] if len(self.silent) >= needed else one.age)
        if begun or one.end is not None or lacking_s <= BOOT_S or len(self.alive) >= needed:
            return ""
        return f"{len(self.alive)} machines are there, {needed} are needed, for {BOOT_S:.0f} s"

    def find(self, number: int) -> OrderView | None:
        return next((one for one in self.orders if one.number == number), None)

    def of_token(self, token: str) -> OrderView | None:
        return next((one for one in self.orders if one.order.token == token), None)


def place_of(node: str) -> str:
    """`worker-0` of `worker-0.2`."""
    return node.rpartition(".")[0]


def order_key(number: int, name: str = "order.json") -> str:
    return f"orders/{number:08d}/{name}"


def member_key(machine: str, name: str = "beat.json") -> str:
    return f"members/{machine}/{name}"


@dataclass(slots=True)
class _Mark:
    """An object of one's own, by which the store's clock is read."""

    key: str
    written: float
    """Steady time of its last writing."""
    modified: float | None = None
    """The same by the store's clock, as the next listing tells; later ones may tell of somebody else's writing."""


class Fleet:
    """The folder of one fleet. Every method raises JobDirError. May be used by several threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._dir = JobDir(self.url)
        self._known: dict[str, Record | None] = {}
        """Objects that never change; None: it is no such record."""
        self._refused: set[str] = set()
        """Keys of which was logged that they hold no such record."""
        self._settings: tuple[float, Settings] = (-1.0, Settings())
        self._mark: _Mark | None = None
        self._lock = threading.Lock()

    @property
    def is_near(self) -> bool:
        """On this computer, where looking costs nothing."""
        return self._dir.folder is not None

    def mark(self, key: str, record: Record) -> None:
        """Write an object of one's own anew: a sign of life, and the time by the store's clock."""
        self._dir.put(key, record.to_bytes())
        self._mark = _Mark(key, time.monotonic())

    def put(self, key: str, record: Record) -> None:
        self._dir.put(key, record.to_bytes())

    def create(self, key: str, record: Record) -> bool:
        """Whether this one stands now; whoever writes names himself in it."""
        return self._dir.create(key, record.to_bytes())

    def delete(self, key: str) -> None:
        self._dir.delete(key)

    def order(self, wanted: Order) -> int:
        """Stand in the queue; the number. Repeated with the same token it finds the place that it has."""
        while True:
            view = self.view()
            found = view.of_token(wanted.token)
            if found is not None:
                return found.number
            if self._dir.create(order_key(view.newest + 1), wanted.to_bytes()):
                return view.newest + 1

    def _read_settings(self, found: Entry | None) -> Settings:
        """Return what the machines are to know, read anew when it was replaced. What is no Settings changes nothing."""
        if found is None:
            return Settings()
        if self._settings[0] != found.modified:
            settings = self._parse(Settings, FLEET_KEY)
            self._settings = (found.modified, self._settings[1] if settings is None else settings)
        return self._settings[1]

    def view(self) -> View:
        """Everything there is, by one listing and what of it was never read before."""
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
        """Return why a machine's bootstrap gave up; None: it did not, or long ago, or it cannot be read."""
        return self._parse(Failure, member_key(machine, "failed.json"))

    def _now(self, by_key: Mapping[str, Entry]) -> float:
        """By the store's clock: machines' own clocks differ."""
        mark = self._mark
        if mark is not None and mark.modified is None and mark.key in by_key:
            mark.modified = by_key[mark.key].modified
        if mark is not None and mark.modified is not None:
            return mark.modified + time.monotonic() - mark.written
        return max((entry.modified for entry in by_key.values()), default=0.0)

    def _order_view(self, number: int, listed: Listed, alive: Sequence[str], now: float) -> OrderView | None:
        """Return what has become of an order; None: it was removed meanwhile, or is none."""
        order = self._parse(Order, order_key(number), forever=True)
        if order is None or not all(map(_NODE.fullmatch, order.nodes)):
            return None
        claims = listed.claims.get(number, {})
        places = [self._place(number, place_of(node), listed, alive) for node in order.nodes]
        begun = min((entry.modified for entry in claims.values()), default=now)
        age = now - listed.orders["order.json"][number].modified
        return OrderView(number, order, places, self._end(number, listed), age, now - begun)

    def _end(self, number: int, listed: Listed) -> End | None:
        """Return why an order has ended. That there is such an object says that it has, whatever stands in it."""
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
        # A claim that cannot be read is no machine's: the next incarnation is taken by another.
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
        """Return a record; None: it is not there any more, or is none, which is logged once.

        `forever`: it never changes once it is there, so it is read once. Raises JobDirError.
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
    """A listing of a fleet's folder. Keys that are no fleet's are left out."""

    members: Mapping[str, dict[str, Entry]]
    """Name of the object -> machine."""
    orders: Mapping[str, dict[int, Entry]]
    """Name of the object -> number of the order."""
    claims: dict[int, dict[str, Entry]]
    """Number of the order -> node."""
    freed: dict[int, dict[str, Entry]]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Listed:
        """Sort the objects by what their keys say."""
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
    """A machine that its group made anew under the same name may well live (fleet_member.own_name)."""
    heard: dict[str, float] = {}
    for own, age in beats.items():
        name = own.rpartition("-")[0]
        heard[name] = min(age, heard.get(name, age))
    ages = {machine: now - entry.modified for machine, entry in listed.members["failed.json"].items()}
    return {machine: age for machine, age in ages.items() if age < heard.get(machine, float("inf"))}


def _old(entries: Sequence[Entry], now: float, newest: int) -> Iterator[str]:
    """Of ended orders, but for the newest one, which tells the next number; and of machines that are gone."""
    old = Listed.of([entry for entry in entries if _is_old(entry, now)])
    ended = {f"{number:08d}" for number in old.orders["end.json"] if number != newest}
    gone, failed = old.members["beat.json"], {entry.key for entry in old.members["failed.json"].values()}
    for entry in reversed(entries):  # an order before its end: without that it would be open again
        folder, _, rest = entry.key.partition("/")
        name = rest.partition("/")[0]
        is_left_over = (folder == "orders" and name in ended) or (folder == "members" and name in gone)
        if is_left_over or entry.key in failed:
            yield entry.key


def _is_old(entry: Entry, now: float) -> bool:
    return now - entry.modified > KEPT_S
