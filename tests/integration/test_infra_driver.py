"""Stacks are driven through the unmodified Automation API, and a command that was killed can be repeated.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH; the provider keeps its
resources in this process.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.pulumi.serving import attached
from cloudgpu.tests.standins.toy_desk import TIMEOUT_S, Desk, killed_after, wait
from cloudgpu.tests.standins.toy_stack import STACK, toys


@pytest.fixture
def desk(engine_kind: str, tmp_path: Path) -> Iterator[Desk]:
    provider = toys()
    with attached(provider) as environ:
        yield Desk(engine_kind, tmp_path, provider, environ)
        provider.cloud.hurry.set()


def until_it_stops(process: subprocess.Popen[str]) -> None:
    """Read stderr until the process reports that it is stopping."""
    assert process.stderr is not None
    assert any("stopping: what is under way is finished first" in line for line in process.stderr)


@pytest.mark.on_engine
def test_from_nothing_to_nothing(desk: Desk) -> None:
    assert sorted(desk.run("preview").value["changes"]) == ["create toy-0", "create toy-1"]
    assert (desk.sizes, desk.run("contents").value["resources"]) == ([], [])
    assert desk.up("--keep")["outputs"] == {"count": 2}
    assert sorted(desk.up("--keep")["changes"]) == ["same toy-0", "same toy-1"]
    assert desk.shelf.made == 2
    assert sorted(desk.up("--keep", "--count", "3", "--size", "5")["changes"]) == [
        "create toy-2",
        "update toy-0",
        "update toy-1",
    ]
    assert desk.sizes == [5, 5, 5]
    assert [one["name"] for one in desk.run("down", "--keep").value["resources"]] == ["toy-0"]
    assert desk.sizes == [5]
    assert desk.run("down").code == 6  # one resource is protected
    desk.up("--count", "1", "--size", "5")
    assert desk.run("down").value["resources"] == []
    assert (desk.sizes, desk.locks) == ([], [])
    assert not list((desk.home / "infra/state").rglob(f"{STACK}*.json*")), "no backup of any update is left"
    assert desk.run("contents").value == {"resources": [], "pending": [], "outputs": {}}


def test_up_starts_the_engine_no_oftener_than_needed(desk: Desk) -> None:
    desk.up()
    desk.said.unlink()
    desk.up()
    commands = [line.partition("--non-interactive ")[2] for line in desk.said.read_text().splitlines()]
    begun = [command.partition(" --")[0] for command in commands]
    assert begun == ["", "stack select", "stack export", "refresh", "preview", "up", "stack export"]


def test_a_preview_leaves_no_stack_behind(desk: Desk) -> None:
    assert desk.run("preview").code == 0
    assert not list((desk.home / "infra/state").rglob(f"{STACK}.json"))


def test_a_failure_is_one_message_and_a_retry_continues(desk: Desk) -> None:
    desk.provider.control.fail("Create", error("QuotaExceeded", message="no more toys"), where={"name": "toy-1"})
    failed = desk.run("up")
    assert failed.code == 6
    said = failed.stderr.splitlines()[-1]
    assert said.startswith("error: toy-1 (toy:index:Toy): ")
    assert "no more toys" in said
    assert "create toy-1" in desk.up()["changes"]
    assert (desk.sizes, desk.shelf.made) == ([1, 1], 2)  # the first toy is not created twice


def test_a_name_that_is_taken_comes_with_how_that_may_be(desk: Desk) -> None:
    desk.provider.control.fail("Create", error("EntityAlreadyExists", message="Role toy-0 already exists"))
    failed = desk.run("up", "--count", "1")
    assert failed.code == 6
    assert "delete it, and give the command again" in failed.stderr


def test_a_defect_of_the_program_is_reported_as_every_defect(desk: Desk) -> None:
    failed = desk.run("up", "--shape", "broken")
    assert failed.code == 70
    assert "ValueError: a program with a defect" in failed.stderr


def test_a_resource_deleted_by_hand_is_created_again(desk: Desk) -> None:
    desk.up()
    desk.shelf.things.popitem()
    assert sorted(change.split()[0] for change in desk.up()["changes"]) == ["create", "same"]
    assert desk.sizes == [1, 1]


def test_ctrl_c_lets_end_what_is_under_way(desk: Desk) -> None:
    desk.shelf.slow_s = TIMEOUT_S
    process = desk.start("up", "--count", "1")
    with killed_after(process):
        wait(desk.shelf.begun.is_set)
        process.send_signal(signal.SIGINT)
        until_it_stops(process)
        desk.shelf.hurry.set()
        stopped = desk.end(process)
    assert stopped.code == 130, stopped.stderr
    assert "the same command again goes on from there" in stopped.stderr
    assert (desk.shelf.made, desk.locks) == (1, [])
    assert "same toy-0" in desk.up()["changes"]
    assert desk.shelf.made == 2


def test_ctrl_c_twice_kills_the_engine_and_a_retry_continues(desk: Desk) -> None:
    desk.shelf.slow_s = TIMEOUT_S
    process = desk.start("up", "--count", "1")
    with killed_after(process):
        wait(desk.shelf.begun.is_set)
        process.send_signal(signal.SIGINT)
        until_it_stops(process)
        process.send_signal(signal.SIGINT)
        stopped = desk.end(process)
    assert stopped.code == 130, stopped.stderr
    desk.shelf.slow_s = 0.0
    assert "an interrupted run was creating toy-0" in desk.run("plan", "--count", "1").stderr
    again = desk.run("up", "--count", "1")
    assert again.code == 0, again.stderr
    assert "an interrupted run was creating toy-0" in again.stderr
    assert (desk.sizes, desk.locks) == ([1], [])


def test_the_lock_of_a_killed_engine_is_broken(desk: Desk) -> None:
    desk.kill_in_the_middle()
    assert len(desk.locks) == 1
    again = desk.run("up", "--count", "1")
    assert again.code == 0, again.stderr
    assert "broke the lock of your earlier run, which was killed" in again.stderr
    assert (desk.sizes, desk.locks) == ([1], [])


def test_the_engine_of_a_killed_command_is_waited_for(desk: Desk) -> None:
    desk.shelf.slow_s = 4.0
    process = desk.start("up", "--count", "1")
    with killed_after(process):
        wait(desk.shelf.begun.is_set)
        process.kill()
        process.wait(TIMEOUT_S)
    desk.shelf.slow_s = 0.0
    again = desk.run("up", "--count", "1")
    assert again.code == 0, again.stderr
    assert (desk.locks, len(desk.shelf.things)) == ([], desk.shelf.made)


def test_the_lock_of_another_user_is_respected(desk: Desk) -> None:
    desk.up()
    lock = desk.lock_as()
    refused = desk.run("up", "--size", "2")
    assert refused.code == 6
    assert "ann@elsewhere (process 4242), since 2026-11-22T06:00:00Z" in refused.stderr
    assert f"pulumi cancel --stack organization/cloudgpu/{STACK}" in refused.stderr
    assert (desk.sizes, desk.locks) == ([1, 1], [lock])


def test_a_lock_of_another_engine_on_this_host_is_respected(desk: Desk) -> None:
    desk.up()
    lock = desk.lock_as(hostname=socket.gethostname(), pid=2**22 - 1)
    assert desk.run("up", "--size", "2").code in ({6} if desk.is_double else {0, 6})  # Pulumi's own engine may break it
    assert not desk.is_double or lock.exists()


def test_two_of_this_computer_do_not_work_on_one_stack(desk: Desk) -> None:
    desk.shelf.slow_s = TIMEOUT_S
    process = desk.start("up", "--count", "1")
    with killed_after(process):
        wait(desk.shelf.begun.is_set)
        refused = desk.run("up", "--count", "1")
        desk.shelf.hurry.set()
        assert desk.end(process).code == 0
    assert refused.code == 6
    assert "another cloudgpu process of this computer works on toys" in refused.stderr
    assert desk.shelf.made == 1


def test_no_secret_on_any_command_line_nor_in_the_state(desk: Desk) -> None:
    desk.up()
    passphrase = (desk.home / "infra/passphrase").read_text()
    state = "".join(path.read_text() for path in (desk.home / "infra/state").rglob("*") if path.is_file())
    assert passphrase not in desk.said.read_text()
    assert passphrase not in state


def test_a_pulumi_that_is_too_old_is_named(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "bin/pulumi").write_text("#!/bin/sh\necho v3.10.0\n")
    failed = desk.run("up")
    assert failed.code == 6
    assert str(tmp_path / "bin/pulumi") in failed.stderr
    assert "3.205.0" in failed.stderr


def test_a_pulumi_that_does_not_run_is_named(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "bin/pulumi").write_text("#!/bin/sh\nexit 3\n")
    failed = desk.run("up")
    assert failed.code == 6
    assert str(tmp_path / "bin/pulumi") in failed.stderr
