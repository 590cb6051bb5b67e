"""Tests of a fleet's machines: they run jobs one after the other and replace each other without a supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.fleet.records import End, order_key
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.ddp import TRAIN, beginnings
from cloudgpu.tests.standins.fleets import FleetJob, Machines

STEPS = 100


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def training(machines: Machines, nodes: int, step_s: float, *undisturbed: Path) -> FleetJob:
    """Return a torchrun training of `nodes` nodes; for `undisturbed` see ddp.py."""
    program = machines.folder / "train.py"
    program.write_text(TRAIN)
    line = [sys.executable, str(program), str(STEPS), str(step_s), *map(str, undisturbed)]
    return FleetJob(machines, line, nodes, launcher="torchrun")


def weights(job: FleetJob) -> str:
    job.finish()
    return job.dir.get("outputs/weights.sha256").decode()


def test_jobs_wait_for_each_other_and_not_for_halves(machines: Machines, tmp_path: Path) -> None:
    """Two jobs of two nodes share two machines: each gets both machines at once, one job after the other."""
    going = tmp_path / "going"
    first = FleetJob(machines, f"while [ ! -e {going} ]; do sleep 0.1; done", 2)
    second = FleetJob(machines, "true", 2)
    assert [first.submit(), second.submit(), first.submit()] == [1, 2, 1]
    for name in "ab":
        machines.start(name)
    machines.until(lambda: {place.state for place in first.seen.places} == {"held"}, "the first was not begun")
    assert {place.state for place in second.seen.places} == {"free"}
    going.touch()
    second.finish()
    assert [first.seen.end is not None, {place.outcome for place in first.seen.places}] == [True, {"succeeded"}]
    assert {machines.holder(2, "worker-0"), machines.holder(2, "worker-1")} == {"a", "b"}
    machines.until_clean()


def test_jobs_that_have_lost_machines_do_not_wait_for_each_other(machines: Machines, tmp_path: Path) -> None:
    """Two jobs have lost one of their two machines each: the younger job releases its machine to the older one."""
    machines.shorten_silence()
    going = tmp_path / "going"
    jobs = [FleetJob(machines, f"while [ ! -e {going} ]; do sleep 0.1; done", 2) for _ in range(2)]
    for name in "abcd":
        machines.start(name)
    for job in jobs:
        number = job.submit()
        machines.until(lambda number=number: len(machines.order(number).held) == 2, "it was not begun")  # type: ignore[misc]
    for number in (1, 2):
        machines.crash(machines.holder(number, "worker-1"))
    machines.until(lambda: jobs[0].seen.place("worker-1").node == "worker-1.2", "it waits for the other")
    machines.until(lambda: len(jobs[0].seen.held) == 2, "it has not all")
    going.touch()
    for job in jobs:
        job.finish()
        assert [place.outcome for place in job.seen.places] == ["succeeded"] * 2
    assert "preempted: SIGTERM" not in jobs[0].log()


def test_a_job_lives_no_longer_for_being_moved(machines: Machines) -> None:
    """The job's time limit counts from the start on its first machine, not from each replacement."""
    machines.shorten_silence()
    job = FleetJob(machines, "echo $CLOUDGPU_NODE began; sleep 600", lifetime_s=300.0)
    number = job.submit()
    machines.start("a")
    machines.until(lambda: "worker-0.1 began" in job.log(), "never began")
    machines.crash("a")
    claim = machines.folder / "clusters" / "big" / order_key(number, "claims/worker-0.1")
    os.utime(claim, (time.time() - 400.0,) * 2)
    machines.start("b")
    job.finish()
    assert job.seen.place("worker-0").node == "worker-0.2"
    assert job.seen.place("worker-0").outcome == "stopped"


def test_a_machine_that_ends_leaves_its_job_to_another(machines: Machines) -> None:
    """The machine reaches its lifetime, and another machine continues the job."""
    job = FleetJob(machines, "echo $CLOUDGPU_NODE began; [ $CLOUDGPU_NODE = worker-0.2 ] || sleep 600")
    job.submit()
    machines.start("a", "--lifetime-s", "60")  # a shorter lifetime could end before the job begins on a busy computer
    machines.until(lambda: "worker-0.1 began" in job.log(), "never began")
    machines.start("b")
    job.finish()
    assert job.seen.place("worker-0").node == "worker-0.2"
    assert job.seen.place("worker-0").outcome == "succeeded"
    assert machines.name(job.seen.place("worker-0").machine) == "b"


def test_what_a_forgotten_job_has_left_is_not_the_next_ones(machines: Machines) -> None:
    """A machine restarts after its order was deleted: the next job must not see the old job's files."""
    job = FleetJob(machines, "touch mine; echo began; sleep 600")
    number = job.submit()
    machines.start("a")
    machines.until(lambda: "began" in job.log(), "never began")
    after = FleetJob(machines, "[ ! -e mine ]")
    after.submit()
    machines.crash("a")
    for key in JobDir(machines.url).list(f"orders/{number:08d}"):
        machines.fleet.delete(key)
    machines.start("a")
    after.finish()
    assert after.seen.place("worker-0").outcome == "succeeded"


def test_what_a_machine_had_no_time_to_remove_is_not_the_next_ones(machines: Machines) -> None:
    """A machine releases its node before it removes the job's files; a crash in between leaves them."""
    left = machines.folder / "machines" / "a" / "work" / "code" / "left"
    left.parent.mkdir(parents=True)
    left.touch()
    machines.start("a")
    job = FleetJob(machines, "[ ! -e left ]")
    job.submit()
    job.finish()
    assert job.seen.place("worker-0").outcome == "succeeded"


def test_a_lost_machine_is_replaced_without_a_supervisor(machines: Machines) -> None:
    pytest.importorskip("torch")
    machines.shorten_silence()
    machines.start("a")
    machines.start("b")
    calm = training(machines, 2, 0.0)
    calm.submit()
    wanted = weights(calm)
    undisturbed = machines.folder / "undisturbed"
    job = training(machines, 2, 0.05, undisturbed)
    number = job.submit()
    machines.until(lambda: job.saved("worker-0.1") >= 16, "never saved")
    machines.crash(machines.holder(number, "worker-1"))
    undisturbed.touch()
    machines.start("c")
    assert weights(job) == wanted
    assert machines.holder(number, "worker-1") == "c"
    assert job.seen.place("worker-1").incarnation == 2
    members = [one for one in job.generations() if one.kind == "members"]
    assert [[node["node"] for node in one.nodes or []] for one in members] == [["worker-0.1", "worker-1.2"]]
    assert (members[0].failures, members[0].interruptions) == (0, 1)
    assert beginnings(job.log())[-1][1] >= 16, "it went on from a checkpoint"


def test_a_job_of_one_node_goes_on_elsewhere(machines: Machines) -> None:
    """A job of one node is resumed by another machine when its only machine is lost."""
    pytest.importorskip("torch")
    machines.shorten_silence()
    machines.start("a")
    program = machines.folder / "train.py"
    program.write_text(
        "import sys, time, torch\nfrom cloudgpu.runtime import Checkpointer\n"
        "ckpt = Checkpointer(model=torch.nn.Linear(2, 2), every=4)\nbegun = ckpt.step\n"
        "print('from', begun, flush=True)\n"
        "for step in ckpt.steps(100): time.sleep(1.0 if begun == 0 and step >= 50 else float(sys.argv[1]))\n"
    )
    job = FleetJob(machines, [sys.executable, str(program), "0.05"])
    number = job.submit()
    machines.until(lambda: job.saved("worker-0.1") >= 8, "never saved")
    machines.crash("a")
    machines.start("b")
    job.finish()
    assert job.seen.place("worker-0").outcome == "succeeded"
    assert machines.holder(number, "worker-0") == "b"
    first, second = (int(line.split()[1]) for line in job.log() if line.startswith("from "))
    assert (first, second >= 8) == (0, True)


def test_a_machine_that_was_rebooted_goes_on(machines: Machines, tmp_path: Path) -> None:
    """The machine is back before its heartbeats are missed, and finds its claim on its disk."""
    there = tmp_path / "there"
    job = FleetJob(machines, f"echo began; if [ -e {there} ]; then exit 0; fi; touch {there}; sleep 600")
    number = job.submit()
    machines.start("a")
    machines.until(lambda: "began" in job.log(), "never began")
    machines.crash("a")
    machines.start("a")
    job.finish()
    assert job.seen.place("worker-0").node == "worker-0.1"
    assert job.log().count("began") == 2
    assert machines.holder(number, "worker-0") == "a"


def test_a_machine_that_is_made_anew_is_another_one(machines: Machines) -> None:
    """Google Cloud's instance groups recreate a machine under its name: it counts as a new machine."""
    machines.shorten_silence()
    machines.start("a")
    job = FleetJob(machines, "echo $CLOUDGPU_NODE began; [ $CLOUDGPU_NODE = worker-0.2 ] || sleep 600")
    job.submit()
    machines.until(lambda: "worker-0.1 began" in job.log(), "never began")
    machines.crash("a")
    machines.wipe("a")
    machines.start("a")
    job.finish()
    assert "worker-0.2 began" in job.log()
    assert job.seen.place("worker-0").outcome == "succeeded"


def test_who_comes_back_from_the_dead_has_no_part_in_it(machines: Machines, tmp_path: Path) -> None:
    """A machine that was frozen and replaced kills its stale program and is free for other jobs."""
    machines.shorten_silence()
    machines.start("a")
    going = tmp_path / "going"
    program = f"echo $CLOUDGPU_NODE began; while [ ! -e {going} ]; do sleep 0.1; done; echo $CLOUDGPU_NODE done"
    job = FleetJob(machines, program)
    number = job.submit()
    machines.until(lambda: "worker-0.1 began" in job.log(), "never began")
    frozen = [machines.processes["a"].pid, *machines.jobs("a")]
    for pid in frozen:
        machines.signal(pid, signal.SIGSTOP)
    machines.start("b")
    machines.until(lambda: "worker-0.2 began" in job.log(), "nobody took its place")
    for pid in frozen:
        machines.signal(pid, signal.SIGCONT)
    machines.until(lambda: not machines.jobs("a"), "what the zombie ran goes on")
    going.touch()
    job.finish()
    assert "worker-0.1 done" not in job.log()
    assert job.seen.place("worker-0").outcome == "succeeded"
    assert machines.holder(number, "worker-0") == "b"
    machines.crash("b")
    after = FleetJob(machines, "true")
    after.submit()
    after.finish()
    assert machines.holder(after.number, "worker-0") == "a", "it is of use again"


def test_what_is_ended_lets_go(machines: Machines) -> None:
    machines.start("a")
    job = FleetJob(machines, "echo began; sleep 600")
    number = job.submit()
    machines.until(lambda: "began" in job.log(), "never began")
    machines.fleet.create(order_key(number, "end.json"), End("a test's", "test", 0.0))
    machines.until(lambda: job.seen.place("worker-0").state == "done", "it was not let go of")
    assert not machines.jobs("a")
    after = FleetJob(machines, "true")
    after.submit()
    after.finish()


def test_one_that_fails_ends_the_others(machines: Machines) -> None:
    for name in "ab":
        machines.start(name)
    both = machines.folder / "both"  # the failure must come after both nodes have started
    job = FleetJob(
        machines,
        f"if [ $CLOUDGPU_NODE = worker-1.1 ]; then touch {both}; sleep 600; fi; "
        f"until [ -e {both} ]; do sleep 0.1; done; exit 3",
        2,
    )
    job.submit()
    job.finish()
    assert sorted(place.outcome for place in job.seen.places) == ["failed", "stopped"]
    failed = job.result("worker-0.1")
    assert failed is not None
    assert failed.exit_code == 3


def test_the_budget_of_interruptions_is_kept(machines: Machines) -> None:
    machines.shorten_silence()
    machines.start("a")
    job = FleetJob(machines, "echo began; sleep 600", interruptions_left=0)
    job.submit()
    machines.until(lambda: "began" in job.log(), "never began")
    machines.crash("a")
    machines.start("b")
    job.finish()
    assert job.log().count("began") == 1
    assert job.seen.place("worker-0").outcome == "again"


def test_a_job_dir_that_is_gone_keeps_no_machine(machines: Machines) -> None:
    machines.start("a")
    job = FleetJob(machines, "true")
    job.dir.delete("job.json")
    job.submit()
    job.finish()
    assert job.seen.place("worker-0").outcome == "error"


def test_who_is_not_needed_leaves(machines: Machines) -> None:
    machines.set(idle_s=1.0)
    job = FleetJob(machines, "sleep 3")
    job.submit()
    machines.start("a")
    machines.start("b", "--stays")
    assert machines.processes["a"].wait(180) == 8
    assert job.seen.end is not None, "not before the job has ended"
    assert machines.processes["b"].poll() is None
    machines.until(lambda: list(map(machines.name, machines.view().alive)) == ["b"], "it is still counted on")


def test_who_lets_jobs_fail_works_when_nobody_else_is_free(machines: Machines) -> None:
    machines.start("a")
    for _ in range(2):
        bad = FleetJob(machines, "exit 1")
        bad.submit()
        bad.finish()
        assert machines.name(bad.seen.place("worker-0").machine) == "a"
    machines.start("b")
    machines.until(lambda: len(machines.view().alive) == 2, "b is not there")
    assert set(map(machines.name, machines.view().suspects)) == {"a"}
    for _ in range(3):
        good = FleetJob(machines, "true")
        good.submit()
        good.finish()
        assert machines.name(good.seen.place("worker-0").machine) == "b"
    # The programs wait for each other; otherwise one machine might run both nodes before the other one polls.
    come = f"touch {machines.folder}/$CLOUDGPU_NODE; until [ -e {machines.folder}/worker-1.1 ]; do sleep 0.1; done"
    both = FleetJob(machines, f"{come}; until [ -e {machines.folder}/worker-0.1 ]; do sleep 0.1; done", 2)
    both.submit()
    both.finish()
    assert {machines.name(place.machine) for place in both.seen.places} == {"a", "b"}
    assert machines.view().suspects == set(), "it has run one well"


def test_a_suspect_machine_does_not_wait_for_who_takes_nothing(machines: Machines) -> None:
    """The other free machine is about to reach its lifetime and takes no jobs."""
    machines.start("a")
    for _ in range(2):
        bad = FleetJob(machines, "exit 1")
        bad.submit()
        bad.finish()
    machines.start("b", "--lifetime-s", "0")  # its lifetime is over at once
    machines.until(lambda: len(machines.view().alive) == 2, "b is not there")
    good = FleetJob(machines, "true")
    good.submit()
    good.finish()
    assert machines.name(good.seen.place("worker-0").machine) == "a"


def test_a_fleet_that_expires_leaves_and_one_that_is_extended_goes_on(machines: Machines) -> None:
    """The program gets SIGTERM to save. A machine with `--stays` stays on after the expiry, but runs no job."""
    run = "trap 'echo saved; exit 0' TERM; echo $CLOUDGPU_NODE began; [ $CLOUDGPU_NODE = worker-0.2 ] && exit 0\n"
    job = FleetJob(machines, f"{run}while :; do sleep 0.1; done")
    job.submit()
    machines.start("a")
    machines.until(lambda: "worker-0.1 began" in job.log(), "never began")
    machines.start("b", "--stays")
    machines.set(expires=time.time() + 30.0)  # below the minute before the expiry in which machines leave
    assert machines.processes["a"].wait(180) == 8
    assert "saved" in job.log()
    assert job.seen.place("worker-0").state == "lost"
    assert machines.start("c")
    assert machines.processes["c"].wait(180) == 8, "a machine that its group makes anew goes, too"
    assert machines.processes["b"].poll() is None
    assert job.seen.place("worker-0").incarnation == 1
    machines.set(expires=time.time() + 86_400.0)
    job.finish()
    assert job.seen.place("worker-0").outcome == "succeeded"
    assert machines.name(job.seen.place("worker-0").machine) == "b"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def in_a_bucket(tmp_path: Path, store: s3.S3) -> Iterator[Machines]:
    made = Machines(tmp_path, "s3://bucket/clusters/big", store.environment)
    yield made
    made.close()


def test_answers_that_are_lost_change_nothing(in_a_bucket: Machines, store: s3.S3) -> None:
    store.fail("PUT", "/claims/", lose_answer=True, times=1)
    store.fail("PUT", "/freed/", lose_answer=True, times=1)
    store.fail("PUT", "/order.json", lose_answer=True, times=1)
    store.fail("list", lose_answer=True, times=2)
    store.fail("PUT", "/beat.json", status=503, code="SlowDown", times=3)
    job = FleetJob(in_a_bucket, "echo began")
    assert job.submit() == 1
    in_a_bucket.start("a")
    job.finish()
    assert job.log().count("began") == 1
    assert job.seen.place("worker-0").node == "worker-0.1"


def test_who_is_cut_off_stops_before_another_begins(in_a_bucket: Machines, store: s3.S3) -> None:
    """A machine without access to the store stops by its own clock, earlier than others replace it."""
    in_a_bucket.set(silent_s=30.0, look_s=0.3)  # it must stop within the last third of silent_s
    in_a_bucket.start("a")
    job = FleetJob(in_a_bucket, "echo $CLOUDGPU_NODE began; [ $CLOUDGPU_NODE = worker-0.2 ] || sleep 600")
    job.submit()
    in_a_bucket.until(lambda: "worker-0.1 began" in job.log(), "never began")
    store.fail("PUT", f"members/{in_a_bucket.machine('a')}", status=503, code="SlowDown")
    in_a_bucket.start("b")
    in_a_bucket.until(
        lambda: job.seen.place("worker-0").state == "lost" or job.seen.place("worker-0").incarnation > 1,
        "it is not missed",
    )
    assert not in_a_bucket.jobs("a")
    job.finish()
    assert job.seen.place("worker-0").node == "worker-0.2"


def test_looking_costs_two_requests(in_a_bucket: Machines, store: s3.S3) -> None:
    in_a_bucket.set(look_s=0.2)
    in_a_bucket.start("a")
    in_a_bucket.until(
        lambda: store.count("PUT", "/beat.json") > 1, "it does not beat"
    )  # the settings have been read by then
    before = len(store.requests)
    in_a_bucket.until(lambda: len(store.requests) > before + 20, "it does not look")
    kinds = [request.kind for request in store.requests[before : before + 20]]
    assert set(kinds) == {"PUT", "list"}
