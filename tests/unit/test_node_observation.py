"""Observation of an offer's nodes: their names and ranks, and how lost nodes ended."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Literal

import pytest

from cloudgpu.control.reconcile.node_observation import BOOT_S, GAVE_UP, SILENT_S, AttemptCache, observe_nodes
from cloudgpu.control.reconcile.node_replacement import node_requests
from cloudgpu.control.reconcile.outcomes import NodeEnd
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.protocol.jobdir import Heartbeat, JobDir, Result, node_key
from cloudgpu.provisioners.base import NodeState, ProvisionError
from cloudgpu.storage.urls import local_url


def role(name: str, nodes: int) -> RoleOffer:
    return RoleOffer(name, nodes, "local", None, Fraction(0), 2, 4.0, Decimal(0))


def test_ranks_count_through_all_roles() -> None:
    roles = (role("chief", 1), role("worker", 3), role("evaluator", 2))
    offer = Offer("local", "local", None, "on-demand", roles, 0.0, Decimal(0), Decimal(0), None)
    assert [(node.node, node.index, node.rank) for node in node_requests(offer)] == [
        ("chief-0.1", 0, 0),
        ("worker-0.1", 0, 1),
        ("worker-1.1", 1, 2),
        ("worker-2.1", 2, 3),
        ("evaluator-0.1", 0, 4),
        ("evaluator-1.1", 1, 5),
    ]


def end_of_gone_node(tmp_path: Path, state: NodeState) -> NodeEnd | None:
    """Return how a node ended that left no result."""
    [node] = node_requests(Offer("aws", "r", "z", "spot", (role("worker", 1),), 0.0, Decimal(0), Decimal(0), None))
    [view] = observe_nodes(JobDir(local_url(tmp_path)), AttemptCache(1), [node], {node.node: state}, 0.0)
    return view.end


def test_a_machine_that_the_provider_took_was_preempted_though_no_notice_came(tmp_path: Path) -> None:
    detail = "terminated: Server.SpotInstanceTermination: Instance terminated"
    end = end_of_gone_node(tmp_path, NodeState("worker-0.1", "gone", detail, reclaimed=True))
    assert end is not None
    assert (end.outcome, end.reason) == ("preempted", f"the provider took the machine back: {detail}")


def test_a_machine_that_vanished_is_lost(tmp_path: Path) -> None:
    end = end_of_gone_node(tmp_path, NodeState("worker-0.1", "gone", "terminated: Server.InternalError"))
    assert end is not None and end.outcome == "lost"


def test_a_machine_that_vanished_says_why_in_the_job_dir_or_on_its_console(tmp_path: Path) -> None:
    node = Silent(tmp_path)
    state = NodeState("worker-0.1", "gone", "terminated: Client.InstanceInitiatedShutdown")

    def reason() -> str:
        [view] = observe_nodes(node.dir, AttemptCache(1), [node.node], {"worker-0.1": state}, 0.0, node.words)
        assert view.end is not None and view.end.outcome == "lost"
        return view.end.reason

    assert reason().endswith("InstanceInitiatedShutdown; its console says why")
    for said in (b"{", b"[]", b'{"reason": 5}', b"[" * 100_000):
        node.dir.put(node_key(1, "worker-0.1", GAVE_UP), said)
        assert reason().endswith("; its console says why")
    node.dir.put(node_key(1, "worker-0.1", GAVE_UP), b'{"reason": "SlowDown (503)", "time": 1}')
    assert reason().endswith("InstanceInitiatedShutdown; it gave up: SlowDown (503)")


def test_a_refusal_counts_only_where_nothing_was_heard_of_the_machine(tmp_path: Path) -> None:
    refusal = ProvisionError("capacity", "Server.InternalError")
    gone = NodeState("worker-0.1", "gone", "terminated: Server.InternalError", refused=refusal)
    end = end_of_gone_node(tmp_path / "silent", gone)
    assert end is not None and end.refused is refusal
    silent = Silent(tmp_path / "heard")
    [view] = observe_nodes(silent.dir, silent.watches, [silent.node], {"worker-0.1": gone}, 0.0)
    assert view.end is not None and (view.end.outcome, view.end.refused) == ("lost", None)


class Silent:
    """Node that has sent one heartbeat, observed at later times."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.watches = JobDir(local_url(folder)), AttemptCache(1)
        offer = Offer("gcp", "r", "z", "on-demand", (role("worker", 1),), 0.0, Decimal(0), Decimal(0), None)
        [self.node] = node_requests(offer)
        self.asked: list[str] = []
        self.jobs = 1
        self.beat(1)

    def beat(self, sequence: int) -> None:
        self.dir.put(node_key(1, "worker-0.1", "heartbeat.json"), Heartbeat(sequence, 0.0, "running").to_bytes())

    def end_at(self, now: float, *, returns: bool = False, queued: bool = False) -> NodeEnd | None:
        state = NodeState("worker-0.1", "pending" if queued else "running", restarting=returns, queued=queued)
        return observe_nodes(
            self.dir, self.watches, [self.node], {"worker-0.1": state}, now, self.words, jobs=self.jobs
        )[0].end

    def words(self, node: str) -> str:
        self.asked.append(node)
        return "; its console says why"


def test_a_machine_that_returns_has_the_full_heartbeat_timeout(tmp_path: Path) -> None:
    """A cluster machine was off until its node was queued for another one, and returned before one was found."""
    silent = Silent(tmp_path)
    assert silent.end_at(0) is None
    back = 10 * SILENT_S
    assert silent.end_at(back, queued=True) is None
    assert silent.end_at(back + 1) is None
    silent.beat(2)
    assert silent.end_at(back + SILENT_S - 1) is None
    assert silent.end_at(back + 2 * SILENT_S) is not None


def test_a_machine_that_is_silent_is_lost(tmp_path: Path) -> None:
    silent = Silent(tmp_path)
    assert silent.end_at(0) is None
    assert silent.end_at(SILENT_S - 1) is None
    assert silent.asked == []
    for _ in range(2):
        end = silent.end_at(SILENT_S)
        assert end is not None
        assert end.reason == "the machine has not been heard of for 180 s; its console says why"
    assert silent.asked == ["worker-0.1"], "it is asked once"


@pytest.mark.parametrize(
    ("promised", "silence_s"), [(0.0, SILENT_S), (3.0, SILENT_S), (90.0, 270.0), (1e9, 900.0), (float("nan"), SILENT_S)]
)
def test_a_machine_that_reports_rarely_may_be_silent_for_longer(
    promised: float, silence_s: float, tmp_path: Path
) -> None:
    silent = Silent(tmp_path)
    beat = Heartbeat(2, 0.0, "running", next_s=promised)
    silent.dir.put(node_key(1, "worker-0.1", "heartbeat.json"), beat.to_bytes())
    assert silent.end_at(0) is None
    assert silent.end_at(silence_s - 1) is None
    end = silent.end_at(silence_s)
    assert end is not None
    assert end.reason.startswith(f"the machine has not been heard of for {silence_s:.0f} s")


def test_time_without_polls_does_not_count_as_silence(tmp_path: Path) -> None:
    """A laptop with supervisor and machine sleeps for a night. Then the machine has the full timeout for its next
    heartbeat."""
    silent = Silent(tmp_path)
    for now in (0, 10, 28_810, 28_820):
        silent.watches.record_poll(now, gone=False)
        assert silent.end_at(now) is None
    for now in (28_850, 28_880, 28_910, 28_940, 28_970):
        silent.watches.record_poll(now, gone=False)
    assert silent.end_at(28_970) is not None


def test_silence_adds_up_with_rare_polls(tmp_path: Path) -> None:
    silent = Silent(tmp_path)
    ends = []
    for now in range(0, 4_800, 600):
        silent.watches.record_poll(now, gone=False)
        ends.append(silent.end_at(now) is not None)
    assert ends == [False] * 6 + [True] * 2


def test_a_machine_that_its_provider_starts_again_has_the_time_to_boot(tmp_path: Path) -> None:
    silent = Silent(tmp_path)
    silent.end_at(0)
    assert silent.end_at(SILENT_S - 1, returns=True) is None
    assert silent.end_at(SILENT_S + 10) is None, "it was started, and boots"
    silent.beat(2)
    assert silent.end_at(SILENT_S + 20) is None
    assert silent.end_at(2 * SILENT_S + 20) is not None, "heard of again, it is as any other"


def test_a_machine_that_was_to_be_started_again_and_never_was_is_lost(tmp_path: Path) -> None:
    silent = Silent(tmp_path)
    silent.end_at(0)
    assert silent.end_at(BOOT_S - 1, returns=True) is None
    end = silent.end_at(BOOT_S, returns=True)
    assert end is not None and end.outcome == "lost"


class Remote(Silent):
    """`Silent` with a job dir in an object store, where each request costs money and is counted."""

    def __init__(self, folder: Path, jobs: int = 1_000) -> None:
        super().__init__(folder)
        self.jobs = jobs
        self.reads: list[str] = []
        store = self.dir

        class Counted:
            folder = None

            def find(_, key: str, _most: int | None = None) -> bytes | None:  # noqa: N805 - counts for the outer one
                self.reads.append(key)
                return store.find(key)

            def exists(_, key: str) -> bool:  # noqa: N805
                return store.exists(key)

        self.dir = Counted()  # type: ignore[assignment]
        self.store = store

    def beat(self, sequence: int) -> None:
        key = node_key(1, "worker-0.1", "heartbeat.json")
        getattr(self, "store", self.dir).put(key, Heartbeat(sequence, 0.0, "running").to_bytes())

    def phase_at(self, now: float, phase: Literal["pending", "running", "gone"]) -> NodeEnd | None:
        states = {"worker-0.1": NodeState("worker-0.1", phase)}
        return observe_nodes(self.dir, self.watches, [self.node], states, now, jobs=self.jobs)[0].end


@pytest.mark.parametrize(("jobs", "every_s"), [(1, 3), (45, 3), (450, 30), (1_000, 60), (100_000, 60)])
def test_a_program_that_runs_is_read_less_often_the_more_jobs_there_are(
    tmp_path: Path, jobs: int, every_s: int
) -> None:
    remote = Remote(tmp_path, jobs)
    for now in range(0, 601, 3):
        if now % 60 == 0:
            remote.beat(now)
        assert remote.end_at(now) is None
    assert len(remote.reads) == 2 * (600 // every_s + 1)


def test_the_end_of_one_job_is_read_soon_where_its_machine_seems_to_run_on(tmp_path: Path) -> None:
    """Azure's lists do not show that a machine was deallocated."""
    remote = Remote(tmp_path, 1)
    assert remote.phase_at(0, "running") is None
    remote.store.put(node_key(1, "worker-0.1", "result.json"), Result("succeeded", 0, "", 1.0, 2.0).to_bytes())
    end = remote.phase_at(3, "running")
    assert end is not None and end.outcome == "succeeded"


def test_a_machine_that_leaves_running_is_read_at_once(tmp_path: Path) -> None:
    remote = Remote(tmp_path)
    assert remote.phase_at(0, "running") is None
    assert remote.phase_at(3, "running") is None
    remote.store.put(node_key(1, "worker-0.1", "result.json"), Result("succeeded", 0, "", 1.0, 2.0).to_bytes())
    assert remote.phase_at(6, "running") is None
    end = remote.phase_at(9, "gone")
    assert end is not None and end.outcome == "succeeded"


def test_silence_is_judged_by_a_heartbeat_that_was_read_anew(tmp_path: Path) -> None:
    """Polls are rare: the last heartbeat read is too old, so it is read again before the node counts as lost."""
    remote = Remote(tmp_path)
    assert remote.end_at(0) is None
    now = 0.0
    while now < SILENT_S + 30:
        now += 29.0
        remote.beat(int(now))
        assert remote.end_at(now) is None
    while (end := remote.end_at(now)) is None:
        now += 3.0
        assert now < 3 * SILENT_S
    assert end.outcome == "lost"
    assert len(remote.reads) < 2 * 20
