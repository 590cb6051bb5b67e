"""How the nodes of an attempt agree that their program starts again: `generations/<g>.json`, each written once.

Whoever creates the next number decides what follows; all others find it there. So there is no leader, no lock, and no
restart that one node begins and another has not heard of.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ...protocol.jobdir import (
    Generation,
    GenerationKind,
    JobDir,
    JobDirError,
    NodeRecord,
    generation_key,
    read_generation,
)
from ..notices import Order, Orders
from .restart import Budget, Scope, Wish, allowed

FRUITLESS = 5
"""So often in a row nodes take lost ones' places without a new checkpoint in between; then the attempt ends."""
_LOOK_S = 0.1
_LOOK_FAR_S = 1.0  # in an object store, where looking costs money


class Ledger:
    """The generations of one attempt, as one node reads and writes them.

    `heals`: lost nodes are replaced, or done without. Then nobody closes the row for being preempted: the others are to
    go on.
    """

    def __init__(
        self,
        job_dir: JobDir,
        attempt: int,
        node: str,
        budget: Budget,
        scope: Scope,
        *,
        heals: bool = False,
        comes_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """`comes_back`: this machine goes down, but only to reboot."""
        self._job_dir, self._attempt, self._node, self._budget = job_dir, attempt, node, budget
        self._comes_back = comes_back
        self.scope, self.heals = scope, heals
        self.newest: Generation | None = None
        self._known: list[Generation] = []
        self.newest_of_group = 1
        """The number under which all nodes have last met."""
        self.members: Sequence[NodeRecord] | None = None
        """The nodes since somebody has said that they are others; None: those of attempt.json."""

    @property
    def is_closed(self) -> bool:
        return self.newest is not None and self.newest.kind == "closed"

    @property
    def following(self) -> int:
        """The number of the next one."""
        return 2 if self.newest is None else self.newest.generation + 1

    @property
    def every_s(self) -> float:
        """How often to look for the next one."""
        return _LOOK_FAR_S if self._job_dir.folder is None else _LOOK_S

    def follow(self, record: Generation) -> None:
        """It is the newest."""
        self.newest = record
        self._known.append(record)
        if record.group and record.kind != "closed":
            self.newest_of_group = record.generation
        if record.nodes is not None:
            self.members = [NodeRecord.from_value(node) for node in record.nodes]

    def catch_up(self) -> Generation | None:
        """The newest that there is. Raises JobDirError."""
        while (record := self.look(self.following)) is not None:
            self.follow(record)
        return self.newest

    def is_replaced_after(self, order: Order) -> bool:
        """Whether the others go on without this node, once it has ended upon this order; or with it, after a reboot."""
        return order.outcome == "preempted" and (self.heals or order.returns or self._comes_back())

    def concerns(self, record: Generation) -> bool:
        """Whether this node's program starts again with it, or must end, for the others go on without it."""
        if self.scope == "lone":
            return record.nodes is not None and self._node not in [node["node"] for node in record.nodes]
        return record.group and record.kind != "closed"

    def grants(self, wanted: Wish | None) -> bool:
        """Whether the budget allows what is wished for."""
        return wanted is not None and not self.is_closed and allowed(wanted, self._budget, self.newest) is not None

    def could_restart(self) -> bool:
        """Whether a failure could be answered by another generation."""
        return self.grants(Wish("failure", "", 0.0))

    def settle(self, wanted: Wish | None, outcome: str, *, may_follow: bool) -> Generation | None:
        """What follows upon the end of this node's processes; None: nothing. Raises JobDirError.

        `outcome`: theirs, which the end of the row is told with.
        `may_follow`: this node would take part in a generation that another one has begun.
        """
        while not self.is_closed:
            record = self._record(wanted)
            if record is None and self.scope != "group":
                return None
            record = record or self._make("closed", outcome, 0.0, *self._used())
            stands = self._take(record)
            self.follow(stands)
            if stands.nonce == record.nonce:
                return None if record.kind == "closed" else stands
            if stands.kind == "closed":
                return None
            if may_follow and self.concerns(stands):
                return stands
            # Another node has started its own processes again, or ours may not go on: the next number.
        return None

    def awaits(self, begun: int) -> Generation | None:
        """The newest generation, if the others wait in it for this node, which has come to `begun` only; None: they do
        not. Whoever saved because this node was about to go has begun it."""
        newest = self.newest
        return newest if newest is not None and newest.generation > begun and self.concerns(newest) else None

    def rejoin(self, reason: str) -> Generation | None:
        """This node's machine was restarted, and its program with it: all that talk to it start again.

        None: they have ended, or the budget does not allow it. Raises JobDirError.
        """
        wanted = Wish("interruption", reason, 0.0)
        while (used := allowed(wanted, self._budget, self.newest)) is not None:
            record = self._make("interruption", reason, 0.0, *used, group=self.scope != "lone")
            stands = self._take(record)
            self.follow(stands)
            if stands.kind == "closed":
                return None
            if stands.nonce == record.nonce or self.concerns(stands):
                return stands
        return None

    def take_place(self, nodes: Sequence[NodeRecord], lost: str, begun: int, saved_step: int) -> Generation:
        """The program is to go on with `nodes`, of which this one is in the place of a lost one: where nobody else says
        so.

        `begun`: the generation that the lost one had come to; what the others used of the budget since was their
        answer to its loss, and only that counts. Returns what stands under the number; `closed`, where the budget does
        not allow it, or the nodes changed FRUITLESS times without a new checkpoint. Raises JobDirError.
        """
        counted = [one for one in self._known if not (one.kind != "members" and one.group and one.generation > begun)]
        last = counted[-1] if counted else None
        used = allowed(Wish("interruption", "", 0.0), self._budget, last)
        changes = [one for one in self._known if one.kind == "members"][-FRUITLESS:]
        if used is None or (len(changes) == FRUITLESS and all(one.saved_step >= saved_step for one in changes)):
            record = self._make("closed", "", 0.0, *self._used())
        else:
            record = dataclasses.replace(
                self._make("members", f"{lost} was lost; {self._node} takes its place", 0.0, *used, group=True),
                nodes=[dataclasses.asdict(node) for node in nodes],
                saved_step=saved_step,
            )
        stands = self._take(record)
        self.follow(stands)
        return stands

    def close(self) -> Generation:
        """This node will end: no generation shall begin that counts on it. Returns what stands. Raises JobDirError."""
        return self._take(self._make("closed", "", 0.0, *self._used()))

    def look(self, number: int) -> Generation | None:
        """The generation of this number, if somebody has written it. Raises JobDirError."""
        return read_generation(self._job_dir, self._attempt, number)

    def _take(self, record: Generation) -> Generation:
        """Create a record, or find what stands under its number."""
        key = generation_key(self._attempt, record.generation)
        if self._job_dir.create(key, record.to_bytes()):
            return record
        stands = self.look(record.generation)
        if stands is None:
            raise JobDirError(f"{self._job_dir.url}/{key} was there, and is gone")
        return stands

    def _record(self, wanted: Wish | None) -> Generation | None:
        used = None if wanted is None else allowed(wanted, self._budget, self.newest)
        if wanted is None or used is None:
            return None
        return self._make(wanted.kind, wanted.reason, wanted.pause_s, *used)

    def _used(self) -> tuple[int, int]:
        return (0, 0) if self.newest is None else (self.newest.failures, self.newest.interruptions)

    def _make(
        self,
        kind: GenerationKind,
        reason: str,
        pause_s: float,
        failures: int,
        interruptions: int,
        *,
        group: bool | None = None,
    ) -> Generation:
        return Generation(
            generation=self.following,
            kind=kind,
            node=self._node,
            group=self.scope == "group" if group is None else group,
            reason=reason,
            pause_s=pause_s,
            failures=failures,
            interruptions=interruptions,
            time=time.time(),
            nonce=uuid.uuid4().hex,
        )


class Lookout:
    """While the program runs on several nodes: looks, from a thread of its own, for the generation that ends it here.

    Once this node has been ordered to end, it closes the row, so that its peers do not start again without it; unless
    it is only this machine that goes, and somebody will replace it.
    """

    def __init__(self, ledger: Ledger, orders: Orders, wake: Callable[[], None]) -> None:
        self._ledger, self._orders, self._wake = ledger, orders, wake
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="generations", daemon=True)
        self.found: Generation | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        self._stopping.set()

    def _run(self) -> None:
        number = self._ledger.following
        while not self._stopping.wait(self._ledger.every_s):
            try:
                order = self._orders.deciding
                if order is not None:
                    if self._ledger.scope == "group" and not self._ledger.is_replaced_after(order):
                        self._ledger.close()
                    return
                stands = self._ledger.look(number)
            except JobDirError:  # whether it is lost for good is judged by the heartbeat
                continue
            if stands is None:
                continue
            if stands.kind == "closed":
                return
            if self._ledger.concerns(stands):
                self.found = stands
                self._wake()
                return
            number += 1  # the others' own
