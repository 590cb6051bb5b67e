"""Run processes until they end. After an order to end, ask them to end, and kill them at the deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...protocol.logs.writer import LogWriter
from ..notices import KINDS, Order, Orders, SignalOrders, write_notice
from ..processes.failure_causes import LastLines, OutOfMemoryCounter, find_cause
from ..processes.program import Exit, Process, Program
from .heartbeat import HeartbeatThread

POLL_S = 0.5
PEER_S = 5.0
"""Grace period in seconds for the other processes of a node when one has failed."""
_LIFETIME_MARGIN_S = 30.0
_LAST_LINES_S = 30.0

_T = TypeVar("_T")


class Interrupted(Exception):  # noqa: N818 - control flow, not a bug
    """An order to end has come while no program was running."""


class Vanished(Exception):  # noqa: N818
    """The deadline of an order that takes the machine away has passed: nothing more may be written."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.reason)
        self.order = order


class Wakeup:
    """Pipe on which the main thread waits. Signals, ended children (SIGCHLD) and other threads wake it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the reader wakes anyway
            os.write(self._write, b"\0")

    def wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)

    def listen_to_signals(self) -> None:
        """Install handlers that only record signals for `take_signals`; ignore SIGHUP."""

        def note(number: int, _frame: object) -> None:
            self._signals.append(number)

        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in KINDS:
            signal.signal(number, note)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def take_signals(self) -> list[int]:
        """Return the signals received since the last call."""
        taken = self._signals[:]
        del self._signals[: len(taken)]
        return taken


class StopHooks:
    """Hooks that decide how running processes are stopped. The base class is for a process that does not train."""

    listening: Path | None = None
    """File that the program creates once it polls for notices."""
    protected_pid: int | None = None
    """PID of a child of the agent that must not be killed with the program: the checkpoint writer's orphan guard."""

    def do_periodic_work(self) -> float:
        """Do periodic work; return the seconds after which it must be called again."""
        return POLL_S

    def is_over(self) -> bool:
        """Return whether processes that still run must be killed now."""
        return False

    def ended_programs(self) -> Mapping[int | None, int]:
        """Return the exit code of each rank whose program has ended while the shell that started it still runs."""
        return {}

    def restart_order(self) -> Order | None:
        """Return an order to save and end before a restart together with other nodes; None if there is none."""
        return None

    def write_s(self) -> float:
        """Return the seconds to reserve, between the program's end and a deadline, for writing staged saves."""
        return 0.0

    def peers_s(self, _ended: Exit) -> float:
        """Return the grace period in seconds for the node's other processes after one has failed."""
        return PEER_S


class Runner:
    """Runner of one program at a time on this node."""

    def __init__(self, wakeup: Wakeup, orders: Orders, state: Path, marker: str, lifetime_s: float | None) -> None:
        self._wakeup, self._orders, self._state, self._marker = wakeup, orders, state, marker
        self._signal_orders = SignalOrders(orders)
        self._dies = float("inf") if lifetime_s is None else time.monotonic() + lifetime_s
        self._last_minute = self._dies - min(_LIFETIME_MARGIN_S, (lifetime_s or 0.0) / 10)

    def run(
        self, wanted: Sequence[Process], folder: Path, conduct: StopHooks, log: LogWriter, heart: HeartbeatThread
    ) -> tuple[list[Exit], bool]:
        """Run processes until all of them and their descendants have ended.

        Returns how they ended, in chronological order, and whether they were asked to end, by a notice that they poll
        for or by SIGTERM. Raises Interrupted or Vanished if an order comes before the start or takes the machine away,
        OSError if a process cannot be started.
        """
        self.check()
        last_lines, memory = LastLines(log.add, log.masked), OutOfMemoryCounter()
        program = Program(folder, last_lines.add)
        exits: list[Exit] = []
        try:
            for process in wanted:
                program.start(process)
            asked = self._wait_for(program, exits, conduct, log, heart)
            by_itself = len(exits)
        finally:
            exits += program.kill(self._marker, conduct.protected_pid)
        program.finish_output(_LAST_LINES_S)
        self.raise_if_vanished()
        kills = memory.kills()
        for index, end in enumerate(exits[:by_itself]):
            if end.code != 0:
                cause = find_cause(end.code, last_lines.of(end.rank), kills)
                exits[index] = dataclasses.replace(end, cause=cause)
        return exits, asked

    def check(self) -> None:
        """Raise Interrupted or Vanished if an order has come. Called between two steps."""
        self.raise_if_vanished()
        if self._current(time.monotonic()) is not None:
            raise Interrupted

    def raise_if_vanished(self) -> None:
        """Raise Vanished if the deadline of an order that takes the machine away has passed."""
        now = time.monotonic()
        order = self._current(now)
        if order is not None and order.vanishes and now >= order.deadline:
            raise Vanished(order)

    def seconds_left(self, retry_timeout_s: float) -> float:
        """Return the seconds until the earliest deadline of an order, or `retry_timeout_s` if there is no order."""
        now = time.monotonic()
        order = self._current(now)
        return retry_timeout_s if order is None else order.deadline - now

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Interrupted or Vanished if an order comes."""
        self.poll(lambda: None, seconds)

    def poll(self, call: Callable[[], _T | None], limit_s: float, every_s: float = 0.2) -> _T | None:
        """Return the first result of `call` that is not None; None after `limit_s`. Raises Interrupted, Vanished."""
        until = time.monotonic() + limit_s
        while (answer := call()) is None and time.monotonic() < until:
            self.check()
            self._wakeup.wait(every_s)
        return answer

    def _wait_for(
        self, program: Program, exits: list[Exit], conduct: StopHooks, log: LogWriter, heart: HeartbeatThread
    ) -> bool:
        """Wait until all processes have ended or must be killed; return whether they were asked to end."""
        signalled = heard = False
        last_sent: Order | None = None
        peer: Order | None = None
        while program.running and not conduct.is_over():
            now = time.monotonic()
            peer = peer or conduct.restart_order()
            ends, due = self._next_end(now, peer, conduct)
            if now >= ends:
                break
            if due is not None and due is not last_sent:
                last_sent = due
                if due is not peer:  # other nodes need not know of a failed process of this node
                    heart.set_phase("stopping")
                heard = (
                    self._send_order(due, conduct.listening) or heard
                )  # a program that is leaving removes its listening file
                if not heard and not signalled:
                    signalled = True
                    program.signal(signal.SIGTERM)
            save = self._orders.newest_save
            if due is None and save is not None and save is not last_sent:
                last_sent = save
                self._send_order(save, conduct.listening)
            self._wakeup.wait(min(ends - now, conduct.do_periodic_work(), POLL_S))
            for rank, code in conduct.ended_programs().items():
                program.end_group(rank, code)
            exits += (ended := program.reap())
            failed = next((end for end in ended if end.code != 0), None)
            if peer is None and program.running and failed is not None:
                left = conduct.peers_s(failed)
                log.add_agent_line(f"{failed.describe()}; the other processes of this node have {left:.0f} s to end")
                peer = Order("failed", "peer", failed.describe(), time.monotonic() + left)
        return heard or signalled

    def _next_end(self, now: float, peer: Order | None, conduct: StopHooks) -> tuple[float, Order | None]:
        """Return the monotonic time at which running processes are killed, and the order that ends them.

        Without an order, return (infinity, None).
        """
        order = self._current(now)
        ends = [(peer.deadline, peer)] if peer is not None else []
        if order is not None:
            ends.append((order.kill_at(conduct.write_s()), order))
        return min(ends, key=lambda end: end[0], default=(float("inf"), None))

    def _send_order(self, order: Order, listening: Path | None) -> bool:
        """Write an order to the notice file; return whether the program polls for that file."""
        try:
            write_notice(self._state / "notice.json", order)
            return listening is not None and listening.exists()
        except OSError:  # the disk is full: the caller sends a signal instead
            return False

    def _current(self, now: float) -> Order | None:
        """Return the order with the earliest deadline, after adding orders for signals and the machine's lifetime."""
        if now >= self._last_minute:
            self._last_minute = float("inf")
            self._orders.add(Order("stopped", "duration", "the machine's lifetime ends", self._dies))
        self._signal_orders.take(self._wakeup.take_signals(), now)
        return self._orders.next_to_expire
