"""The member, the process on each machine of a fleet that runs nodes of jobs one after the other.

    python -m cloudgpu.runtime.fleet.member --fleet-dir URL --member NAME --home DIR

It imports only the standard library and obstore. The main thread decides, starts and kills processes; another thread
writes heartbeats and polls the fleet dir (Contact). See docs/guides/clusters.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...protocol.fleet.folder import Fleet
from ...protocol.fleet.records import EXPIRY_GRACE_S, Beat, End, Freed, member_key, order_key, place_of
from ...protocol.fleet.view import OrderView, View
from ...protocol.jobdir import JobDirError
from ...storage import durable
from ..agent.agent import REBOOTING, note
from ..notices import CLOUDS
from ..processes.program import adopt_orphans
from ..retry import retry
from .contact import Contact, boottime
from .work import LOST, Task, Work, WorkError, clean, read_task, write_task

DONE, LEAVES, UNREACHABLE = 0, 8, 9
"""Exit codes, handled by provisioners/boot/shipped/bootstrap.py. DONE: the machine is going down; LEAVES: it is no
longer needed and must leave its group; UNREACHABLE: its fleet dir cannot be reached."""
POLL_S = 0.1
FETCH_S = 120.0
"""Retry timeout for fetching a job's agent file, in seconds."""
AFTER_NOTICE_S = 180.0
"""Seconds for which a machine takes no node after a notice ended its program: it will probably be preempted."""
SPARED_S = 60.0
"""Maximum seconds for which a machine on which jobs fail leaves waiting nodes to other free machines."""
JOB_DIR_S = 300.0
"""Retry timeout for job dir requests, in seconds."""
UNREACHABLE_S = 1_800.0
"""Seconds without access to the fleet dir after which the member exits with UNREACHABLE."""
_PRUNE_S = 3_600.0
_LONGEST_PAUSE_S = 15.0
"""Maximum backoff between retries of a job dir or fleet dir request, in seconds."""

_T = TypeVar("_T")
_D = TypeVar("_D")


class Member:
    """Main loop of a fleet's machine, for one boot."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._home = Path(options.home).absolute()
        self._machine: str = options.member
        life = float("inf") if options.lifetime_s is None else options.lifetime_s
        self._stops = boottime() + life - min(EXPIRY_GRACE_S, life / 10)
        """Time, on the clock of boottime(), after which the machine runs no node."""
        self._stays: bool = options.stays
        self._one_job: bool = options.one_job
        self._options = ["--notices", options.notices]
        self._options += [] if options.patience_s is None else ["--patience-s", str(options.patience_s)]
        self._fleet = Fleet(options.fleet_dir)
        self._path = self._home / "task.json"
        self._going_down = False
        self._quiet_until = 0.0
        self._spared_since: float | None = None
        self._idle_since = boottime()
        self._pruned = boottime()
        self._seen = 0
        self._looked = time.monotonic()
        """Monotonic time of the last successful poll; time suspended does not count."""

    def run(self) -> int:
        """Run nodes until the machine goes down or is no longer needed; return the exit code."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._home.mkdir(parents=True, exist_ok=True)
        self._name = own_name(self._home / "member", self._machine)
        adopt_orphans()
        self._retry(lambda: self._fleet.delete(member_key(self._name, "left.json")))
        self._contact = Contact(self._fleet, self._name, note)
        try:
            self._resume()
            while not self._going_down:
                view = self._next_view()
                if view is None:
                    continue
                self._housekeep(view)
                if (self._has_expired and not self._stays) or self._should_leave(view):
                    return self._leave()
                if boottime() < self._quiet_until or self._is_ending:
                    continue
                if self._defers_to_others(view):
                    continue
                wanted = view.wanted(self._name)
                if wanted is not None:
                    one, place = wanted
                    self._take(one, Task(one.number, place.following, uuid.uuid4().hex, time.time()))
            return DONE
        finally:
            self._contact.stop()

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._going_down = True

    def _next_view(self) -> View | None:
        """Sleep for POLL_S; return the view if it is new, else None.

        Exits the process if there was no new view for UNREACHABLE_S.
        """
        time.sleep(POLL_S)
        if self._contact.polls == self._seen:
            if time.monotonic() - self._looked > UNREACHABLE_S:
                sys.exit(UNREACHABLE)
            return None
        self._seen, self._looked = self._contact.polls, time.monotonic()
        return self._contact.view

    def _should_leave(self, view: View) -> bool:
        """Return whether the machine must leave its group.

        A machine of a single job's group leaves when no order is open, or when its node has ended: the group keeps one
        machine per unfinished node. Other machines leave after being idle for the fleet's `idle_s`.
        """
        if self._stays:
            return False
        is_over = all(one.is_over for one in view.orders)
        if self._one_job:
            places = [place for one in view.orders for place in one.places]
            return is_over or any(place.state == "done" and place.machine == self._name for place in places)
        limit = view.settings.idle_s
        return is_over and limit is not None and boottime() - self._idle_since >= limit

    def _defers_to_others(self, view: View) -> bool:
        """Return whether to leave waiting nodes to other free machines, because jobs fail on this machine.

        This is limited to SPARED_S: the other machines may not take them, for example after a notice.
        """
        if not view.yields_to_others(self._name):
            self._spared_since = None
            return False
        if self._spared_since is None:
            self._spared_since = boottime()
            note("jobs fail on this machine: other free machines go first")
        return boottime() - self._spared_since < SPARED_S

    def _leave(self) -> int:
        self._retry(lambda: self._fleet.put(member_key(self._name, "left.json"), Beat(time.time())))
        return LEAVES

    def _housekeep(self, view: View) -> None:
        """Close orders whose nodes have ended, withdraw orders that cannot be filled, and delete old records."""
        for one in view.orders:
            if one.end is None and one.is_over:
                self._end(one.number, "its nodes have ended")
        self._withdraw_unfillable(view)
        if view.old and boottime() - self._pruned > _PRUNE_S:
            self._pruned = boottime()
            for key in view.old:
                self._try(lambda key=key: self._fleet.delete(key))  # type: ignore[misc]

    def _check_orders(self) -> None:
        """Withdraw orders that cannot be filled; called while a node runs, which may belong to such an order."""
        view = self._next_view()
        if view is not None:
            self._withdraw_unfillable(view)

    def _withdraw_unfillable(self, view: View) -> None:
        """Withdraw orders that cannot be filled: the submitter may be offline, and machines that wait cost money."""
        for one in view.orders:
            if why := view.withdrawal_reason(one):
                self._end(one.number, why, unserved=True)

    def _end(self, number: int, reason: str, *, unserved: bool = False) -> None:
        end = End(reason, self._name, time.time(), unserved=unserved)
        self._try(lambda: self._fleet.create(order_key(number, "end.json"), end))

    # --- a job -----------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Resume the node that ran before this machine was restarted, unless another machine has replaced it."""
        task = read_task(self._path)
        if task is None:
            clean(self._home)
            return
        view = self._retry(self._fleet.view)
        one = view.find(task.number)
        if one is not None:
            work = self._work(one, task)
            work.kill()
            if one.end is None and self._is_newest(one, task):
                self._take(one, task)
                return
        clean(self._home)
        self._path.unlink()

    def _is_newest(self, one: OrderView, task: Task) -> bool:
        place = one.place(place_of(task.node))
        return place.incarnation <= int(task.node.rpartition(".")[2]) and place.state != "done"

    def _work(self, one: OrderView, task: Task) -> Work:
        life = one.order.lifetime_s
        ends = None if life is None else boottime() + life - one.ran_s
        return Work(self._home, self._machine, task, one.order, options=self._options, ends=ends)

    def _take(self, one: OrderView, task: Task) -> None:
        """Claim a node, run it, and release it; if it resumes here after a reboot, keep the claim."""
        self._contact.clear_lapse()
        self._spared_since = None
        write_task(self._path, task)
        key = order_key(task.number, f"claims/{task.node}")
        work = self._work(one, task)
        if self._retry(lambda: self._fleet.create(key, task.holding(self._name))):
            self._contact.holds = f"{task.number:08d}/{task.node}"
            note(f"{task.node} of attempt {one.order.attempt} of {one.order.job_id} runs here")
            freed = self._run(one, work)
            if freed is None:
                return
            self._let_go(work, freed)
            self._idle_since = boottime()
        self._path.unlink()
        clean(self._home)  # last: this may take long, and other nodes wait for the release
        self._contact.holds = ""
        self._contact.poll_now()

    def _let_go(self, work: Work, freed: Freed) -> None:
        note(f"{work.task.node}: {freed.outcome}: {freed.reason}")
        work.kill()
        if not self._is_over(self._retry(self._fleet.view), work.task):
            self._retry_job_dir(partial(work.dismiss_peers, freed), None)
        self._retry(lambda: self._fleet.create(order_key(work.task.number, f"freed/{work.task.node}"), freed))

    def _run(self, one: OrderView, work: Work) -> Freed | None:
        """Run the node until it ends or must be released; return how. None if it resumes here after a reboot."""
        while True:
            begun = self._begin(work)
            if begun is not None:
                return begun
            is_notified = gives_way = False
            while work.is_on:
                self._check_orders()
                gives_way = gives_way or self._releases_node(work.task)
                if (self._going_down or self._is_ending or gives_way) and not is_notified:
                    is_notified = True
                    work.go_down(comes_back=self._comes_back)
                if self._contact.is_lost:
                    return Freed(LOST, "the fleet dir could not be written for too long", time.time())
                if self._is_over(self._contact.view, work.task):
                    return Freed("stopped", "this node was stopped or moved to another machine", time.time())
            if self._going_down and self._comes_back:
                return None
            unknown = Freed("error", f"{one.order.job_dir} cannot be read", time.time())
            freed = self._retry_job_dir(work.ended, unknown)
            if freed is None and (is_notified or self._going_down):
                return Freed(LOST, "the machine ends, or is needed elsewhere", time.time())
            if freed is not None:
                self._quiet_until = boottime() + AFTER_NOTICE_S if freed.outcome == LOST and not gives_way else 0.0
                return freed

    def _begin(self, work: Work) -> Freed | None:
        """Start the agent, with retries; return None, or how the node has ended if it cannot be started."""
        until = boottime() + FETCH_S
        while True:
            try:
                work.start()
            except (WorkError, ValueError) as error:  # ValueError: a NUL in the agent's arguments
                reason = str(error)
            except (JobDirError, OSError) as error:
                if boottime() < until and not self._going_down:
                    time.sleep(1.0)
                    continue
                reason = f"the agent cannot be started: {error}"
            else:
                return None
            return self._retry_job_dir(partial(work.give_up, reason), Freed("error", reason, time.time()))

    def _releases_node(self, task: Task) -> bool:
        view = self._contact.view
        return view is not None and view.must_release(task.number, place_of(task.node))

    @property
    def _is_ending(self) -> bool:
        return boottime() >= self._stops or self._has_expired

    @property
    def _has_expired(self) -> bool:
        """True if the fleet has expired according to the last view; the expiry may still be postponed."""
        view = self._contact.view
        return view is not None and view.settings.has_expired

    @property
    def _comes_back(self) -> bool:
        return (self._home / REBOOTING).exists()

    @staticmethod
    def _is_over(view: View | None, task: Task) -> bool:
        """Return whether the task's order has ended, or another machine has replaced this one for the task's node."""
        one = None if view is None else view.find(task.number)
        if one is None:
            return False
        return one.end is not None or one.place(place_of(task.node)).incarnation > int(task.node.rpartition(".")[2])

    # --- the fleet dir ---------------------------------------------------------------------------------------------

    def _retry(self, call: Callable[[], _T]) -> _T:
        """Return the result of a fleet dir call, with retries; exit the process after UNREACHABLE_S."""
        until, said = time.monotonic() + UNREACHABLE_S, ""

        def is_last(error: JobDirError, _pause: float) -> bool:
            nonlocal said
            if str(error) != said:
                note(str(error))
            said = str(error)
            if self._going_down:
                sys.exit(DONE)
            if time.monotonic() > until:
                sys.exit(UNREACHABLE)
            return False

        return retry(call, JobDirError, is_last, longest_s=_LONGEST_PAUSE_S)

    def _retry_job_dir(self, call: Callable[[], _T], default: _D) -> _T | _D:
        """Return the result of a job dir call, with retries for JOB_DIR_S; then return `default`.

        No error is raised, because the machine can still run other jobs.
        """
        until = boottime() + JOB_DIR_S

        def is_last(error: JobDirError, pause: float) -> bool:
            note(str(error))
            return boottime() + pause > until or self._going_down

        try:
            return retry(call, JobDirError, is_last, longest_s=_LONGEST_PAUSE_S)
        except JobDirError:
            return default

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except JobDirError as error:
            note(str(error))


def own_name(path: Path, machine: str) -> str:
    """Return the machine's name in the fleet: `machine` with a random suffix, which is stored in a file on its disk.

    Google Cloud's instance groups recreate a lost machine under the same name; the suffix prevents that the new machine
    inherits its claims. Raises OSError.
    """
    if not path.exists():
        durable.write(path, f"{machine}-{uuid.uuid4().hex[:8]}".encode())
    return path.read_text()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m cloudgpu.runtime.fleet.member", description="Runs jobs on a machine of a fleet."
    )
    parser.add_argument("--fleet-dir", required=True, metavar="URL")
    parser.add_argument("--member", required=True, metavar="NAME", help="of this machine")
    parser.add_argument("--home", required=True, metavar="DIR", help="this machine's own folder")
    parser.add_argument("--lifetime-s", type=float, metavar="S", help="lifetime of the machine in seconds")
    parser.add_argument("--stays", action="store_true", help="it does not leave its group, however long it is idle")
    parser.add_argument("--one-job", action="store_true", help="it leaves as soon as no order is open")
    parser.add_argument("--notices", choices=(*CLOUDS, "none"), default="none", help="as the agent's")
    parser.add_argument("--patience-s", type=float, metavar="S", help="as the agent's")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the member; return its exit code. Raises OSError for errors of this machine's disk."""
    return Member(parse(argv)).run()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # does not join threads: a thread that hangs on an unreachable store must not keep the machine up
