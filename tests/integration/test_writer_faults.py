"""Disks and object stores that fail, stall and lie: the right result or a clear error, and room for the next save."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDirError, local_url
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.runtime.checkpoint.writer.client import SaveResult, finish_earlier
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.disk import mounted
from cloudgpu.tests.standins.staging import Training, open_store, start, verified_steps, verify

MB = 1 << 20


def in_flight(store: CheckpointStore) -> list[Name]:
    return [name for name in store.names() if not store.is_committed(name)]


# Disks


def test_a_full_disk_heals(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "12m") as disk:
        one = Training(local_url(disk.folder / "job"), size=3 * MB)
        assert one.save(1, keep=1).committed
        disk.fill()
        for step in range(2, 5):
            result = one.save(step, keep=1)
            assert (result.written, result.committed) == (False, False)
            assert "No space left" in (result.error or "")
            assert in_flight(one.store) == []
        assert verified_steps(one.store) == [1]
        disk.free()
        assert one.save(5, keep=1).committed
        one.client.close()


@pytest.mark.parametrize("keep", [3, 2])
def test_saving_goes_on_where_only_two_checkpoints_fit(
    keep: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "7m") as disk:
        url = local_url(disk.folder / "job")
        one = Training(url, size=3 * MB)
        for step in range(1, 7):
            result = one.save(step, keep=keep)
            assert result.committed, result.error
            assert verified_steps(one.store) == ([1] if step == 1 else [step, step - 1])
        assert caplog.text.count(f"no room for keep={keep} checkpoints") == 1
        one.client.close()


def test_the_last_whole_checkpoint_is_never_given_up_for_room(tmp_path: Path) -> None:
    """Two checkpoints fit, and the newer one is silently damaged: the older one must stay."""
    with mounted(tmp_path / "disk", "7m") as disk:
        one = Training(local_url(disk.folder / "job"), size=3 * MB)
        assert one.save(1).committed
        assert one.save(2).committed
        path = one.store.local_path(one.name(2), "rank-00000.bin")
        assert path
        with path.open("r+b") as file:
            file.seek(2 * MB)
            file.write(b"flipped")
        error = one.save(3).error or ""
        assert "No space left on device" in error
        assert "3.15 MB are needed, and" in error
        assert [name.step for name in one.store.committed()] == [2, 1]
        verify(one.store, one.name(1))
        one.client.close()


def test_nothing_is_removed_where_that_makes_not_enough_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "12m") as disk:
        one = Training(local_url(disk.folder / "job"), size=3 * MB)
        assert one.save(1).committed
        assert one.save(2).committed
        other = Training(local_url(disk.folder / "job"), size=11 * MB)
        assert "No space left" in (other.save(3).error or "")
        assert verified_steps(one.store) == [2, 1]
        for training in (one, other):
            training.client.close()


def test_damaged_ones_are_named_where_room_is_short(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "7m") as disk:
        one = Training(local_url(disk.folder / "job"), size=3 * MB)
        for step in (1, 2):
            assert one.save(step).committed
        one.store.mark_damaged(one.name(1), "a test")
        error = one.save(3).error or ""
        assert "1 damaged ones" not in error
        assert "1 damaged one, kept for you to look at, takes 3.15 MB: remove it" in error
        assert [name.step for name in one.store.names()] == [2, 1]
        one.client.close()


def test_two_ranks_on_a_disk_for_two_checkpoints(tmp_path: Path) -> None:
    """Each rank makes room when it finds none; the newest checkpoint stays."""
    with mounted(tmp_path / "disk", "15m") as disk:
        url = local_url(disk.folder / "job")
        ranks = [Training(url, rank=rank, world=2, size=3 * MB) for rank in range(2)]
        done = 0
        for step in range(1, 9):
            for rank in ranks:
                assert rank.stage(step)
            results = [rank.client.wait(60)[0] for rank in ranks]
            done += results[0].committed
            assert verified_steps(ranks[0].store)[-1] >= step - 2
        assert done == 8
        for rank in ranks:
            rank.client.close()


def test_leftovers_of_killed_runs_do_not_fill_the_disk(tmp_path: Path) -> None:
    """There is room for one checkpoint, one save and little more; each run is killed during a save."""
    with mounted(tmp_path / "disk", "10m") as disk:
        url = local_url(disk.folder / "job")
        for run in range(3):
            one = Training(url, size=3 * MB)
            if run == 0:
                assert one.save(run, keep=1).committed
            folder = disk.folder / "job" / "checkpoints" / str(Name(100 + run, 1, f"{run:012x}"))
            folder.mkdir()
            (folder / "rank-00000.bin").write_bytes(bytes(3 * MB))  # as a writer leaves it that dies with its machine
            result = one.save(200 + run, keep=1)
            assert result.committed, result.error
            one.client.close()
            assert finish_earlier(one.store, 0, 60)
        assert verified_steps(one.store) == [202]


def test_a_read_only_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "12m") as disk:
        one = Training(local_url(disk.folder / "job"), size=MB)
        assert one.save(1).committed
        assert finish_earlier(one.store, 0, 60)
        disk.set_writable(False)
        assert "Read-only file system" in (one.save(2).error or "")
        disk.set_writable(True)
        assert one.save(3).committed
        assert verified_steps(one.store) == [3, 1]
        one.client.close()


def test_a_deleted_job_dir_is_not_made_again(tmp_path: Path) -> None:
    one = Training(local_url(tmp_path / "job"), size=MB)
    assert one.save(1).committed
    assert finish_earlier(one.store, 0, 60)
    shutil.rmtree(tmp_path / "job")
    assert "has been deleted" in (one.save(2).error or "")
    assert not (tmp_path / "job").exists()
    one.client.close()


FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int broken(void) { return access(getenv("BROKEN_DISK"), F_OK) == 0; }
int fsync(int fd) {
    if (broken()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


def test_a_disk_that_fails_to_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO from fsync(2), as from a failing disk: written data may be lost, so nothing is committed."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT TESTED: there is no C compiler to make a failing fsync(2) with")
    library, broken = tmp_path / "failing.so", tmp_path / "broken"
    (tmp_path / "failing.c").write_text(FAILING)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "failing.c", "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("BROKEN_DISK", str(broken))
    one = Training(local_url(tmp_path / "job"), size=MB)
    assert one.save(1).committed
    broken.touch()
    assert "Input/output error" in (one.save(2).error or "")
    broken.unlink()
    assert in_flight(one.store) == []
    assert one.save(3).committed
    assert verified_steps(one.store) == [3, 1]
    one.client.close()


# Object stores


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def test_an_object_store_holds_the_same(bucket: s3.S3) -> None:
    one = Training(bucket.url, size=17 * MB + 3)
    for step in range(3):
        assert one.save(step, keep=2).committed
    assert finish_earlier(one.store, 0, 60)
    assert verified_steps(one.store) == [2, 1]
    assert {key.split("/")[2] for key in bucket.objects} == {str(one.name(1)), str(one.name(2))}
    assert bucket.uploads == {}
    one.client.close()


def test_a_store_that_is_overloaded_is_asked_again(bucket: s3.S3) -> None:
    one = Training(bucket.url, size=9 * MB)
    for step, kind in enumerate(["start", "part", "complete", "PUT", "GET", "HEAD", "list"], 1):
        fault = bucket.fail(kind, status=503, code="SlowDown", times=2)
        assert one.save(step).committed, kind
        assert fault.met == 2, kind
        verify(one.store, one.name(step))
    one.client.close()


def test_a_lost_acknowledgement_is_no_failure(bucket: s3.S3) -> None:
    """The store has done the request, but its answer is lost: the request is retried."""
    one = Training(bucket.url, size=9 * MB)
    for step, (kind, key) in enumerate([("part", ".bin"), ("PUT", ".json"), ("PUT", "COMMIT")], 1):
        fault = bucket.fail(kind, key, lose_answer=True, times=1)
        assert one.save(step).committed, key
        assert fault.met == 1, key
        assert bucket.count("PUT", f"{one.name(step)}/COMMIT") == (2 if key == "COMMIT" else 1)
        assert verified_steps(one.store)[0] == step
    one.client.close()


def test_a_lost_acknowledgement_of_a_whole_upload(bucket: s3.S3) -> None:
    """A retry finds no such upload: this save may fail, but the next one works, and nothing is left."""
    one = Training(bucket.url, size=9 * MB)
    bucket.fail("complete", lose_answer=True, times=1)
    one.save(1)
    assert one.save(2, keep=1).committed
    assert finish_earlier(one.store, 0, 60)
    assert verified_steps(one.store) == [2]
    assert len(bucket.objects) == 3
    one.client.close()


def test_a_conditional_write_in_conflict(bucket: s3.S3) -> None:
    """S3 answers this while another request for the key is in progress; nothing was written."""
    one = Training(bucket.url, size=MB)
    for step, (status, code) in enumerate([(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")], 1):
        fault = bucket.fail("PUT", "COMMIT", status=status, code=code, times=1)
        assert one.save(step).committed, code
        assert fault.met == 1, code
        assert verified_steps(one.store)[0] == step
    one.client.close()


def test_a_store_that_refuses_fails_the_save_with_its_reason(bucket: s3.S3) -> None:
    one = Training(bucket.url, size=9 * MB)
    fault = bucket.fail("part", status=403, code="AccessDenied")
    assert "AccessDenied" in (one.save(1).error or "")
    fault.times = 0
    assert one.save(2).committed
    assert [key for key in bucket.objects if str(one.name(1)) in key] == []
    one.client.close()


def test_leftovers_that_cannot_be_removed_block_no_save(bucket: s3.S3) -> None:
    """A leftover of another owner, for example: it takes room, but does no other harm."""
    left = Name(1, 1, "b" * 12)
    bucket.objects[f"job/checkpoints/{left}/rank-00000.bin"] = b"half"
    fault = bucket.fail("delete", status=403, code="AccessDenied")
    one = Training(bucket.url, size=MB)
    for step in (2, 3, 4):
        assert one.save(step, keep=1).committed
    assert finish_earlier(one.store, 0, 60)
    assert fault.met
    fault.times = 0
    assert one.save(5, keep=1).committed
    assert finish_earlier(one.store, 0, 60)
    assert [name.step for name in one.store.names()] == [5]
    one.client.close()


def test_a_long_error_of_the_store_is_shortened(bucket: s3.S3) -> None:
    """A proxy's HTML page, for example, is longer than a message to the trainer may be."""
    one = Training(bucket.url, size=MB)
    bucket.fail("PUT", status=403, code="x" * 300_000, times=1)
    error = one.save(1).error or ""
    assert "403" in error
    assert len(error) < 10_000
    assert one.save(2).committed
    one.client.close()


def test_data_staged_by_a_killed_trainer_is_retried(bucket: s3.S3) -> None:
    fault = bucket.fail("start", status=500, code="InternalError", times=6)  # more than the client retries
    process = start(bucket.url, 0, 1, 1, 9 * MB)
    assert process.stdout
    assert next(line for line in process.stdout if line.startswith("staged"))
    process.kill()
    process.wait()
    store = open_store(bucket.url)
    assert finish_earlier(store, 0, 60)
    assert fault.met == 6
    assert verified_steps(store) == [0]


def test_a_hung_store_does_not_block_the_training(bucket: s3.S3) -> None:
    one = Training(bucket.url, size=9 * MB)
    assert one.save(1).committed
    fault = bucket.fail("part", hang=True)
    assert one.stage(2)
    assert one.stage(3)
    for _ in range(1000):
        assert one.client.poll() == []
        assert one.client.free_slot() is None
        assert one.stage(4) is None
    while not fault.met:
        time.sleep(0.01)
    fault.times = 0
    bucket.over.set()  # the connections break, and the client retries
    assert [result.committed for result in one.client.wait(180)] == [True, True]
    assert verified_steps(one.store) == [3, 2, 1]
    one.client.close()


def test_a_slow_store_costs_no_memory(bucket: s3.S3) -> None:
    """Sending one part takes long: data that is not sent yet stays in the slot, without a copy."""
    size = 128 * MB
    one = Training(bucket.url, size=size)
    assert one.client._link and one.client._link.process
    status = Path(f"/proc/{one.client._link.process.pid}/status")
    bucket.fail("part", delay=0.1)
    assert one.stage(1)
    peak = 0
    results: list[SaveResult] = []
    while not results:
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        peak = max(peak, int(lines["RssAnon"].split()[0]) << 10)
        results = one.client.wait(0.02)
    assert results[0].committed
    assert peak < size * 0.6
    one.client.close()


def test_a_deadline_shorter_than_the_write(bucket: s3.S3) -> None:
    one = Training(bucket.url, size=9 * MB)
    bucket.fail("part", delay=0.5)
    one.stage(1)
    assert one.client.wait(0.05) == []
    one.client.close()
    assert finish_earlier(one.store, 0, 60)
    assert verified_steps(one.store) == [1]


# Races


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_one_of_sixteen_commits_wins(where: str, tmp_path: Path, bucket: s3.S3) -> None:
    url = local_url(tmp_path) if where == "folder" else bucket.url
    for round_ in range(5):
        name = Name(round_, 1, f"{round_:012x}")
        open_store(url).write_rank(RankManifest(str(name), 0, 1, round_, 3, [], None), memoryview(b"abc"))
        won: list[int] = []
        barrier = threading.Barrier(16)

        def race(number: int, name: Name = name, won: list[int] = won, barrier: threading.Barrier = barrier) -> None:
            store = open_store(url)
            digests = store.digests(name, 1)
            barrier.wait()
            try:
                store.commit(name, digests, finished=False, time=float(number))  # each has different content
            except JobDirError as error:
                assert "committed by another process" in str(error)
            else:
                won.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert open_store(url).read_commit(name).time == won[0]
