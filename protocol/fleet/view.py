"""State of a whole fleet at one moment: orders, their places, and which machine takes which. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from .records import End, Order, Settings

SOON_S = 600.0
"""Seconds after its claim within which a failed node counts against its machine."""
SUSPECT_JOBS = 2
"""Number of jobs that must fail on a machine within SOON_S, without a success since, to make it suspect."""
BOOT_S = 1_200.0
"""Seconds after which an order that has never had all of its machines is withdrawn."""

State = Literal["free", "held", "lost", "done"]


@dataclass(frozen=True, slots=True)
class Place:
    """A node that an order asks for, in its newest incarnation."""

    name: str
    """Name of the node without its incarnation, e.g. `worker-0`."""
    incarnation: int
    """Number of the newest incarnation; 0: no machine has claimed the node yet."""
    machine: str
    """Name of the machine that claimed this incarnation; "": none."""
    state: State
    outcome: str = ""
    """Outcome of the node if `state` is `done`, else ""."""
    claimed: float = 0.0
    ended: float = 0.0
    """Epoch seconds, by the store's clock, of the node's end if `state` is `done`."""

    @property
    def node(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def failed_soon(self) -> bool:
        return self.outcome in ("failed", "error") and self.ended - self.claimed < SOON_S

    @property
    def following(self) -> str:
        """Name of the next incarnation."""
        return f"{self.name}.{self.incarnation + 1}"


@dataclass(frozen=True, slots=True)
class OrderView:
    """An order and its state."""

    number: int
    order: Order
    places: Sequence[Place]
    end: End | None
    age: float
    """Seconds since the order was written, by the store's clock."""
    ran_s: float = 0.0
    """Seconds since the first of its nodes was claimed, by the store's clock; 0: none has been."""

    @property
    def is_failing(self) -> bool:
        """True if one of its nodes ended without success: no further node of it is started."""
        return any(place.state == "done" and place.outcome != "succeeded" for place in self.places)

    @property
    def is_over(self) -> bool:
        """True if no node of it runs or will run."""
        states = {place.state for place in self.places}
        return self.end is not None or states == {"done"} or (self.is_failing and "held" not in states)

    @property
    def wanting(self) -> Sequence[Place]:
        """Places that need a machine."""
        if self.is_over or self.is_failing:
            return ()
        return [place for place in self.places if place.state in ("free", "lost")]

    @property
    def held(self) -> Sequence[Place]:
        return [place for place in self.places if place.state == "held"]

    def place(self, name: str) -> Place:
        """Return the place of this name; if the order has no such place, one with the state `done`."""
        return next((place for place in self.places if place.name == name), Place(name, 0, "", "done"))


@dataclass(frozen=True, slots=True)
class View:
    """The whole fleet at one moment."""

    orders: Sequence[OrderView] = ()
    """Orders by number; if several have the same launch token, only the first."""
    alive: Sequence[str] = ()
    """Machines with a heartbeat within `silent_s` that are not leaving."""
    silent: Sequence[float] = ()
    """Seconds since the last heartbeat of every machine, in ascending order."""
    newest: int = 0
    """Number of the newest order, ended or not."""
    settings: Settings = field(default_factory=Settings)
    failed: Mapping[str, float] = field(default_factory=dict)
    """Provider's name of each machine whose bootstrap gave up, without a heartbeat since -> seconds since then.
    Fleet.failure() returns the reason."""
    old: Sequence[str] = ()
    """Keys of stale objects, in the order in which they may be deleted."""
    unreadable: Mapping[int, float | None] = field(default_factory=dict)
    """Number of each invalid order -> seconds since its end; None: it has not ended. A machine that read it before
    it was damaged may still run it."""

    def wanted(self, machine: str) -> tuple[OrderView, Place] | None:
        """Return the place that a free machine takes; None: no place needs one.

        Orders are served first in, first out: an order gets machines only when every older one has all of its
        machines, so that no two orders deadlock with half of theirs.
        """
        for one in self.orders:
            if one.wanting:
                return one, one.wanting[hash(machine) % len(one.wanting)]
        return None

    @property
    def suspects(self) -> Set[str]:
        """Machines on which jobs fail, e.g. because of a broken GPU. Only the node of an order that failed first
        counts against its machine; the others may have been stopped, or have failed because of it."""
        failures: dict[str, set[str]] = {}
        for one in self.orders:
            ended = [place for place in one.places if place.state == "done"]
            for place in ended:
                if place.outcome == "succeeded" or place.ended - place.claimed >= SOON_S:
                    failures.pop(place.machine, None)
            if first := min((place for place in ended if place.failed_soon), key=lambda it: it.ended, default=None):
                failures.setdefault(first.machine, set()).add(one.order.job_id)
        return {machine for machine, jobs in failures.items() if len(jobs) >= SUSPECT_JOBS}

    def yields_to_others(self, machine: str) -> bool:
        """Return whether a suspect machine leaves the wanted places to others because enough of them are free."""
        wanted = self.wanted(machine)
        if wanted is None or machine not in self.suspects:
            return False
        return len(self.free - self.suspects) >= len(wanted[0].wanting)

    @property
    def free(self) -> Set[str]:
        """Alive machines that run no node."""
        return set(self.alive) - {place.machine for one in self.orders for place in one.held}

    def must_release(self, number: int, name: str) -> bool:
        """Return whether the machine of a place must release it for the oldest order that lacks machines.

        This resolves a deadlock of several incomplete orders after machines were lost and not replaced. Younger orders
        release machines, the youngest first, if this completes the oldest order; no more are released than it lacks.
        """
        waiting = [one for one in self.orders if one.wanting]
        given = [(one.number, place.name) for one in reversed(waiting[1:]) for place in reversed(one.held)]
        if (number, name) not in given:
            return False
        lacking = len(waiting[0].wanting) - len(self.free)
        return lacking <= len(given) and (number, name) in given[: max(0, lacking)]

    def orders_ahead(self, one: OrderView) -> int:
        """Return the number of older orders that lack machines, which are served before this one."""
        return sum(bool(other.wanting) for other in self.orders if other.number < one.number)

    def withdrawal_reason(self, one: OrderView) -> str:
        """Return why an order is withdrawn; "": it is not.

        It is withdrawn if it has never had all of its machines, and for BOOT_S the fleet has had fewer than it
        needs, busy ones included. A machine that fell silent more recently still counts, as it may be being
        replaced.
        """
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
