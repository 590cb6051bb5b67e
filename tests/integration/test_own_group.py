"""Machines of a group that is there for one job: they take lost ones' places, and leave when there is nothing to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.fleet.records import order_key
from cloudgpu.protocol.fleet.view import BOOT_S
from cloudgpu.runtime.fleet.member import LEAVES, UNREACHABLE
from cloudgpu.tests.standins.ddp import TRAIN, beginnings
from cloudgpu.tests.standins.fleets import FleetJob, Machines
from cloudgpu.tests.standins.long_mode import in_long_mode
from cloudgpu.tests.standins.processes import stopped

pytestmark = pytest.mark.timeout(900)

STEPS = 100


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def start(machines: Machines, *names: str) -> None:
    for name in names:
        machines.start(name, "--one-job")


def all_leave(machines: Machines, *names: str) -> None:
    """For good, as their bootstrap is told by the exit code, with nothing left of the job."""
    for name in names:
        machines.until(lambda name=name: machines.processes[name].poll() is not None, f"{name} does not leave")  # type: ignore[misc]
        assert machines.processes[name].returncode == LEAVES, machines.logs()
        assert machines.jobs(name) == []
    assert machines.view().alive == []


@in_long_mode
def test_a_killed_machine_is_replaced_and_all_leave_in_the_end(machines: Machines) -> None:
    machines.shorten_silence()
    program, disturbed = machines.folder / "train.py", machines.folder / "disturbed"
    program.write_text(TRAIN)
    line = [sys.executable, str(program), str(STEPS), "0.02", str(disturbed)]
    job = FleetJob(machines, line, 2, launcher="torchrun")
    number = job.submit()
    start(machines, "a", "b")
    machines.until(lambda: job.saved("worker-0.1") >= STEPS // 2, "nothing was saved")
    lost = machines.holder(number, "worker-1")
    machines.crash(lost)
    start(machines, "c")
    machines.until(lambda: job.seen.place("worker-1").node == "worker-1.2", "nobody takes its place")
    disturbed.touch()
    job.finish()
    assert [place.outcome for place in job.seen.places] == ["succeeded"] * 2
    assert machines.name(job.seen.place("worker-1").machine) == "c"
    assert all(first >= STEPS // 2 for _, first in beginnings(job.log())[-2:]), "from the checkpoint"
    all_leave(machines, *({"a", "b", "c"} - {lost}))
    start(machines, "late")
    all_leave(machines, "late")
    assert job.seen.place("worker-1").node == "worker-1.2"


def test_who_has_ended_leaves_and_the_others_go_on(machines: Machines, tmp_path: Path) -> None:
    """As machines of a launch do: one that waited for the others' end would be paid for."""
    machines.shorten_silence()
    going = tmp_path / "going"
    job = FleetJob(machines, f"[ $CLOUDGPU_RANK = 0 ] || while [ ! -e {going} ]; do sleep 0.1; done", 2)
    number = job.submit()
    start(machines, "a", "b")
    machines.until(lambda: job.seen.place("worker-0").state == "done", "worker-0 does not end")
    ended, goes_on = machines.holder(number, "worker-0"), machines.holder(number, "worker-1")
    machines.until(lambda: machines.processes[ended].poll() == LEAVES, "it stays")
    machines.crash(goes_on)
    start(machines, "c")
    machines.until(lambda: job.seen.place("worker-1").node == "worker-1.2", "nobody takes its place")
    going.touch()
    job.finish()
    assert [place.outcome for place in job.seen.places] == ["succeeded"] * 2
    all_leave(machines, "c")


def test_half_of_the_machines_do_not_wait_for_ever(machines: Machines) -> None:
    """Nobody is there but them: the order is taken back, and whoever ordered finds why."""
    job = FleetJob(machines, "sleep 600", 2)  # the first node's program need not wait for the second
    number = job.submit()
    start(machines, "a")
    machines.until(lambda: job.seen.held, "nobody begins")
    order = machines.folder / "clusters" / "big" / order_key(number)
    os.utime(order, (time.time() - BOOT_S - 60.0,) * 2)
    job.finish()
    end = job.seen.end
    assert end is not None and end.unserved and "1 machines are there, 2 are needed" in end.reason
    all_leave(machines, "a")


def test_a_folder_that_is_gone_keeps_nobody(machines: Machines) -> None:
    shutil.rmtree(machines.folder / "clusters" / "big")
    start(machines, "a")
    all_leave(machines, "a")


@pytest.mark.parametrize("from_the_beginning", [True, False])
def test_a_folder_that_cannot_be_used_keeps_nobody(
    machines: Machines, tmp_path: Path, from_the_beginning: bool
) -> None:
    """Such a machine is of no use, and says so to its bootstrap, in less than half an hour here."""
    place = tmp_path / "clusters" / "big"
    program = "import cloudgpu.runtime.fleet.member as it, sys; it.UNREACHABLE_S = 3.0; sys.exit(it.main())"
    line = [sys.executable, "-c", program, "--fleet-dir", machines.url, "--member", "a", "--home", str(tmp_path / "a")]

    def cut_off() -> None:
        place.rename(tmp_path / "away")
        place.write_text("no folder")

    if from_the_beginning:
        cut_off()
    with (tmp_path / "said").open("w") as said, subprocess.Popen(line, stdout=said, stderr=said) as member:
        if not from_the_beginning:
            machines.until(lambda: machines.view().alive, "it is not there")
            with stopped(member):  # or it may make the folder again
                cut_off()
        assert member.wait(180) == UNREACHABLE, (tmp_path / "said").read_text()
