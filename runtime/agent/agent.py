"""The agent, the process on each machine that runs the user's program there. See docs/explanation/runtime.md.

    python -m cloudgpu.runtime.agent --job-dir URL --attempt N --node worker-0.1 --job-sha256 HEX --home DIR

It imports only the standard library and obstore. The main thread starts, waits for and kills processes. Other threads
read output, write the log, send heartbeats and watch for orders, so a job dir that hangs never delays a deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ...protocol.jobdir import (
    JOB_KEY,
    AttemptRecord,
    JobDir,
    JobDirError,
    JobRecord,
    MissingError,
    NodeRecord,
    Result,
    attempt_key,
    code_key,
    node_key,
    read_job,
)
from ...protocol.logs.writer import LogWriter
from ...protocol.pace import Pace
from ...protocol.sealed_secrets import PASS_VARIABLE
from ..archive import ArchiveError, unpack
from ..launchers import LauncherError, ProgramContext, choose_launcher, environment, machine_environment, setup_process
from ..notices import CloudNotices, NodeDir, Order, Orders, Watcher
from ..processes.exit_verdict import Ending, failed_setup, judge
from ..processes.program import MARKER, Process
from ..retry import retry
from ..secrets.masking import LineMasker
from .generations import Ledger
from .heartbeat import HeartbeatThread, read_progress
from .membership import LeftOutError
from .node.errors import NodeError, SecretsTimeoutError
from .node.outputs import NodeOutputs
from .node.program import Node, NodeProgram
from .node.secrets import NodeSecrets
from .restart import Budget, scope
from .resume import EarlierRun, OwnClaim, read_earlier_run
from .runner import PEER_S, POLL_S, Interrupted, Runner, StopHooks, Vanished, Wakeup
from .timeline import History

DONE, BUG, CLAIMED, JOB_DIR_LOST, VANISHED, SUPERSEDED, STAYED = 0, 1, 3, 4, 5, 6, 7
"""Exit codes of the agent: result written; unexpected error; another agent has claimed this node; job dir lost, no
result written; machine gone or rebooting; superseded by a newer attempt; the announced restart of the machine did not
happen, so the agent must be started again to resume the node."""

REBOOTING = "rebooting"
"""Name of a file in the machine's folder that marks the machine as rebooting: its node will resume there after the
reboot. Created by provisioners/boot/shipped/bootstrap.py."""
RETRY_TIMEOUT_S = 300.0
"""Retry timeout for job dir requests before the program has started, in seconds."""
TRAINING_RETRY_TIMEOUT_S = 3_600.0
"""Retry timeout once the program has started, in seconds. Training continues without the job dir, and the supervisor
accepts missing heartbeats for the same time."""
FENCED_RETRY_TIMEOUT_S = 60.0
"""Retry timeout, in seconds, for a job dir in a local folder and for a node of a cluster, which another machine may
replace without knowing whether it has ended."""
_LAST_LINES_S = 30.0
_BUILD_POLL_S = 0.2  # poll interval while another job builds the environment
_SUPERSEDED = "superseded"
_ACKNOWLEDGE_S = (
    30.0  # how long an attempt's first node waits for the others to save before it acknowledges to the provider
)

_T = TypeVar("_T")


class Agent:
    """Execution of one node, from the claim of its node folder to its result."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._attempt: int = options.attempt
        self._node: str = options.node
        self._sha256: str = options.job_sha256
        self._home = Path(options.home).absolute()
        self._host: str | None = options.host
        self._given_retry_timeout_s: float | None = options.patience_s
        self._restart_late_s: float = options.restart_late_s
        self._notices_of: str = options.notices
        self._of_fleet: bool = options.of_fleet
        self._capacity_block_end: float | None = options.capacity_block_end
        self._job_dir = JobDir(options.job_dir, make=False)
        self._started = time.time()
        self._pace = Pace(free=self._job_dir.folder is not None)
        self._has_begun = False
        """True if the program has been started, by this run of the agent or an earlier one."""
        self._marker = os.environ.get(MARKER) or uuid.uuid4().hex
        self._masker = LineMasker()
        self._secrets_pass = os.environ.get(PASS_VARIABLE, "")
        self._lost = ""
        """Reason why the job dir cannot be used any more; "" while it can."""
        self._missing: list[str] = []
        """Outputs that are missing, see NodeOutputs.missing."""
        self._state = self._home / "state"
        self._wakeup = Wakeup()
        self._orders = Orders(self._wakeup.wake)
        self._runner = Runner(self._wakeup, self._orders, self._state, self._marker, options.lifetime_s)

    def run(self) -> int:
        """Run the node from claim to result; return the agent's exit code."""
        self._wakeup.listen_to_signals()
        self._state.mkdir(parents=True, exist_ok=True)
        job_data = self._retry(self._read_job)
        claim = OwnClaim(self._home, self._marker)
        if not claim.is_held or not self._retry(lambda: self._job_dir.create(self._key("claim"), claim.content)):
            note(f"{self._node} of attempt {self._attempt} is run by another agent")
            return CLAIMED
        before = (
            self._retry(lambda: read_earlier_run(self._job_dir, self._attempt, self._node))
            if claim.is_old
            else EarlierRun()
        )
        if before.has_ended:
            return DONE
        self._start_services(before)
        try:
            ending = self._work(job_data)
        except NodeError as error:
            ending = Ending("error", None, str(error))
        except SecretsTimeoutError as error:
            ending = Ending("again", None, str(error))
        except Interrupted:
            ending = judge([], self._orders.deciding, asked=False, listening=False)
        except Vanished as gone:
            note(gone.order.reason)
            return SUPERSEDED if gone.order.word == _SUPERSEDED else VANISHED
        return self._end(ending)

    def _read_job(self) -> bytes:
        """Return the record of the job's run. Raises MissingError."""
        found = read_job(self._job_dir, self._sha256)
        if found is None:
            raise MissingError(f"{self._job_dir.url}: reading {JOB_KEY}: there is no such object")
        return found

    def _start_services(self, before: EarlierRun) -> None:
        """Start the heartbeat, the log, and the watchers for orders and the provider's notices."""
        self._history = History(before.heartbeat)
        self._log = LogWriter(self._job_dir, self._attempt, self._node, before.chunk, self._pace, self._masker)
        self._watcher = Watcher(
            self._job_dir, self._attempt, self._node, self._orders, self._log.add_agent_line, pace=self._pace
        )
        self._cloud = CloudNotices(
            self._notices_of,
            NodeDir(self._job_dir, self._attempt, self._node),
            self._orders,
            self._log_everywhere,
            environ=os.environ,
            capacity_block_end=self._capacity_block_end,
            of_fleet=self._of_fleet,
        )
        self._heart = HeartbeatThread(
            self._job_dir,
            self._key("heartbeat.json"),
            self._state / "progress.json",
            self._history,
            attempt=self._attempt,
            on_lost=self._on_lost,
            on_superseded=self._on_superseded,
            retry_timeout_s=lambda: self._retry_timeout_s,
            pace=self._pace,
            sequence=before.sequence,
        )

    def _end(self, ending: Ending) -> int:
        """Write the node's result, or pause the node if its machine is restarting; return the exit code."""
        order = self._orders.deciding
        if ending.outcome == "preempted" and order is not None and order.returns:
            order = self._await_restart(order)
            if order is None:
                return self._pause("the machine was not restarted; the program goes on here", STAYED)
            ending = dataclasses.replace(ending, outcome=order.outcome, reason=order.reason)
        if ending.outcome == "preempted" and self._is_rebooting():
            return self._pause("the machine reboots", VANISHED)
        return self._finish(ending)

    # --- the steps -----------------------------------------------------------------------------------------------

    def _work(self, job_data: bytes) -> Ending:
        if hashlib.sha256(job_data).hexdigest() != self._sha256:
            raise NodeError(f"{JOB_KEY} differs from the job that this machine was launched for: its sha256 differs")
        place, budget, heals = self._place(job_data)
        node = self._parts()
        secrets, outputs = NodeSecrets(node, place.job, self._secrets_pass, self._masker), NodeOutputs(node)
        self._fetch_code(place.job)
        try:
            choice = choose_launcher(place.job, place.nodes, self._code)
        except LauncherError as error:
            raise NodeError(str(error)) from error
        if place.job.launcher == "auto" and choice.launcher != "none":
            self._log.add_agent_line(f"launcher: {choice.launcher}; {choice.reason}")
        launcher = choice.launcher
        self._history.setup_begins()
        self._fetch_inputs(place.job.inputs_on(str(place.offer.get("cloud", "local"))))
        outputs.record_existing(place.job.outputs)
        place = dataclasses.replace(place, secrets=secrets.read())
        place, failure = self._set_up(place)
        if failure is not None:
            return failure
        self._history.is_ready()
        reach = scope(launcher, place.nodes, place.node)
        ledger = Ledger(
            self._job_dir, self._attempt, self._node, budget, reach, heals=heals, comes_back=self._is_rebooting
        )
        program = NodeProgram(node, place, launcher, ledger)
        self._has_begun = True
        try:
            ending = program.run()
            outputs.upload(program.place)
            self._missing = outputs.missing
            ending = outputs.judge(ending, program.place.job.required_outputs)
        except Interrupted:
            outputs.upload(program.place)
            raise
        except LeftOutError as error:
            return Ending("again", None, str(error))
        except (OSError, ValueError, LauncherError) as error:  # ValueError: a NUL in an argument or a variable
            raise NodeError(f"the program cannot be started: {error}") from error
        return ending

    def _parts(self) -> Node:
        return Node(
            job_dir=self._job_dir,
            attempt=self._attempt,
            name=self._node,
            home=self._home,
            marker=self._marker,
            host=self._host,
            wakeup=self._wakeup,
            orders=self._orders,
            runner=self._runner,
            log=self._log,
            heart=self._heart,
            history=self._history,
            retry=self._retry,
            of_fleet=self._of_fleet,
        )

    def _place(self, job_data: bytes) -> tuple[ProgramContext, Budget, bool]:
        attempt_data = self._retry(lambda: self._job_dir.find(attempt_key(self._attempt), AttemptRecord.MOST_BYTES))
        try:
            job = JobRecord.from_bytes(job_data)
            attempt = AttemptRecord.from_bytes(attempt_data or b"")
            if attempt.offer.get("cloud", "local") != "local":  # the submitter's PATH does not apply to a cloud machine
                job = dataclasses.replace(job, search_path=None, submitter_env=None)
            nodes = sorted((NodeRecord.from_value(node) for node in attempt.nodes), key=lambda node: node.rank)
            own = next(node for node in nodes if _place_of(node.node) == _place_of(self._node))
        except JobDirError as error:
            raise NodeError(f"the job dir holds no usable description of attempt {self._attempt}: {error}") from error
        except StopIteration:
            raise NodeError(f"{self._node} is no node of attempt {self._attempt}") from None
        place = ProgramContext(
            job,
            self._job_dir.url,
            self._attempt,
            dataclasses.replace(own, node=self._node),
            nodes,
            self._state,
            market=str(attempt.offer.get("market") or ""),
            offer=attempt.offer,
            max_failures=attempt.failures_left,
            earlier=attempt.earlier,
            progress_since=attempt.progress_since,
        )
        return place, Budget(attempt.failures_left, attempt.interruptions_left), attempt.heals

    @property
    def _code(self) -> Path:
        return self._home / "code"

    def _fetch_code(self, job: JobRecord) -> None:
        self._runner.check()
        if self._code.is_dir():  # an earlier run on this machine has unpacked it
            return
        try:
            if job.code is None:
                self._code.mkdir(parents=True)
                return
            packed, sha256 = self._home / "code.tar.gz", job.code
            self._retry(lambda: self._job_dir.download(code_key(sha256), packed))
            unpack(packed, self._code, sha256)
            packed.unlink()
            if self._notices_of != "none":  # a cloud machine may be reset; the folder's content is not checked then
                os.sync()
        except MissingError as error:
            raise NodeError(f"the code archive is missing: {error}") from error
        except (ArchiveError, OSError) as error:
            raise NodeError(f"the code cannot be unpacked: {error}") from error

    def _fetch_inputs(self, inputs: Mapping[str, str]) -> None:
        if not inputs:
            return
        from .inputs import InputsError, fetch_inputs

        try:
            fetch_inputs(inputs, self._code, self._home / "inputs.done", self._runner.check, self._log.add_agent_line)
        except (InputsError, JobDirError) as error:
            raise NodeError(str(error)) from error
        except OSError as error:
            raise NodeError(f"the inputs cannot be written: {error}") from error

    def _set_up(self, place: ProgramContext) -> tuple[ProgramContext, Ending | None]:
        """Run the job's setup command, unless it has run; return the program's context, and the ending if it failed.

        On the submitter's machine, setup and program run in a Python environment made for the job, which the returned
        context contains.
        """
        machine_env = machine_environment(os.environ, self._marker)
        if place.job.setup is None or place.job.submitter_env is None:
            return place, self._run_setup(setup_process(place, machine_env))
        from .job_environment import JobEnvironmentError, inside, prepare

        try:
            prepared = prepare(
                place.job.setup,
                self._code,
                self._home,
                environment(place, machine_env),
                wait=lambda: self._runner.pause(_BUILD_POLL_S),
            )
        except (JobEnvironmentError, OSError) as error:
            raise NodeError(f"the environment for `setup` cannot be created: {error}") from error
        place = inside(place, prepared.folder)
        if prepared.is_complete:
            self._log.add_agent_line("setup: its packages are in the cache")
            return place, None
        failure = self._run_setup(setup_process(place, machine_env))
        if failure is None:
            prepared.finish()
        return place, failure

    def _run_setup(self, process: Process | None) -> Ending | None:
        done = self._home / "setup.done"
        if process is None or done.exists():
            return None
        self._log.add_agent_line("setup begins")
        begun = time.monotonic()
        try:
            exits, _ = self._runner.run([process], self._code, StopHooks(), self._log, self._heart)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a variable
            raise NodeError(f"the setup cannot be started: {error}") from error
        if self._orders.deciding is not None:
            raise Interrupted
        if [end.code for end in exits] != [0]:
            return failed_setup(exits)
        self._log.add_agent_line(f"setup done in {time.monotonic() - begun:.1f} s")
        with contextlib.suppress(OSError):  # a full disk: the program will fail with a clearer error
            done.touch()
        return None

    # --- the job dir -----------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return node_key(self._attempt, self._node, name)

    def _on_lost(self, why: str) -> None:
        """Order the node's end because the job dir is lost. Called by the heartbeat's thread."""
        note(why)
        self._lost = why
        self._orders.add(Order("error", "error", f"the job dir is lost: {why}", time.monotonic() + PEER_S))

    def _on_superseded(self) -> None:
        """Order the node's end because a newer attempt has begun. Called by the heartbeat's thread."""
        reason = f"attempt {self._attempt + 1} has begun: this machine has been replaced"
        self._orders.add(Order("error", _SUPERSEDED, reason, time.monotonic(), vanishes=True))

    @property
    def _retry_timeout_s(self) -> float:
        """Retry timeout for job dir requests, in seconds."""
        if self._given_retry_timeout_s is not None:
            return self._given_retry_timeout_s
        is_fenced = self._of_fleet or self._job_dir.folder is not None
        return retry_timeout_s(is_fenced=is_fenced, has_begun=self._has_begun)

    def _retry(self, call: Callable[[], _T]) -> _T:
        """Call a job dir function with retries for `_retry_timeout_s`, and return its result.

        Raises JobDirError at the timeout or when the job dir is lost; MissingError is raised without a retry.
        """
        begun = time.monotonic()

        def is_last(error: JobDirError, pause: float) -> bool:
            is_over = time.monotonic() + pause > begun + self._retry_timeout_s
            return isinstance(error, MissingError) or bool(self._lost) or is_over

        return retry(call, JobDirError, is_last, longest_s=5.0)

    @property
    def _last_lines_s(self) -> float:
        """Timeout for writing the last lines of the log, in seconds; shorter if an order ends the node."""
        return self._retry_timeout_s if self._orders.deciding is None else min(_LAST_LINES_S, self._retry_timeout_s)

    def _is_rebooting(self) -> bool:
        return (self._home / REBOOTING).exists()

    def _await_restart(self, announced: Order) -> Order | None:
        """Wait for the announced restart of the machine, after the program has saved and ended.

        Return an order that ends the machine or the job instead; None if the machine was not restarted within
        `restart_late_s` of the announced time.
        """
        self._log_everywhere("waiting for the machine's restart")
        self._cloud.saved()
        until = announced.deadline + self._restart_late_s
        while time.monotonic() < until:
            self._wakeup.wait(POLL_S)
            self._runner.seconds_left(0.0)  # turns pending signals into orders
            order = self._orders.deciding
            if order is not None and not order.returns:
                return order
        return None

    def _pause(self, why: str, code: int) -> int:
        """Stop this agent without a result, because the node will resume on this machine; return `code`."""
        self._heart.stop()
        self._watcher.stop()
        self._cloud.stop()
        self._log_everywhere(why)
        self._log.close(self._last_lines_s)
        return code

    def _finish(self, ending: Ending) -> int:
        """Write the last lines of the log, then the result; return the exit code.

        In this order, the log is complete when the result becomes visible.
        """
        self._heart.stop()
        self._watcher.stop()
        self._cloud.stop()
        if ending.outcome != "succeeded":
            self._log.add_agent_line(f"{ending.outcome}: {ending.reason}")
        progress = read_progress(self._state / "progress.json")
        if not self._log.close(0.0 if self._lost else self._last_lines_s):
            note("the last lines of the log could not be written")
        note(self._masker.mask(f"{ending.outcome}: {ending.reason}"))
        self._history.finish()
        result = Result(
            ending.outcome,
            ending.exit_code,
            self._masker.mask(ending.reason),
            self._started,
            time.time(),
            progress,
            ending.final,
            self._history.to_json(),
            self._missing,
        )
        if self._lost:
            note(f"the job dir is lost: {self._lost}")  # the last line is shown as the cause
            return JOB_DIR_LOST
        self._retry(lambda: self._job_dir.create(self._key("result.json"), result.to_bytes()))
        self._cloud.finish(_ACKNOWLEDGE_S)
        return DONE

    def _log_everywhere(self, text: str) -> None:
        """Write a line to the job's log and to agent.log."""
        note(text)
        self._log.add_agent_line(text)


def retry_timeout_s(*, is_fenced: bool, has_begun: bool) -> float:
    """Return the retry timeout for job dir requests, in seconds.

    is_fenced  True if the node may be replaced although its machine still runs: on a cluster, another machine takes
               over a node without heartbeats, so the node must end itself first
    has_begun  True if the program has started; if the node is not fenced, it may then train without the job dir
    """
    if is_fenced:
        return FENCED_RETRY_TIMEOUT_S
    return TRAINING_RETRY_TIMEOUT_S if has_begun else RETRY_TIMEOUT_S


def _place_of(node: str) -> str:
    """Return a node's name without its incarnation: `worker-0` for `worker-0.2`, which replaced `worker-0.1`."""
    return node.rpartition(".")[0]


def note(text: str) -> None:
    """Write a line to agent.log, on the machine; errors such as a full disk are ignored."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace"))  # bypasses Python's buffer, which is flushed again at exit
