"""Agreement of an attempt's nodes on restarts of their program, in create-only records `generations/<g>.json`.

A generation is one start of the program. The node that creates the record with the next number decides; the other nodes
read and follow that record. No leader or lock is needed, and every node sees each restart. A record of the kind
`closed` closes the attempt: no generation follows.
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
from .restart import Budget, RestartRequest, Scope, charge_budget

FRUITLESS = 5
"""Maximum number of consecutive replacements of lost nodes without a new checkpoint; one more closes the attempt."""
_LOOK_S = 0.1
_LOOK_FAR_S = 1.0  # in an object store, where requests cost money


class Ledger:
    """The generation records of one attempt, read and written by one node.

    `heals`: True if lost nodes are replaced or dropped: the other nodes go on, so a preempted node does not close the
    attempt.
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
        """`comes_back` returns true if this machine is going down only to reboot."""
        self._job_dir, self._attempt, self._node, self._budget = job_dir, attempt, node, budget
        self._comes_back = comes_back
        self.scope, self.heals = scope, heals
        self.newest: Generation | None = None
        self._known: list[Generation] = []
        self.newest_of_group = 1
        """Number of the newest generation in which all nodes restarted together."""
        self.members: Sequence[NodeRecord] | None = None
        """Nodes named by the newest change of membership; None: those of attempt.json."""

    @property
    def is_closed(self) -> bool:
        return self.newest is not None and self.newest.kind == "closed"

    @property
    def following(self) -> int:
        """Number of the next generation."""
        return 2 if self.newest is None else self.newest.generation + 1

    @property
    def every_s(self) -> float:
        """Poll interval for the next generation, in seconds."""
        return _LOOK_FAR_S if self._job_dir.folder is None else _LOOK_S

    def adopt(self, record: Generation) -> None:
        """Make a record the newest generation, and adopt its members."""
        self.newest = record
        self._known.append(record)
        if record.group and record.kind != "closed":
            self.newest_of_group = record.generation
        if record.nodes is not None:
            self.members = [NodeRecord.from_value(node) for node in record.nodes]

    def catch_up(self) -> Generation | None:
        """Read all generations written since the newest known one, and return the newest. Raises JobDirError."""
        while (record := self.read_generation(self.following)) is not None:
            self.adopt(record)
        return self.newest

    def is_replaced_after(self, order: Order) -> bool:
        """Return whether the attempt goes on after an order has ended this node.

        True if the other nodes go on without this node, or if this node resumes after a reboot.
        """
        return order.outcome == "preempted" and (self.heals or order.returns or self._comes_back())

    def affects_this_node(self, record: Generation) -> bool:
        """Return whether a generation restarts this node's program, or ends it because it is no longer a member."""
        if self.scope == "lone":
            return record.nodes is not None and self._node not in [node["node"] for node in record.nodes]
        return record.group and record.kind != "closed"

    def grants(self, wanted: RestartRequest | None) -> bool:
        """Return whether the budget allows a restart that this node requests."""
        return (
            wanted is not None and not self.is_closed and charge_budget(wanted, self._budget, self.newest) is not None
        )

    def could_restart(self) -> bool:
        """Return whether the budget allows a restart after a failure."""
        return self.grants(RestartRequest("failure", "", 0.0))

    def decide_next(self, wanted: RestartRequest | None, outcome: str, *, may_follow: bool) -> Generation | None:
        """Return the generation that follows the end of this node's processes; None if no generation follows.

        `wanted`: restart that this node requests, if any
        `outcome`: outcome of the processes, recorded as the reason if this node closes the attempt
        `may_follow`: True if this node may take part in a generation that another node has begun

        Raises JobDirError.
        """
        while not self.is_closed:
            record = self._record(wanted)
            if record is None and self.scope != "group":
                return None
            record = record or self._make("closed", outcome, 0.0, *self._used())
            stands = self._create_or_read(record)
            self.adopt(stands)
            if stands.nonce == record.nonce:
                return None if record.kind == "closed" else stands
            if stands.kind == "closed":
                return None
            if may_follow and self.affects_this_node(stands):
                return stands
            # The record restarts only other nodes' processes, or this node may not follow it: try the next number.
        return None

    def find_awaiting_generation(self, begun: int) -> Generation | None:
        """Return the newest generation if the other nodes wait in it for this node; else None.

        Another node began this generation, after a save, because this node's machine was about to go down. `begun`: the
        generation that this node ran last.
        """
        newest = self.newest
        return newest if newest is not None and newest.generation > begun and self.affects_this_node(newest) else None

    def rejoin(self, reason: str) -> Generation | None:
        """Begin a generation after this node's machine was restarted, for every node whose program depends on this one.

        Returns None if the attempt is closed or the budget does not allow a restart. Raises JobDirError.
        """
        wanted = RestartRequest("interruption", reason, 0.0)
        while (used := charge_budget(wanted, self._budget, self.newest)) is not None:
            record = self._make("interruption", reason, 0.0, *used, group=self.scope != "lone")
            stands = self._create_or_read(record)
            self.adopt(stands)
            if stands.kind == "closed":
                return None
            if stands.nonce == record.nonce or self.affects_this_node(stands):
                return stands
        return None

    def take_place(self, nodes: Sequence[NodeRecord], lost: str, begun: int, saved_step: int) -> Generation:
        """Begin a generation with `nodes`, in which this node replaces a lost one without a supervisor's decision.

        `lost`: name of the lost node
        `begun`: last generation of the lost node; restarts of the group since then were caused by its loss, and are not
        counted against the budget
        `saved_step`: step of the newest checkpoint

        Returns the record with the next number, which another node may have written. Its kind is `closed` if the budget
        does not allow a restart, or after FRUITLESS replacements without a new checkpoint. Raises JobDirError.
        """
        counted = [one for one in self._known if not (one.kind != "members" and one.group and one.generation > begun)]
        last = counted[-1] if counted else None
        used = charge_budget(RestartRequest("interruption", "", 0.0), self._budget, last)
        changes = [one for one in self._known if one.kind == "members"][-FRUITLESS:]
        if used is None or (len(changes) == FRUITLESS and all(one.saved_step >= saved_step for one in changes)):
            record = self._make("closed", "", 0.0, *self._used())
        else:
            record = dataclasses.replace(
                self._make("members", f"{lost} was lost; {self._node} takes its place", 0.0, *used, group=True),
                nodes=[dataclasses.asdict(node) for node in nodes],
                saved_step=saved_step,
            )
        stands = self._create_or_read(record)
        self.adopt(stands)
        return stands

    def close(self) -> Generation:
        """Close the attempt before this node ends, so that no generation waits for this node. Raises JobDirError.

        Returns the record with the next number: a generation instead, if another node has written one first.
        """
        return self._create_or_read(self._make("closed", "", 0.0, *self._used()))

    def read_generation(self, number: int) -> Generation | None:
        """Return the generation with a number; None if it is not written yet. Raises JobDirError."""
        return read_generation(self._job_dir, self._attempt, number)

    def _create_or_read(self, record: Generation) -> Generation:
        """Create a record and return it, or the record that another node has written with this number.

        Raises JobDirError.
        """
        key = generation_key(self._attempt, record.generation)
        if self._job_dir.create(key, record.to_bytes()):
            return record
        stands = self.read_generation(record.generation)
        if stands is None:
            raise JobDirError(f"{self._job_dir.url}/{key} was there, and is gone")
        return stands

    def _record(self, wanted: RestartRequest | None) -> Generation | None:
        used = None if wanted is None else charge_budget(wanted, self._budget, self.newest)
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


class GenerationWatcher:
    """Thread that polls, while the program runs, for a new generation that restarts or ends it on this node (`found`).

    When this node is ordered to end, the thread closes the attempt, so that the other nodes do not restart and wait for
    it, unless the node will be replaced or will resume after a reboot.
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
                stands = self._ledger.read_generation(number)
            except JobDirError:  # the heartbeat decides whether the job dir is lost
                continue
            if stands is None:
                continue
            if stands.kind == "closed":
                return
            if self._ledger.affects_this_node(stands):
                self.found = stands
                self._wake()
                return
            number += 1  # a generation that concerns other nodes only
