"""Console output of a machine that has fallen silent, if it can be read in time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

from cloudgpu.control.reconcile.console_tail import ConsoleReader
from cloudgpu.provisioners.base import Allocation, Explainer, Provisioner, ProvisionError
from cloudgpu.provisioners.local.provisioner import LocalProvisioner
from cloudgpu.provisioners.shared.consoles import last_lines

THERE = Allocation("azure", "digits", 1, "0" * 32, {"worker-0.1": "a", "worker-1.1": "b"})


class Talking:
    """A fake target that supports only reading the console."""

    def __init__(self, text: str | Exception, takes: threading.Event | None = None) -> None:
        self.text, self.takes = text, takes
        self.asked: list[str] = []

    def explain(self, allocation: Allocation, node: str) -> str:
        self.asked.append(allocation.machines[node])
        if self.takes is not None:
            self.takes.wait(180)
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


def words(target: object, limit_s: float = 30.0) -> ConsoleReader:
    return ConsoleReader(cast("Provisioner", target), THERE, limit_s)


def test_the_end_of_the_console_is_told() -> None:
    target = Talking("panic: no such disk")
    assert words(target).of("worker-1.1") == "\nits console ends with:\npanic: no such disk"
    assert target.asked == ["b"]


def test_of_several_that_fall_silent_together_one_is_asked() -> None:
    result = words(target := Talking("panic"))
    assert [bool(result.of(node)) for node in ("worker-0.1", "worker-1.1")] == [True, False]
    assert target.asked == ["a"]


def test_a_console_that_is_empty_or_cannot_be_read_is_not_told_of() -> None:
    denied = ProvisionError("auth", "GetConsoleOutput is not allowed", scope="cloud")
    for target in (Talking(""), Talking(denied), Talking(KeyError("region"))):
        assert not words(target).of("worker-0.1")


def test_a_console_that_does_not_come_is_not_waited_for() -> None:
    never = threading.Event()
    assert not words(Talking("late", takes=never), limit_s=0.2).of("worker-0.1")
    never.set()


def test_a_target_without_consoles_is_not_asked(tmp_path: Path) -> None:
    local = LocalProvisioner(tmp_path)
    assert not isinstance(local, Explainer)
    assert not words(local).of("worker-0.1")


def test_of_a_console_the_last_lines_are_told_and_nothing_that_moves_a_cursor() -> None:
    text = "\n".join(f"[   {number}.0] line {number}\x1b[0m  \r" for number in range(100)) + "\n\n \n"
    lines = last_lines(text).splitlines()
    assert len(lines) == 15 and lines[-1] == "[   99.0] line 99[0m"
    assert len(last_lines("x" * 10_000)) == 1_500
    assert not last_lines("\n  \n")
