"""What the mark `alone` rests on."""

from __future__ import annotations

import fcntl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloudgpu.tests.standins.turns import shared_lock


def test_nothing_runs_beside_one_that_is_alone(tmp_path: Path) -> None:
    inside: list[bool] = []
    seen: list[list[bool]] = []

    def run(alone: bool) -> None:
        with shared_lock(tmp_path, alone=alone):
            inside.append(alone)
            time.sleep(0.002)
            seen.append(list(inside))
            inside.remove(alone)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, [number % 4 == 0 for number in range(80)]))
    assert len(seen) == 80
    assert [now for now in seen if True in now] == [[True]] * 20


def test_others_run_at_once(tmp_path: Path) -> None:
    meet = threading.Barrier(3)

    def run(_number: int) -> None:
        with shared_lock(tmp_path, alone=False):
            meet.wait(180)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))


def test_whoever_comes_later_waits_behind_one_that_wants_to_be_alone(tmp_path: Path) -> None:
    order: list[str] = []

    def run(name: str, *, alone: bool) -> None:
        with shared_lock(tmp_path, alone=alone):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with shared_lock(tmp_path, alone=False):
            first = pool.submit(run, "alone", alone=True)
            while _is_free(tmp_path / "door"):
                time.sleep(0.01)
            second = pool.submit(run, "later", alone=False)
            time.sleep(0.1)
            assert order == []
        first.result(180)
        second.result(180)
    assert order == ["alone", "later"]


def _is_free(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
