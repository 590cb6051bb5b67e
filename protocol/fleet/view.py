"""The whole fleet at one moment: orders, their places, and which machine takes which. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from .records import End, Order, Settings

SOON_S = 600.0
"""A node that ends with a failure so soon after it was claimed may have failed for its machine."""
SUSPECT_JOBS = 2
"""So many different jobs of which that happened on a machine, and none since went well, make it suspect."""
BOOT_S = 1_200.0
"""An order that too few machines were there for, for so long, is taken back: the group cannot get them."""

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
    settings: Settings = field(default_factory=Settings)
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
