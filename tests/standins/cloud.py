"""In-process fake cloud with a simulated clock, for supervisor tests: machines follow a script.

It implements the Provisioner protocol and writes the agents' records to the job dir. `violations` lists every time that
two machines held the same rank of a job at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import (
    AttemptRecord,
    Generation,
    GenerationKind,
    Heartbeat,
    JobDir,
    JobDirError,
    Notice,
    Progress,
    Result,
    Span,
    Stop,
    Timeline,
    attempt_key,
    generation_key,
    node_key,
    read_generation,
)
from cloudgpu.provisioners.base import Allocation, LaunchRequest, NodeState, Owner, ProvisionError, TerminateResult
from cloudgpu.provisioners.shared.accounts import Accounts
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest
from cloudgpu.runtime.checkpoint.store import CheckpointStore

ACCOUNTS = Accounts("account", "log in there")


BEAT_S = 3.0
"""Seconds between two heartbeats of an undisturbed machine: an agent's initial interval in an object store."""


class FakeClock:
    """Clock that only sleep() and advance() move."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.time = start
        self.steady = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.steady

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self.steady += seconds


@dataclass(frozen=True)
class Life:
    """Behaviour of a node. Seconds count from its launch."""

    boot_s: float = 1.0
    run_s: float = 10.0
    end: str = "succeeded"
    """A Result's outcome; or "vanish": disappears without a record; "taken": disappears after a notice; "hang": runs
    without heartbeats; "freeze": the same, from run_s on; "serve": runs until it is stopped."""
    exit_code: int | None = 0
    reason: str = ""
    obeys: bool = True
    """True if the node ends by itself at a stop request."""
    steps_per_s: float = 10.0
    saves: bool = True
    idle_from_s: float | None = None
    """Seconds after which its GPUs are idle, as its heartbeats report; None: idleness is not measured."""
    final: bool = False
    """True if the result says that a retry would fail again."""
    restarts: int = 0
    """Number of program failures, each restarted in place, at intervals of one second from boot_s on."""
    answer: GenerationKind | None = None
    """Kind of in-place restart that it begins when another node is lost; None: it waits for the supervisor."""
    queued_s: float = 0.0
    """Seconds in the queue before the cloud has a machine for it; boot_s and run_s count from then on."""
    refused: ProvisionError | None = None
    """Error with which it leaves the queue without ever running; None: it runs."""


SUCCEED = Life()
FAIL = Life(end="failed", exit_code=3, reason="exit code 3")
VANISH = Life(end="vanish")
TAKEN = Life(end="taken")


@dataclass
class Machine:
    request: LaunchRequest
    node: str
    life: Life
    launched: float
    restored: int
    job_dir: JobDir
    gone: bool = False
    done: bool = False
    sequence: int = 0
    beat_due: float = 0.0
    """Epoch seconds at which its next heartbeat is due; 0: at once, because of an event."""
    generation: int = 1
    newest: Generation | None = None
    """The newest generation record; None: still in generation 1."""
    members: list[str] | None = None
    """Nodes of the newest generation that named its members; None: no generation has."""
    spans: list[Span] = field(default_factory=list)
    halted: float | None = None
    """Epoch seconds at which the loss of another node was noticed, which halts the program; None: not halted."""
    account: str = ""

    @property
    def rank(self) -> tuple[str, str]:
        """Job and node without incarnation: no two machines may have the same at once."""
        return (self.request.job_id, self.node.rpartition(".")[0])

    @property
    def is_member(self) -> bool:
        return self.node.endswith(".1") if self.members is None else self.node in self.members

    @property
    def is_lost(self) -> bool:
        return (self.gone and not self.done) or (self.done and self.life.end == "preempted")


@dataclass
class FakeCloud:
    """Provisioner double. `script(attempt, node)` returns a node's behaviour; `faults`: method name -> errors
    that its next calls raise."""

    clock: FakeClock
    script: Callable[[int, str], Life] = lambda _attempt, _node: SUCCEED
    faults: dict[str, list[ProvisionError]] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    """Zones without capacity."""
    partial_launch: bool = False
    """True if a refused launch leaves its first machine running."""
    machines: list[Machine] = field(default_factory=list)
    launches: list[LaunchRequest] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    saved_step: int = 0
    prices: dict[str, Decimal] = field(default_factory=dict)
    """Zone -> current price of the whole offer in US dollars per hour."""
    credentials_of: str = ""
    """Account of the current credentials, which see only its machines; "": there is only one account."""

    # -- provisioner methods

    def launch(self, request: LaunchRequest) -> Allocation:
        self.check_account(request.account)
        existing = {machine.node for machine in self._under(request.token)}
        fault = self._fault("launch")
        wanted = [node.node for node in request.nodes if node.node not in existing]
        if wanted and request.zone in self.full:
            fault = ProvisionError("capacity", f"{request.zone} is full")
        for node in wanted[: 1 if self.partial_launch else 0] if fault else wanted:
            self._start(request, node)
        if fault:
            raise fault
        if wanted:
            self.launches.append(request)
        made = self._allocation(request)
        return dataclasses.replace(made, is_fresh=len(wanted) == len(request.nodes))

    def observe(self, allocation: Allocation) -> list[NodeState]:
        self._raise("observe")
        self.check_account(allocation.account)
        ours = {machine.node: machine for machine in self._under(allocation.token)}
        return [self._state(node, ours.get(node)) for node in allocation.machines]

    def _state(self, node: str, machine: Machine | None) -> NodeState:
        if machine is None or machine.gone:
            return NodeState(node, "gone", refused=None if machine is None else machine.life.refused)
        if self.clock.now() < machine.launched:
            return NodeState(node, "pending", "in the queue", queued=True)
        return NodeState(node, "running")

    def terminate(self, allocation: Allocation) -> TerminateResult:
        self._raise("terminate")
        self.check_account(allocation.account)
        ours = list(self._under(allocation.token))
        for machine in ours:
            machine.gone = True
        return TerminateResult(has_started=bool(ours))

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        self._raise("remove")
        for machine in self.machines:
            if machine.request.token == allocation.token and machine.node in nodes:
                machine.gone = True

    def find(self, owner: Owner) -> list[Allocation]:
        self._raise("find")
        requests = {machine.request.token: machine.request for machine in self._alive()}
        return [self._allocation(request) for request in requests.values() if request.owner == owner]

    def account(self) -> str:
        self._raise("account")
        return self.credentials_of

    def check_account(self, account: str) -> None:
        ACCOUNTS.check(account, self.account)

    def price(self, offer: Offer) -> Decimal | None:
        """Return the price that was set for the zone; None: the planned price."""
        return self.prices.get(offer.zone or "")

    # -- the machines

    def live(self) -> None:
        """Let every machine do the actions that are due."""
        for machine in self._alive():
            self._live(machine)

    def running(self) -> list[Machine]:
        return self._alive()

    def _start(self, request: LaunchRequest, node: str) -> None:
        life = self.script(request.attempt, node)
        launched = self.clock.now() + life.queued_s
        machine = Machine(request, node, life, launched, self.saved_step, JobDir(request.job_dir))
        if any(other.rank == machine.rank and not other.done for other in self._alive()):
            self.violations.append(f"{machine.rank} of attempt {request.attempt} runs twice")
        machine.account = self.credentials_of
        self.machines.append(machine)

    def _live(self, machine: Machine) -> None:
        age, life = self.clock.now() - machine.launched, machine.life
        machine.gone |= life.refused is not None and age >= 0
        if machine.gone or machine.done or age < life.boot_s or life.end == "hang":
            return
        job_dir = machine.job_dir
        try:
            stop = Stop.read(job_dir, attempt_key(machine.request.attempt, "stop.json"))
            if stop is not None and life.obeys:
                self._end(machine, job_dir, "stopped", 0, f"asked to stop: {stop.reason}")
            elif stop is not None and self.clock.now() >= stop.deadline:
                self._end(machine, job_dir, "stopped", -9, "killed at the deadline")
            elif not self._follow(machine):
                self._end(machine, job_dir, "again", None, "left out")
            elif machine.is_member and machine.generation <= min(life.restarts, int(age - life.boot_s)):
                self._restart(machine, "failure", "SIGKILL")
            elif age >= life.run_s and self._may_end(machine):
                self._finish(machine, job_dir)
            elif self.clock.now() >= machine.beat_due:
                self._beat(machine, job_dir)
        except JobDirError:
            machine.gone = True

    def _follow(self, machine: Machine) -> bool:
        """Follow the other members' generations; return False if the machine has been left out."""
        begun = bool(machine.spans)
        while record := read_generation(machine.job_dir, machine.request.attempt, machine.generation + 1):
            self._take(machine, record)
        if machine.is_member and not machine.spans:
            self._begin(machine)
        lost = [one for one in self._peers(machine) if one.is_lost]
        if lost and machine.halted is None and machine.is_member:
            machine.halted = self.clock.now()
            if machine.life.answer is not None and (machine.newest is None or machine.newest.kind == "members"):
                self._restart(machine, machine.life.answer, "connection reset")
                machine.halted = self.clock.now()
        return machine.is_member or not begun

    def _take(self, machine: Machine, record: Generation) -> None:
        machine.generation, machine.newest = record.generation, record
        if record.nodes is not None:
            machine.members = [node["node"] for node in record.nodes]
        if machine.is_member and record.kind != "closed":
            self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        if machine.spans:
            result = self._progress(machine)
            machine.spans[-1] = dataclasses.replace(machine.spans[-1], ended=self.clock.now(), progress=result)
        machine.restored, machine.halted, machine.beat_due = self.saved_step, None, 0.0
        machine.spans.append(Span(machine.generation, self.clock.now()))

    def _peers(self, machine: Machine) -> list[Machine]:
        alike = [one for one in self.machines if one.request.token == machine.request.token and one is not machine]
        return [one for one in alike if (one.node in machine.members if machine.members else one.node.endswith(".1"))]

    def _may_end(self, machine: Machine) -> bool:
        """Return whether the program may end now: a program that lost another node cannot end normally, nor can a spare
        machine."""
        end = machine.life.end
        trains = machine.is_member and machine.halted is None
        return end != "serve" and (trains or end in ("vanish", "taken", "freeze", "failed", "preempted"))

    def _restart(self, machine: Machine, kind: GenerationKind, reason: str) -> None:
        last, now = machine.newest, self.clock.now()
        failures, interruptions = (0, 0) if last is None else (last.failures, last.interruptions)
        used = (failures + 1, interruptions) if kind == "failure" else (failures, interruptions + 1)
        number = machine.generation + 1
        record = Generation(number, kind, machine.node, True, reason, 0.0, *used, now, "")
        if machine.job_dir.create(generation_key(machine.request.attempt, number), record.to_bytes()):
            self._take(machine, record)
        self._beat(machine, machine.job_dir)

    def _timeline(self, machine: Machine) -> dict[str, Any]:
        result = self._progress(machine)
        newest = [dataclasses.replace(span, progress=result) for span in machine.spans[-1:]]
        spans = [dataclasses.asdict(span) for span in (*machine.spans[:-1], *newest)]
        return dataclasses.asdict(Timeline(machine.launched, spans=spans))

    def _finish(self, machine: Machine, job_dir: JobDir) -> None:
        life = machine.life
        self._beat(machine, job_dir)
        if life.end == "taken":
            notice = Notice("preempt", self.clock.now(), "fake").to_bytes()
            job_dir.put(node_key(machine.request.attempt, machine.node, "notice.json"), notice)
        if life.end in ("taken", "vanish"):
            machine.gone = True
        elif life.end == "freeze":
            machine.life = dataclasses.replace(life, end="hang")
        else:
            self._end(machine, job_dir, life.end, life.exit_code, life.reason)

    def _progress(self, machine: Machine) -> dict[str, Any]:
        end = min(self.clock.now(), machine.launched + machine.life.run_s, machine.halted or math.inf)
        begun = machine.spans[-1].started if machine.spans else end
        seconds = max(0.0, end - max(begun, machine.launched + machine.life.boot_s))
        step = machine.restored + int(seconds * machine.life.steps_per_s)
        if machine.life.saves:
            self.saved_step = max(self.saved_step, step // 10 * 10)
        progress = Progress(machine.restored or None, step, self.saved_step or None, seconds)
        return dataclasses.asdict(progress)

    def _beat(self, machine: Machine, job_dir: JobDir) -> None:
        machine.sequence += 1
        phase: Literal["waiting", "running"] = "running" if machine.is_member else "waiting"
        since, age = machine.life.idle_from_s, self.clock.now() - machine.launched
        idle = None if since is None else max(0.0, age - since)
        beat = Heartbeat(
            machine.sequence, self.clock.now(), phase, self._progress(machine), idle, self._timeline(machine)
        )
        machine.beat_due = beat.time + BEAT_S
        job_dir.put(node_key(machine.request.attempt, machine.node, "heartbeat.json"), beat.to_bytes())

    def _end(self, machine: Machine, job_dir: JobDir, outcome: str, code: int | None, reason: str) -> None:
        now = self.clock.now()
        reported = (self._progress(machine), machine.life.final, self._timeline(machine))
        result = Result(outcome, code, reason, machine.launched, now, *reported)  # type: ignore[arg-type]
        job_dir.create(node_key(machine.request.attempt, machine.node, "result.json"), result.to_bytes())
        machine.done = machine.gone = True

    # -- helpers

    def _alive(self) -> list[Machine]:
        return [machine for machine in self.machines if not machine.gone]

    def _under(self, token: str) -> list[Machine]:
        """Return the machines of a launch that the current credentials see."""
        return [one for one in self.machines if one.request.token == token and one.account == self.credentials_of]

    def _allocation(self, request: LaunchRequest) -> Allocation:
        machines = {node.node: f"m-{request.token[:6]}-{node.node}" for node in request.nodes}
        account = self.credentials_of
        return Allocation("local", request.job_id, request.attempt, request.token, machines, account=account)

    def _fault(self, verb: str) -> ProvisionError | None:
        waiting = self.faults.get(verb)
        return waiting.pop(0) if waiting else None

    def _raise(self, verb: str) -> None:
        fault = self._fault(verb)
        if fault:
            raise fault


class StoringCloud(FakeCloud):
    """FakeCloud whose programs store checkpoints in their job dirs if `stores`, and resume from them; resuming from an
    older step than the last saved one is a violation."""

    stores = False

    def _start(self, request: LaunchRequest, node: str) -> None:
        super()._start(request, node)
        if self.stores:
            self._restore(self.machines[-1])

    def _begin(self, machine: Machine) -> None:
        super()._begin(machine)
        if self.stores:
            self._restore(machine)

    def _restore(self, machine: Machine) -> None:
        machine.restored = _newest(machine.job_dir, _since(machine))
        if machine.restored < self.saved_step:
            where = f"{machine.node} of attempt {machine.request.attempt} in {machine.job_dir.url}"
            self.violations.append(f"{where} begins at step {machine.restored}, and {self.saved_step} are saved")

    def _progress(self, machine: Machine) -> dict[str, Any]:
        result = super()._progress(machine)
        if self.stores and self.saved_step > _newest(machine.job_dir, _since(machine)):
            save_checkpoint(machine.job_dir, self.saved_step, machine.request.attempt)
        return result


def _since(machine: Machine) -> int:
    """Return the first attempt whose checkpoints the machine may restore, as its agent reads it."""
    record = AttemptRecord.read(machine.job_dir, attempt_key(machine.request.attempt))
    return 0 if record is None else record.progress_since


def _newest(job_dir: JobDir, since: int) -> int:
    """Return the step of the newest complete checkpoint: committed, with matching manifests."""
    store = CheckpointStore(job_dir, "checkpoints", since=since)
    for name in store.committed():
        commit = store.read_commit(name)
        if store.digests(name, len(commit.manifests)) == commit.manifests:
            return name.step
    return 0


def save_checkpoint(job_dir: JobDir, step: int, attempt: int, *, folder: str = "checkpoints") -> None:
    """Write and commit a checkpoint of one rank."""
    store, name, data = CheckpointStore(job_dir, folder), Name.new(step, attempt, step), bytes(range(100))
    store.write_rank(RankManifest(str(name), 0, 1, step, len(data), [], {}), memoryview(data))
    store.commit(name, store.digests(name, 1), finished=False, time=0.0)


def lives(*by_attempt: Life, nodes: Iterable[tuple[tuple[int, str], Life]] = ()) -> Callable[[int, str], Life]:
    """Return a script: one Life per attempt (the last one for all later attempts), exceptions by (attempt, node)."""
    special = dict(nodes)
    return lambda attempt, node: special.get((attempt, node), by_attempt[min(attempt, len(by_attempt)) - 1])
