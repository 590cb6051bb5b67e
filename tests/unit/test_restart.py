"""When a program restarts in place, and how nodes agree on it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Generation, JobDir, NodeRecord, generation_key, local_url
from cloudgpu.runtime.agent.generations import Ledger
from cloudgpu.runtime.agent.membership import Begun
from cloudgpu.runtime.agent.restart import (
    FRUITLESS,
    Budget,
    RestartRequest,
    Scope,
    charge_budget,
    generations_without_checkpoint,
    requested_restart,
    scope,
)
from cloudgpu.runtime.processes.exit_verdict import Ending

FAILED = Ending("failed", 1, "rank 0: exit code 1")
AGAIN = Ending("again", 75, "rank 0: exit code 75")
DIED = RestartRequest("failure", "rank 0: SIGKILL", 0.0)


def node(name: str, role: str, rank: int) -> NodeRecord:
    return NodeRecord(name, role, 0, rank, 0)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (FAILED, "failure"),
        (AGAIN, "interruption"),
        (Ending("failed", 70, "", final=True), None),
        (Ending("error", 73, "", final=True), None),
        (Ending("succeeded", 0, ""), None),
        (Ending("preempted", 75, ""), None),
        (Ending("stopped", 75, ""), None),
        (Ending("error", None, ""), None),
    ],
)
def test_endings_after_which_a_program_restarts(ending: Ending, kind: str | None) -> None:
    wanted = requested_restart(ending, 0)
    assert (wanted.kind if wanted else None) == kind


def test_it_slows_down_and_gives_up_without_new_checkpoints() -> None:
    pauses = [one.pause_s for count in range(FRUITLESS + 1) if (one := requested_restart(FAILED, count)) is not None]
    assert pauses == [0.0, 0.0, 1.0]
    assert requested_restart(FAILED, FRUITLESS + 1) is None


def test_a_new_checkpoint_begins_the_count_anew() -> None:
    assert generations_without_checkpoint([]) == 0
    assert generations_without_checkpoint([None, {"saved_step": None}, {}]) == 3
    assert generations_without_checkpoint([{"saved_step": 5}]) == 0
    assert generations_without_checkpoint([{"saved_step": 5}, {"saved_step": 5}, None]) == 2
    assert generations_without_checkpoint([None, {"saved_step": 5}, {"saved_step": 9}]) == 0


@pytest.mark.parametrize(
    ("kind", "budget", "used", "then"),
    [
        ("failure", Budget(1, None), (0, 7), (1, 7)),
        ("failure", Budget(1, None), (1, 0), None),
        ("interruption", Budget(0, None), (0, 7), (0, 8)),
        ("interruption", Budget(9, 2), (5, 1), (5, 2)),
        ("interruption", Budget(9, 2), (0, 2), None),
    ],
)
def test_budgets(kind: str, budget: Budget, used: tuple[int, int], then: tuple[int, int] | None) -> None:
    last = Generation(3, "failure", "n", True, "", 0.0, *used, time=0.0, nonce="")
    assert charge_budget(RestartRequest(kind, "", 0.0), budget, last) == then  # type: ignore[arg-type]


SERVED = [node("chief-0.1", "chief", 0), node("worker-0.1", "worker", 1), node("ps-0.1", "parameter_server", 2)]


@pytest.mark.parametrize(
    ("launcher", "nodes", "rank", "expected"),
    [
        ("none", SERVED, 0, "lone"),
        ("torchrun", SERVED, 0, "group"),
        ("mpi", SERVED, 1, "group"),
        ("horovod", SERVED, 1, "group"),
        ("tensorflow", SERVED, 0, "group"),
        ("tensorflow", SERVED, 1, "member"),
        ("tensorflow", SERVED, 2, "group"),
        ("tensorflow", SERVED[:2], 1, "group"),
        ("tensorflow", [*SERVED[:2], node("evaluator-0.1", "evaluator", 2)], 2, "member"),
    ],
)
def test_scope_of_a_restart(launcher: str, nodes: list[NodeRecord], rank: int, expected: Scope) -> None:
    assert scope(launcher, nodes, nodes[rank]) == expected


# --- agreement


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "job"))


def ledger(job_dir: JobDir, name: str = "a", failures: int = 1, reach: Scope = "group") -> Ledger:
    return Ledger(job_dir, 1, name, Budget(failures, None), reach)


def records(job_dir: JobDir) -> list[Generation]:
    found: list[Generation] = []
    while (data := job_dir.find(generation_key(1, len(found) + 2))) is not None:
        found.append(Generation.from_bytes(data))
    return found


def test_all_nodes_that_fail_at_once_follow_one_record(job_dir: JobDir) -> None:
    for _ in range(20):
        for key in job_dir.list("attempts"):
            job_dir.delete(key)
        settled: list[Generation | None] = []
        barrier = threading.Barrier(8)

        def fail(name: str, barrier: threading.Barrier = barrier, settled: list[Generation | None] = settled) -> None:
            own = ledger(job_dir, name)
            barrier.wait()
            settled.append(own.decide_next(DIED, "failed", may_follow=True))

        threads = [threading.Thread(target=fail, args=(f"worker-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (record,) = records(job_dir)
        assert settled == [record] * 8
        assert record.failures == 1


def test_without_a_budget_the_row_is_closed(job_dir: JobDir) -> None:
    assert ledger(job_dir, failures=0).decide_next(DIED, "failed", may_follow=True) is None
    assert [record.kind for record in records(job_dir)] == ["closed"]


def test_no_node_restarts_without_one_that_has_ended(job_dir: JobDir) -> None:
    assert ledger(job_dir, "done").decide_next(None, "succeeded", may_follow=True) is None
    assert ledger(job_dir, "dies").decide_next(DIED, "failed", may_follow=True) is None
    assert [record.kind for record in records(job_dir)] == ["closed"]


def test_one_that_is_done_follows_a_restart_that_came_before(job_dir: JobDir) -> None:
    restarted = ledger(job_dir, "dies").decide_next(DIED, "failed", may_follow=True)
    assert ledger(job_dir, "done").decide_next(None, "succeeded", may_follow=True) == restarted


def test_one_that_may_not_follow_closes_what_comes_after(job_dir: JobDir) -> None:
    dies = ledger(job_dir, "dies", failures=9)
    assert dies.decide_next(DIED, "failed", may_follow=True) is not None
    assert ledger(job_dir, "ordered").decide_next(None, "succeeded", may_follow=False) is None
    assert dies.decide_next(DIED, "failed", may_follow=True) is None
    assert [record.kind for record in records(job_dir)] == ["failure", "closed"]


def test_nodes_on_their_own_share_the_budget_only(job_dir: JobDir) -> None:
    one, other = (ledger(job_dir, name, failures=2, reach="lone") for name in ("one", "other"))
    assert [
        one.decide_next(DIED, "failed", may_follow=True),
        other.decide_next(DIED, "failed", may_follow=True),
    ] == records(job_dir)
    assert [record.generation for record in records(job_dir)] == [2, 3]
    assert one.decide_next(DIED, "failed", may_follow=True) is None, "the other has used the rest"
    assert len(records(job_dir)) == 2, "and none of them closes the row of the other"


def test_a_machine_that_was_restarted_joins_what_the_others_have_begun_without_it(tmp_path: Path) -> None:
    job_dir = JobDir(local_url(tmp_path))

    def ledger(node: str, scope: Scope = "group") -> Ledger:
        return Ledger(job_dir, 1, node, Budget(failures=0, interruptions=1), scope)

    other = ledger("worker-0.1")
    own = ledger("worker-1.1")
    assert (own.catch_up(), own.find_awaiting_generation(1)) == (None, None)
    begun = other.decide_next(
        RestartRequest("interruption", "another rank received a notice to stop", 0.0), "again", may_follow=True
    )
    assert begun is not None and own.catch_up() == begun
    assert own.find_awaiting_generation(1) == begun, "they wait for it there"
    assert own.find_awaiting_generation(2) is None, "it was in it when it went down"
    assert own.rejoin("worker-1.1 was restarted") is None, "a generation of its own would cost one more"
    alone = ledger("worker-2.1", "lone")
    alone.catch_up()
    assert alone.find_awaiting_generation(1) is None, "nobody waits for it"


def test_which_generation_was_begun_is_on_the_disk(tmp_path: Path) -> None:
    assert Begun(tmp_path).generation == 0
    Begun(tmp_path).note(3)
    assert Begun(tmp_path).generation == 3
    (tmp_path / "begun").write_text("")  # the machine was reset during the write
    assert Begun(tmp_path).generation == 1
