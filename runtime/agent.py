"""The agent: what runs on every machine, and runs the user's program there. See docs/runtime.md.

    python -m cloudgpu.runtime.agent --job-dir URL --attempt N --node worker-0.1 --job-sha256 HEX --home DIR

Standard library and obstore only. The main thread starts, waits and kills; other threads read the output, write the
log, beat, and watch for orders: so a job dir that hangs never delays a deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from .archive import ArchiveError, unpack
from .heartbeat import Heart, read_progress
from .jobdir import (
    JOB_KEY,
    Address,
    AttemptRecord,
    Claim,
    JobDir,
    JobDirError,
    JobRecord,
    MissingError,
    NodeRecord,
    Outcome,
    Result,
    attempt_key,
    code_key,
    node_key,
)
from .launchers import (
    LauncherError,
    Place,
    free_port,
    launcher_name,
    machine_environment,
    needs_address,
    own_host,
    processes,
    setup_process,
)
from .logs import LogWriter
from .notices import Order, Orders, Watcher, write_notice
from .program import MARKER, Exit, Process, Program, adopt_orphans

DONE, BUG, CLAIMED, JOB_DIR_LOST, VANISHED = 0, 1, 3, 4, 5
"""Exit codes of the agent: result written; unforeseen error; another agent has this node; no result could be written;
the machine was taken away."""

PATIENCE_S = 60.0
_SHUTDOWN_S = 25.0  # clouds give 30 s between the signal and the end of power
_PEER_S = 5.0  # for the other processes of this node when one has failed
_LIFETIME_MARGIN_S = 30.0
_LAST_LINES_S = 30.0
_ADDRESS_S = 600.0
_POLL_S = 0.5
_ENDED_MARKS = "started"

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How the node's work ended: the fields of Result that are not figures."""

    outcome: Outcome
    exit_code: int | None
    reason: str


class _ErrorEnd(Exception):  # noqa: N818 - it is an end, carried up
    """cloudgpu itself cannot go on; the message is the reason."""


class _Interrupted(Exception):  # noqa: N818
    """An order's deadline or its arrival ended the work before or between programs."""


class _Vanished(Exception):  # noqa: N818
    """The machine is gone: nothing more may be written."""


class Agent:
    """One node's run, from claim to result."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._attempt: int = options.attempt
        self._node: str = options.node
        self._sha256: str = options.job_sha256
        self._home = Path(options.home).absolute()
        self._host: str | None = options.host
        self._patience_s: float = options.patience_s
        self._job_dir = JobDir(options.job_dir)
        self._started = time.time()
        self._marker = os.environ.get(MARKER) or uuid.uuid4().hex
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._orders = Orders(self._wake)
        self._signals = 0
        self._lost = False
        self._state = self._home / "state"
        if options.lifetime_s is not None:
            self._end_of_life = time.monotonic() + options.lifetime_s
            self._lifetime_margin = min(_LIFETIME_MARGIN_S, options.lifetime_s / 10)
        else:
            self._end_of_life, self._lifetime_margin = float("inf"), 0.0

    def run(self) -> int:
        """The whole life of the node; returns the agent's exit code."""
        self._listen_to_signals()
        self._state.mkdir(parents=True, exist_ok=True)
        job_data = self._insist(lambda: self._job_dir.get(JOB_KEY))
        claim = Claim(self._marker, uuid.uuid4().hex, time.time())
        if not self._insist(lambda: self._job_dir.create(self._key("claim"), claim.to_bytes())):
            note(f"{self._node} of attempt {self._attempt} is run by another agent")
            return CLAIMED
        self._log = LogWriter(self._job_dir, self._attempt, self._node)
        self._watcher = Watcher(self._job_dir, self._attempt, self._node, self._orders, self._log.say)
        self._heart = Heart(
            self._job_dir,
            self._key("heartbeat.json"),
            self._state / "progress.json",
            on_lost=self._on_lost,
            patience_s=self._patience_s,
        )
        try:
            ending = self._work(job_data)
        except _ErrorEnd as error:
            ending = Ending("error", None, str(error))
        except _Interrupted:
            ending = judge([], self._orders.deciding, asked=True, listening=False)
        except _Vanished:
            note("the machine is taken away, as the notice said")
            return VANISHED
        return self._finish(ending)

    # --- the steps -----------------------------------------------------------------------------------------------

    def _work(self, job_data: bytes) -> Ending:
        if hashlib.sha256(job_data).hexdigest() != self._sha256:
            raise _ErrorEnd(f"{JOB_KEY} is not the one this machine was started for: its sha256 differs")
        place = self._place(job_data)
        try:
            launcher = launcher_name(place.job, place.nodes)
            address = Address(self._host or own_host(), free_port())
        except LauncherError as error:
            raise _ErrorEnd(str(error)) from error
        if needs_address(launcher, place.nodes):
            self._insist(lambda: self._job_dir.put(self._key("address.json"), address.to_bytes()))
        self._fetch_code(place.job)
        environment = machine_environment(os.environ, self._marker)
        failure = self._run_setup(setup_process(place, environment))
        if failure is not None:
            return failure
        master = self._master(place) if needs_address(launcher, place.nodes) else Address("127.0.0.1", address.port)
        self._heart.set_phase("running")
        return self._run_program(processes(launcher, place, environment, master), place)

    def _place(self, job_data: bytes) -> Place:
        attempt_data = self._insist(lambda: self._job_dir.find(attempt_key(self._attempt)))
        try:
            job = JobRecord.from_bytes(job_data)
            attempt = AttemptRecord.from_bytes(attempt_data or b"")
            nodes = sorted((NodeRecord(**node) for node in attempt.nodes), key=lambda node: node.rank)
            own = next(node for node in nodes if node.node == self._node)
        except (JobDirError, TypeError) as error:
            raise _ErrorEnd(f"the job dir holds no usable description of attempt {self._attempt}: {error}") from error
        except StopIteration:
            raise _ErrorEnd(f"{self._node} is no node of attempt {self._attempt}") from None
        return Place(job, self._job_dir.url, self._attempt, own, nodes, self._state)

    @property
    def _code(self) -> Path:
        return self._home / "code"

    def _fetch_code(self, job: JobRecord) -> None:
        self._check_orders()
        if self._code.is_dir():  # this machine has run an earlier incarnation
            return
        try:
            if job.code is None:
                self._code.mkdir(parents=True)
                return
            packed, sha256 = self._home / "code.tar.gz", job.code
            self._insist(lambda: self._job_dir.download(code_key(sha256), packed))
            unpack(packed, self._code, sha256)
            packed.unlink()
        except MissingError as error:
            raise _ErrorEnd(f"the code archive is missing: {error}") from error
        except (ArchiveError, OSError) as error:
            raise _ErrorEnd(f"the code cannot be unpacked: {error}") from error

    def _run_setup(self, process: Process | None) -> Ending | None:
        done = self._home / "setup.done"
        if process is None or done.exists():
            return None
        self._log.say("setup begins")
        begun = time.monotonic()
        exits, _ = self._supervise([process], None)
        (end,) = exits
        if self._orders.deciding is not None:
            raise _Interrupted
        if end.code != 0:
            return Ending("failed", None, f"setup failed: {end.describe()}")
        self._log.say(f"setup done in {time.monotonic() - begun:.1f} s")
        done.touch()
        return None

    def _master(self, place: Place) -> Address:
        """Rank 0's address, once it is there."""
        key = node_key(self._attempt, place.nodes[0].node, "address.json")
        until = time.monotonic() + _ADDRESS_S
        while time.monotonic() < until:
            self._check_orders()
            data = self._insist(lambda: self._job_dir.find(key))
            if data is not None:
                return Address.from_bytes(data)
            self._wait(0.2)
        raise _ErrorEnd(f"{place.nodes[0].node} has not told its address in {_ADDRESS_S:.0f} s")

    def _run_program(self, started: Sequence[Process], place: Place) -> Ending:
        for path in (place.notice, place.listening, place.progress):
            path.unlink(missing_ok=True)
        exits, asked = self._supervise(started, place.listening)
        return judge(exits, self._orders.deciding, asked, listening=place.listening.exists())

    # --- starting, waiting, ending ---------------------------------------------------------------------------------

    def _supervise(self, wanted: Sequence[Process], listening: Path | None) -> tuple[list[Exit], bool]:
        """Run processes until all have ended; returns how, in the order of time, and whether they were asked to."""
        self._check_orders()
        program = Program(self._code, self._log.add)
        exits: list[Exit] = []
        try:
            for process in wanted:
                program.start(process)
            asked = self._wait_for(program, exits, listening)
        except OSError as error:
            raise _ErrorEnd(f"the program cannot be started: {error}") from error
        finally:
            exits += program.kill(self._marker)
        program.finish_output(_LAST_LINES_S)
        return exits, asked

    def _wait_for(self, program: Program, exits: list[Exit], listening: Path | None) -> bool:
        """Returns when all have ended or a deadline is reached; True if a signal was sent, see judge()."""
        signalled, told = False, None
        peer: Order | None = None
        while program.running:
            now = time.monotonic()
            order = self._current_order(now)
            due = min((o for o in (order, peer) if o), key=lambda o: o.deadline, default=None)
            if due is not None and now >= due.deadline:
                if due.vanishes:
                    raise _Vanished
                break
            if due is not None and due is not told:
                told = due
                self._heart.set_phase("stopping")
                if not self._tell(due, listening) and not signalled:
                    signalled = True
                    program.signal(signal.SIGTERM)
            self._wait(_POLL_S if due is None else min(due.deadline - now, _POLL_S))
            exits += (ended := program.reap())
            if peer is None and program.running and any(end.code for end in ended):
                peer = self._peer_order(ended)
        return signalled

    def _tell(self, order: Order, listening: Path | None) -> bool:
        """Write the notice; True if the program has said that it looks for one."""
        try:
            write_notice(self._state / "notice.json", order)
            return listening is not None and listening.exists()
        except OSError as error:  # the disk is full
            note(f"notice.json: {error}")
            return False

    def _peer_order(self, ended: Sequence[Exit]) -> Order:
        first = next(end for end in ended if end.code != 0)
        self._log.say(f"{first.describe()}; the other processes of this node have {_PEER_S:.0f} s to end")
        return Order("failed", "peer", first.describe(), time.monotonic() + _PEER_S)

    def _current_order(self, now: float) -> Order | None:
        """The order with the earliest deadline, those of signals and of the machine's lifetime included."""
        if now >= self._end_of_life - self._lifetime_margin:
            self._orders.add(Order("stopped", "duration", "the machine's lifetime ends", self._end_of_life))
            self._end_of_life = float("inf")
        if self._signals:
            grace = _SHUTDOWN_S if self._signals == 1 else 0.0
            self._signals = 0
            self._orders.add(Order("preempted", "terminate", "the machine is shut down", now + grace))
        return self._orders.next_to_expire

    def _check_orders(self) -> None:
        """Between two steps: an order ends the work at once."""
        if self._current_order(time.monotonic()) is not None:
            raise _Interrupted

    def _wait(self, seconds: float) -> None:
        """Until something may have happened: a child has ended, an order or a signal has come."""
        ready, _, _ = select.select([self._wake_read], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _listen_to_signals(self) -> None:
        """Handlers set a flag and nothing else; the byte in the pipe wakes the main thread."""

        def count(_number: int, _frame: object) -> None:
            self._signals += 1

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, count)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    # --- the job dir -----------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return node_key(self._attempt, self._node, name)

    def _on_lost(self, why: str) -> None:
        """Called by the heartbeat's thread."""
        note(why)
        self._lost = True
        self._orders.add(Order("error", "error", f"the job dir is lost: {why}", time.monotonic() + _PEER_S))

    def _insist(self, call: Callable[[], _T]) -> _T:
        """Call again while the job dir fails, as long as patience lasts. MissingError is an answer, no failure."""
        until, pause = time.monotonic() + self._patience_s, 0.2
        while True:
            try:
                return call()
            except MissingError:
                raise
            except JobDirError:
                if time.monotonic() + pause > until or self._lost:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, 5.0)

    def _finish(self, ending: Ending) -> int:
        """The last lines first, the result last: whoever sees the result sees all."""
        self._heart.stop()
        self._watcher.stop()
        if ending.outcome != "succeeded":
            self._log.say(f"{ending.outcome}: {ending.reason}")
        progress = read_progress(self._state / "progress.json")
        if not self._log.close(0.0 if self._lost else _LAST_LINES_S):
            note("the last lines of the log could not be written")
        note(f"{ending.outcome}: {ending.reason}")
        result = Result(ending.outcome, ending.exit_code, ending.reason, self._started, time.time(), progress)
        if self._lost:
            return JOB_DIR_LOST
        self._insist(lambda: self._job_dir.create(self._key("result.json"), result.to_bytes()))
        return DONE


def judge(exits: Sequence[Exit], order: Order | None, asked: bool, listening: bool) -> Ending:
    """How the node ended, from how its processes ended and what they had been asked.

    A program that was asked by a signal alone may end with 0 though it has not done its work; one that listens to
    notices says so with 75.
    """
    failed = next((end for end in exits if end.code != 0), None)
    if exits and failed is None and (listening or not asked):
        return Ending("succeeded", 0, "")
    if order is not None:
        return Ending(order.outcome, failed.code if failed else 0 if exits else None, order.reason)
    if failed is None:
        return Ending("failed", 0, "ended without its work done")
    return Ending("failed", failed.code, failed.describe())


def note(text: str) -> None:
    """A line in agent.log, on the machine; a full disk must not end the agent."""
    with contextlib.suppress(OSError):
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cloudgpu.runtime.agent", description="Runs one node of a job.")
    parser.add_argument("--job-dir", required=True, metavar="URL", help="of this job's own folder")
    parser.add_argument("--attempt", required=True, type=int, metavar="N")
    parser.add_argument("--node", required=True, metavar="NAME", help="e.g. worker-0.1")
    parser.add_argument("--job-sha256", required=True, metavar="HEX", help="of job.json")
    parser.add_argument("--home", required=True, metavar="DIR", help="this machine's own folder")
    parser.add_argument("--host", metavar="NAME", help="by which the other nodes reach this one")
    parser.add_argument("--lifetime-s", type=float, metavar="S", help="the machine ends itself after so long")
    parser.add_argument(
        "--patience-s", type=float, default=PATIENCE_S, metavar="S", help="how long a failing job dir is tried again"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; returns its exit code."""
    options = parse(argv)
    home = Path(options.home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / _ENDED_MARKS).touch()  # first of all: a machine is started once only
        adopt_orphans()
        return Agent(options).run()
    except JobDirError as error:
        note(str(error))
        return JOB_DIR_LOST
    except OSError as error:
        note(f"{error.filename or home}: {error.strerror or error}")
        return BUG


def _exit(code: int) -> NoReturn:
    """At once: threads that hang in a dead job dir must not keep the machine alive."""
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
