"""Migration to another job dir: complete or not at all wherever it is interrupted, and each row of the metrics once."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import (
    JOB_KEY,
    JobDir,
    JobDirError,
    JobRecord,
    code_key,
    local_url,
    read_job,
    run_key,
)
from cloudgpu.protocol.metrics import read_metrics
from cloudgpu.runtime.checkpoint.errors import AllDamagedError, CheckpointError, FencedError
from cloudgpu.runtime.checkpoint.format.manifest import data_file
from cloudgpu.runtime.checkpoint.metrics import MetricRows
from cloudgpu.runtime.checkpoint.store import CheckpointStore, Condition
from cloudgpu.runtime.migration import Moved, Transferred, move
from cloudgpu.storage.copying import READS, STREAMS, Copier, InterruptedCopyError
from cloudgpu.storage.objects import PART
from cloudgpu.tests.standins.checkpoints import restore_all, save, save_as

FOLDER = "checkpoints"
SAVED_EVERY = 10


def moved(source: JobDir, target: JobDir, attempt: int = 2, **options: Any) -> Moved:
    calls: dict[str, Any] = {"keep_going": lambda: True, "on_begin": lambda _one: None, "on_copied": lambda: None}
    return move([source], target, attempt, **{**calls, **options})


def make(folder: Path) -> JobDir:
    return JobDir(local_url(folder))


def state(step: int) -> dict[str, Any]:
    return {"objects": {"model": {"w": torch.arange(1_000, dtype=torch.float32) + step}}, "step": step}


def train(job_dir: JobDir, *, attempt: int, until: int, restored: Name | None = None) -> list[Name]:
    """Train and save with two ranks as Checkpointer and writer do: rows before the commit, in small segments."""
    store, rows, names = CheckpointStore(job_dir, FOLDER), MetricRows(segment=500), []
    if restored is not None:
        rows.resume(lambda key: job_dir.find(f"{FOLDER}/{key}"), str(restored))
    for step in range(restored.step if restored else 0, until):
        rows.log(step, {"loss": step + attempt / 1000})
        if (step + 1) % SAVED_EVERY == 0:
            name = Name.new(step + 1, attempt, step + 1)
            store.put_metrics(rows.take(str(name)))
            names.append(save_as(store, name, [state(step + 1), state(step + 1)]))
            rows.committed(str(name))
    return names


def restored_step(job_dir: JobDir) -> int | None:
    """Return the step that both ranks restore and verify."""
    found = restore_all(CheckpointStore(job_dir, FOLDER), 2)
    return None if found[0] is None else int(found[0].snapshot["step"])


def losses(job_dir: JobDir) -> list[tuple[int, float]]:
    return [(row.step, float(row.values["loss"])) for row in read_metrics(job_dir)]


@pytest.fixture
def source(tmp_path: Path) -> JobDir:
    """Return the job dir of a job that has trained for 30 steps."""
    job_dir = make(tmp_path / "source")
    job_dir.put(JOB_KEY, JobRecord(job_id="job-1", name="job", run="true").to_bytes())
    job_dir.put(code_key("0" * 64), b"the code" * 10)
    job_dir.put("agent/1.pyz", b"the agent")
    job_dir.put("outputs/plots/loss.txt", b"0.5")
    job_dir.put("attempts/0001/nodes/worker-0.1/heartbeat.json", b"{}")
    train(job_dir, attempt=1, until=30)
    return job_dir


def test_all_that_a_program_goes_on_from_is_there_and_nothing_else(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    begun: list[Transferred] = []
    found = moved(source, target, on_begin=begun.append)
    assert [one.step for one in found.checkpoints] == [30] and begun == list(found.checkpoints)
    (name,) = CheckpointStore(target, FOLDER).names()
    assert found.checkpoints[0].size == sum(entry.size for entry in target.entries(f"{FOLDER}/{name}"))
    assert restored_step(target) == 30
    assert losses(target) == losses(source) == [(step, step + 0.001) for step in range(30)]
    for key in (JOB_KEY, code_key("0" * 64), "agent/1.pyz", "outputs/plots/loss.txt"):
        assert target.get(key) == source.get(key)
    assert target.list("attempts") == []


def test_a_run_that_starts_over_takes_its_record_and_no_checkpoint_along(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    assert moved(source, target).copied_job
    record = JobRecord(job_id="job-1", name="job", run="false", checkpoint_on_damage="restart").to_bytes()
    sha256 = hashlib.sha256(record).hexdigest()
    source.put(run_key(sha256), record)
    source.put(code_key("1" * 64), b"mended")
    for name in CheckpointStore(target, FOLDER).names():
        CheckpointStore(target, FOLDER).discard(name)
    found = moved(source, target, 3, sha256=sha256, since=3)
    assert found.copied_job and found.checkpoints == () and CheckpointStore(target, FOLDER).names() == []
    assert read_job(target, sha256) == record and target.exists(code_key("1" * 64))
    train(source, attempt=3, until=10)
    assert [one.step for one in moved(source, target, 4, sha256=sha256, since=3).checkpoints] == [10]
    assert not moved(source, target, 4, sha256=sha256, since=3).copied_job


def test_metrics_go_on_without_a_gap_and_a_way_back_is_no_other(source: JobDir, tmp_path: Path) -> None:
    there = make(tmp_path / "there")
    moved(source, there, 2)
    (name,) = CheckpointStore(there, FOLDER).names()
    there.put("outputs/plots/loss.txt", b"0.4")
    train(there, attempt=2, until=50, restored=name)
    moved(there, source, 3)
    assert restored_step(source) == 50
    assert losses(source) == [(step, step + (0.001 if step < 30 else 0.002)) for step in range(50)]
    assert source.get("outputs/plots/loss.txt") == b"0.4"


def test_a_job_that_has_saved_nothing_has_nothing_to_go_on_from(source: JobDir, tmp_path: Path) -> None:
    for key in source.list(FOLDER):
        source.delete(key)
    assert moved(source, make(tmp_path / "target")) == Moved(True, (), ())


def test_nodes_that_train_each_for_itself_take_all_of_theirs(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source"), make(tmp_path / "target")
    source.put(JOB_KEY, b"{}")
    for node, step in (("worker-0", 10), ("worker-1", 20)):
        save(CheckpointStore(source, f"{FOLDER}/{node}"), step, [state(step)])
    assert sorted(one.step for one in moved(source, target).checkpoints) == [10, 20]
    assert [restore_all(CheckpointStore(target, f"{FOLDER}/worker-{n}"), 1)[0] is not None for n in (0, 1)] == [
        True
    ] * 2


def test_stale_writers_of_the_last_attempt_cannot_commit(source: JobDir, tmp_path: Path) -> None:
    moved(source, make(tmp_path / "target"))
    with pytest.raises(FencedError):
        train(source, attempt=1, until=50)
    assert restored_step(source) == 30


def test_what_is_damaged_is_passed_over_and_said(source: JobDir, tmp_path: Path) -> None:
    store, target = CheckpointStore(source, FOLDER), make(tmp_path / "target")
    newest = store.committed()[0]
    path = store.local_path(newest, data_file(1))
    assert path is not None
    content = bytearray(path.read_bytes())
    content[2_000] ^= 1
    path.write_bytes(content)
    found = moved(source, target)
    assert [one.step for one in found.checkpoints] == [20]
    assert [text.startswith(f"{newest}: {data_file(1)} differs") for text in found.damaged] == [True]
    assert restored_step(target) == 20 and newest not in store.committed()
    assert [step for step, _ in losses(target)] == list(range(20))


def test_a_damaged_checkpoint_in_the_target_is_replaced(source: JobDir, tmp_path: Path) -> None:
    """Needed if a job moves back: programs skip checkpoints that are marked as damaged, and stop if no other exists."""
    target = make(tmp_path / "target")
    moved(source, target)
    store = CheckpointStore(target, FOLDER)
    (name,) = store.names()
    path = store.local_path(name, data_file(1))
    assert path is not None
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        restored_step(target)
    moved(source, target)
    assert restored_step(target) == 30 and losses(target) == losses(source)


@pytest.mark.parametrize("back", [False, True])
def test_if_none_is_whole_where_the_job_worked_last_one_from_before_is_taken(
    source: JobDir, tmp_path: Path, back: bool
) -> None:
    """The target is a third job dir, or (`back`) the first one."""
    last, target = make(tmp_path / "last"), source if back else make(tmp_path / "target")
    moved(source, last)
    store = CheckpointStore(last, FOLDER)
    (name,) = store.names()
    store.mark_damaged(name, "a program found it so")
    calls: dict[str, Any] = {"keep_going": lambda: True, "on_begin": lambda _one: None, "on_copied": lambda: None}
    found = move([last, source], target, 3, **calls)
    assert [(one.step, one.source, one.copied) for one in found.checkpoints] == [(30, source.url, not back)]
    assert restored_step(target) == 30 and losses(target) == [(step, step + 0.001) for step in range(30)]
    with pytest.raises(FencedError):
        train(last, attempt=2, until=50)


def damage(job_dir: JobDir, folder: str = FOLDER) -> list[str]:
    """Flip a bit of every checkpoint; return their names, the newest first."""
    store = CheckpointStore(job_dir, folder)
    for name in store.names():
        path = store.local_path(name, data_file(0))
        assert path is not None
        content = bytearray(path.read_bytes())
        content[200] ^= 1
        path.write_bytes(content)
    return [str(name) for name in store.names()]


@pytest.mark.parametrize("again", [False, True])
def test_if_all_are_damaged_nothing_begins_anew(source: JobDir, tmp_path: Path, again: bool) -> None:
    """Both earlier job dirs have only damaged checkpoints. `again`: an earlier attempt to move has marked them all."""
    last, target = make(tmp_path / "last"), make(tmp_path / "target")
    moved(source, last)
    names = {str(name): url.url for url in (source, last) for name in map(str, damage(url))}
    calls: dict[str, Any] = {"keep_going": lambda: True, "on_begin": lambda _one: None, "on_copied": lambda: None}
    for _ in range(1 + again):
        with pytest.raises(AllDamagedError) as caught:
            move([last, source], target, 3, **calls)
    said = str(caught.value)
    for expected in (*names, last.url, source.url, "rank-00000.bin differs", "on_damage: restart"):
        assert expected in said
    assert CheckpointStore(target, FOLDER).committed() == []


def test_if_all_are_damaged_the_job_may_say_that_it_begins_anew(source: JobDir, tmp_path: Path) -> None:
    names = damage(source)
    record = JobRecord(job_id="job-1", name="job", run="true", checkpoint_on_damage="restart")
    source.put(JOB_KEY, record.to_bytes())
    found = moved(source, make(tmp_path / "target"))
    assert found.checkpoints == () and [text.partition(":")[0] for text in found.damaged] == names


@pytest.mark.parametrize("back", [False, True])
def test_what_was_marked_and_verifies_now_is_taken(source: JobDir, tmp_path: Path, back: bool) -> None:
    """The machine that marked them was at fault. `back`: the job moves back to the job dir with the marks."""
    store = CheckpointStore(source, FOLDER)
    for name in store.names():
        store.mark_damaged(name, "a program found it so")
    empty, target = make(tmp_path / "empty"), source if back else make(tmp_path / "target")
    empty.put(JOB_KEY, source.get(JOB_KEY))
    calls: dict[str, Any] = {"keep_going": lambda: True, "on_begin": lambda _one: None, "on_copied": lambda: None}
    found = move([empty, source], target, 2, **calls)
    assert [(one.step, one.copied) for one in found.checkpoints] == [(30, not back)] and found.damaged == ()
    assert restored_step(target) == 30 and store.in_condition(Condition.GOOD) == store.names()[:1]


def test_one_node_whose_checkpoints_are_all_damaged_does_not_begin_anew(tmp_path: Path) -> None:
    """Each node trains independently, with a separate folder of checkpoints."""
    source = make(tmp_path / "source")
    source.put(JOB_KEY, JobRecord(job_id="job-1", name="job", run="true").to_bytes())
    for node, step in (("worker-0", 10), ("worker-1", 20)):
        save(CheckpointStore(source, f"{FOLDER}/{node}"), step, [state(step)])
    (name,) = damage(source, f"{FOLDER}/worker-1")
    with pytest.raises(AllDamagedError, match=f"{FOLDER}/worker-1: every checkpoint is damaged[^\n]*\n  {name}: "):
        moved(source, make(tmp_path / "target"))


class Garbling(JobDir):
    """Job dir that corrupts the n-th read of each JSON file of a checkpoint."""

    def __init__(self, url: str, nth: int) -> None:
        super().__init__(url)
        self.nth = nth
        self.reads: Counter[str] = Counter()

    def get(self, key: str, most: int | None = None) -> bytes:
        self.reads[key] += 1
        data = super().get(key)
        is_turn = key.endswith(".json") and key.startswith(FOLDER) and self.reads[key] == self.nth
        return data.replace(b"a", b"b") if is_turn else data


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_corrupted_read_is_not_copied(source: JobDir, tmp_path: Path, nth: int) -> None:
    target = make(tmp_path / "target")
    assert moved(Garbling(source.url, nth), target).damaged == ()
    assert restored_step(target) == 30
    (name,) = CheckpointStore(target, FOLDER).names()
    for entry in target.entries(f"{FOLDER}/{name}"):
        assert target.get(entry.key) == source.get(entry.key)


def test_outputs_that_were_replaced_meanwhile_are_copied_again(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    moved(source, target)
    source.put("outputs/plots/loss.txt", b"0.4")  # same size
    moved(source, target)
    assert target.get("outputs/plots/loss.txt") == b"0.4"


def test_another_jobs_folder_is_refused(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    target.put(JOB_KEY, b"another's")
    with pytest.raises(JobDirError, match="target holds another job"):
        moved(source, target)
    assert target.list(FOLDER) == []


def test_code_that_was_copied_by_half_is_copied_again(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    target.put(code_key("0" * 64), b"half of")
    moved(source, target)
    assert target.get(code_key("0" * 64)) == source.get(code_key("0" * 64))


# -- cut off


class Killed(BaseException):
    """Kill of the copying process."""


class Failing(JobDir):
    """Job dir whose n-th write raises an error, before or after it takes effect."""

    def __init__(self, url: str, at: int, after: bool, error: BaseException) -> None:
        super().__init__(url)
        self.at, self.after, self.error = at, after, error
        self.writes = 0

    def _write(self, call: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise self.error
        result = call()
        if self.writes == self.at:
            raise self.error
        return result

    def put(self, key: str, data: bytes | Path) -> None:
        self._write(lambda: super(Failing, self).put(key, data))

    def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
        self._write(lambda: super(Failing, self).upload(key, pieces, size))

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._write(lambda: super(Failing, self).create(key, data)))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Killed(), JobDirError("the store is down")], ids=["killed", "failed"])
def test_cut_off_at_any_write_it_is_whole_or_none_and_goes_on(
    source: JobDir, tmp_path: Path, error: BaseException, after: bool
) -> None:
    whole = Failing(local_url(tmp_path / "whole"), 0, after, error)
    moved(source, whole)
    assert whole.writes >= 3 + 2 * 2 + 2 + 1  # code, agent, job.json; data and manifest of two ranks; rows; COMMIT
    for at in range(1, whole.writes + 1):
        folder = tmp_path / f"target-{at}"
        with pytest.raises(type(error)):
            moved(source, Failing(local_url(folder), at, after, error))
        target = make(folder)
        if CheckpointStore(target, FOLDER).committed():
            assert restored_step(target) == 30 and len(losses(target)) == 30
        again = Failing(local_url(folder), 0, after, error)
        assert [one.step for one in moved(source, again).checkpoints] == [30]
        assert again.writes <= whole.writes - at + 1 + (not after), "what is there is not copied again"
        assert restored_step(target) == 30 and losses(target) == losses(source)
        assert target.get("outputs/plots/loss.txt") == b"0.5"
        shutil.rmtree(folder)


def test_copying_stops_when_the_job_no_longer_needs_it(source: JobDir, tmp_path: Path) -> None:
    asked = 0

    def keep_going() -> bool:
        nonlocal asked
        asked += 1
        return asked < 5

    target = make(tmp_path / "target")
    with pytest.raises(InterruptedCopyError):
        moved(source, target, keep_going=keep_going)
    assert asked == 5 and CheckpointStore(target, FOLDER).committed() == []


def test_copying_a_large_object_uses_bounded_memory(tmp_path: Path) -> None:
    """Also if writing is slow."""
    size, read, taken = 40 * PART, 0, 0

    class Slow(JobDir):
        def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
            nonlocal taken
            for piece in pieces:
                taken += len(piece)
                assert read - taken <= (READS + 1) * PART

    def one(start: int, end: int) -> bytes:
        nonlocal read
        read += end - start
        return bytes(1) * (end - start)

    target = Slow(local_url(tmp_path / "target"))
    copier = Copier(target, target, lambda: True, lambda: None)
    with pytest.raises(JobDirError, match="writing failed"):  # nothing was written, so it cannot be made durable
        copier.stream("large", size, PART, one)
    assert taken == size


def test_only_a_few_of_many_moving_jobs_copy_at_once(tmp_path: Path) -> None:
    """A zone's Spot machines are reclaimed together: a hundred copies at a time would fill this computer's memory."""
    writing, release, lock = 0, threading.Event(), threading.Lock()

    class Slow(JobDir):
        def upload(self, key: str, pieces: Iterator[memoryview], size: int) -> None:
            nonlocal writing
            with lock:
                writing += 1
            release.wait(180)
            super().upload(key, pieces, size)

    target, wanted = Slow(local_url(tmp_path / "target")), True

    def copy(number: int) -> None:
        copier = Copier(target, target, lambda: wanted or number < STREAMS, lambda: None)
        copier.stream(str(number), 3, PART, lambda start, end: bytes(end - start))

    with ThreadPoolExecutor(STREAMS + 4) as pool:
        try:
            copies = [pool.submit(copy, number) for number in range(STREAMS)]
            until(lambda: writing == STREAMS)
            waiting = [pool.submit(copy, STREAMS + number) for number in range(4)]
            time.sleep(0.3)
            assert writing == STREAMS
            wanted = False
            for one in waiting:
                with pytest.raises(InterruptedCopyError):
                    one.result(timeout=180)
        finally:
            release.set()
    for one in copies:
        one.result()
    assert len(target.list("")) == STREAMS
    wanted = True
    copy(STREAMS)
    assert len(target.list("")) == STREAMS + 1


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 180
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_large_object_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source"), make(tmp_path / "target")
    source.put("outputs/model.bin", bytes(3 * PART + 1))
    left = [True, True, True, False]
    with pytest.raises(InterruptedCopyError):
        Copier(source, target, lambda: left.pop(0), lambda: None).copy(source.entries("outputs")[0])
    assert target.list("") == []
    Copier(source, target, lambda: True, lambda: None).copy(source.entries("outputs")[0])
    assert target.size("outputs/model.bin") == 3 * PART + 1


def test_a_commit_of_another_is_never_written_over(source: JobDir, tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    name = CheckpointStore(source, FOLDER).committed()[0]

    def intrude(_one: Transferred) -> None:
        target.put(f"{FOLDER}/{name}/COMMIT.json", json.dumps({}).encode())

    with pytest.raises(JobDirError, match="committed by another process"):
        moved(source, target, on_begin=intrude)
