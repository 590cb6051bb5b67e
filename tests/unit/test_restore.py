"""Restoring checkpoints: which one, from which storage, and into which memory."""

from __future__ import annotations

import gc
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from cloudgpu.protocol.checkpoint_names import Name  # noqa: E402
from cloudgpu.protocol.jobdir import JobDir, JobDirError  # noqa: E402
from cloudgpu.runtime.checkpoint.errors import CheckpointError, UnusableError  # noqa: E402
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest, chunk_hashes  # noqa: E402
from cloudgpu.runtime.checkpoint.restore import verified_reads  # noqa: E402
from cloudgpu.runtime.checkpoint.restore.verified_reads import LocalFile, Memory, Target, read_verified  # noqa: E402
from cloudgpu.runtime.checkpoint.store import CheckpointStore, Commit  # noqa: E402
from cloudgpu.tests.standins import s3  # noqa: E402
from cloudgpu.tests.standins.checkpoints import local_store, restore_all, save, stage  # noqa: E402


def snapshot(step: int, rank: int = 0) -> dict[str, Any]:
    return {
        "step": step,
        "rank": rank,
        "random": {"python": [3, bytes(5000), None], "generators": []},
        "objects": {"model": {"w": torch.full((300,), float(step)), "b": torch.tensor(step * 10 + rank)}},
    }


def restored(store: Any, world: int = 1, **options: Any) -> list[Any]:
    """Return (step, value of `b`) of what each rank restored."""
    found = restore_all(store, world, **options)
    return [one and (one.snapshot["step"], one.snapshot["objects"]["model"]["b"].item()) for one in found]


# Choice of the checkpoint


def test_nothing_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert restored(local_store(tmp_path), 2) == [None, None]
    assert not caplog.text


def test_the_newest_for_each_rank_its_own(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    for step in (3, 6):
        save(store, step, [snapshot(step, rank) for rank in range(3)])
    assert restored(store, 3) == [(6, 60), (6, 61), (6, 62)]


def test_one_rank_that_cannot_is_enough_for_all(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    for step in (3, 6):
        name = save(store, step, [snapshot(step, rank) for rank in range(3)])
    path = store.local_path(name, "rank-00002.bin")
    assert path
    os.truncate(path, 8)
    assert restored(store, 3) == [(3, 30), (3, 31), (3, 32)]


def test_unreadable_for_now_is_passed_over_unmarked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = local_store(tmp_path)
    save(store, 3, [snapshot(3)])
    name = save(store, 6, [snapshot(6)])
    data = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    content = data.read_bytes()
    data.unlink()
    data.symlink_to(data)  # ELOOP: unreadable also for root, who has all permissions
    with caplog.at_level(logging.INFO):
        assert restored(store) == [(3, 30)]
    assert "passed over (rank 0): " in caplog.text
    assert not (data.parent / "DAMAGED.json").exists()
    data.unlink()
    data.write_bytes(content)
    assert restored(store) == [(6, 60)]


def test_an_unreadable_commit_hides_no_older_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = local_store(tmp_path)
    save(store, 3, [snapshot(3)])
    name = save(store, 6, [snapshot(6)])
    commit = tmp_path / "checkpoints" / str(name) / "COMMIT.json"
    content = commit.read_bytes()
    commit.unlink()
    commit.symlink_to(commit)
    assert restored(store) == [(3, 30)]
    assert f"checkpoint {name} is passed over (rank 0): " in caplog.text
    assert not commit.with_name("DAMAGED.json").exists()
    commit.unlink()
    commit.write_bytes(content)
    assert restored(store) == [(6, 60)]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"name":' * 50_000, b" " * (65 << 20), b"\xff" * 100, b'{"manifests": 7}', b"null"]
)
def test_whatever_lies_in_the_place_of_a_commit_hides_no_older_one(content: bytes, tmp_path: Path) -> None:
    store = local_store(tmp_path)
    save(store, 3, [snapshot(3)])
    path = store.local_path(save(store, 6, [snapshot(6)]), "COMMIT.json")
    assert path
    path.write_bytes(content)
    assert restored(store) == [(3, 30)]


def test_if_nothing_else_is_left_it_is_an_error(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    name = save(store, 6, [snapshot(6, rank) for rank in range(2)])
    data = tmp_path / "checkpoints" / str(name) / "rank-00001.bin"
    data.unlink()
    data.symlink_to(data)
    with pytest.raises(CheckpointError, match=f"no checkpoint could be restored \\({name}\\)"):
        restored(store, 2)


def test_another_format_is_no_damage(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    name = save(store, 6, [snapshot(6)])
    commit = tmp_path / "checkpoints" / str(name) / "COMMIT.json"
    commit.write_bytes(commit.read_bytes().replace(b"checkpoint/2", b"checkpoint/9"))
    with pytest.raises(CheckpointError, match="no checkpoint could be restored"):
        restored(store)
    assert not commit.with_name("DAMAGED.json").exists()


def test_what_is_removed_meanwhile_leaves_nothing_behind(tmp_path: Path) -> None:
    """Retention deletes a checkpoint after the listing. It is not marked as damaged: the mark would stay for ever."""

    class Vanishing(CheckpointStore):
        def committed(self) -> list[Name]:
            names = super().committed()
            if len(names) == 2:
                self.discard(names[0])
            return names

    store = local_store(tmp_path)
    for step in (3, 6):
        save(store, step, [snapshot(step)])
    assert restored(Vanishing(store.job_dir, store.prefix)) == [(3, 30)]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_what_replaces_all_that_was_listed_is_found(tmp_path: Path) -> None:
    """An earlier process commits its last save, and retention deletes the others while a new process reads them."""

    class Overtaken(CheckpointStore):
        overtaken = False

        def read_commit(self, name: Name) -> Commit:
            if not self.overtaken:
                self.overtaken = True
                self.retain(save(self, 9, [snapshot(9)]), keep=1)
            return super().read_commit(name)

    store = local_store(tmp_path)
    save(store, 3, [snapshot(3)])
    save(store, 6, [snapshot(6)])
    assert restored(Overtaken(store.job_dir, store.prefix)) == [(9, 90)]


# Storage


def test_a_surviving_slot_is_read_instead_of_the_store(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    name = save(store, 6, [snapshot(6, rank) for rank in range(2)])
    slots = [stage(name, rank, 2, snapshot(6, rank)) for rank in range(2)]
    for rank in range(2):
        os.truncate(tmp_path / "checkpoints" / str(name) / f"rank-{rank:05d}.bin", 0)

    def cached(rank: int) -> Any:
        manifest, memory = slots[rank]
        return lambda wanted: (manifest.to_bytes(), memory) if wanted == name else None

    assert restored(store, 2, cached=cached) == [(6, 60), (6, 61)]


def test_a_slot_that_was_being_overwritten_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = local_store(tmp_path)
    name = save(store, 6, [snapshot(6)])
    manifest, memory = stage(name, 0, 1, snapshot(6))
    memory[70] ^= 1
    with caplog.at_level(logging.INFO):
        assert restored(store, cached=lambda _rank: lambda _name: (manifest.to_bytes(), memory)) == [(6, 60)]
    assert "is read from the store, not from this machine's memory" in caplog.text
    assert not (tmp_path / "checkpoints" / str(name) / "DAMAGED.json").exists()


def test_a_slot_that_is_too_short_is_not_used(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    save(store, 6, [snapshot(6)])
    assert restored(store, cached=lambda _rank: lambda _name: (b"", memoryview(bytearray(8)))) == [(6, 60)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_from_an_object_store_by_ranges(bucket: s3.S3) -> None:
    store = CheckpointStore(JobDir(bucket.url), "checkpoints")
    big = {"big": torch.arange(5_000_000, dtype=torch.float32)}  # 20 MB: three chunks
    name = save(store, 6, [snapshot(6) | {"objects": {"model": snapshot(6)["objects"]["model"] | big}}])
    before = bucket.count("GET", "rank-00000.bin")
    (found,) = restore_all(store, 1)
    assert found
    assert torch.equal(found.snapshot["objects"]["model"]["big"], big["big"])
    assert bucket.count("GET", "rank-00000.bin") - before == 3
    key = next(one for one in bucket.objects if one.endswith(f"{name}/rank-00000.bin"))
    bucket.objects[key] = bucket.objects[key][:-1]
    with pytest.raises(CheckpointError, match=rf"every checkpoint is damaged[^\n]*\n  {name}: rank-00000.bin has"):
        restored(store)
    assert any(one.endswith(f"{name}/DAMAGED.json") for one in bucket.objects)


@pytest.mark.parametrize("file", ["rank-00000.bin", "rank-00000.json", "COMMIT.json"])
def test_one_bad_answer_condemns_nothing(file: str, bucket: s3.S3, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(JobDir(bucket.url), "checkpoints")
    save(store, 3, [snapshot(3)])
    name = save(store, 6, [snapshot(6)])
    fault = bucket.fail("GET", f"{name}/{file}", garble=True, times=1)
    with caplog.at_level(logging.INFO):
        assert restored(store) == [(6, 60)]
    assert (fault.met, caplog.text) == (1, "")
    bucket.fail("GET", f"{name}/{file}", garble=True)
    assert restored(store) == [(3, 30)]
    assert sum(key.endswith("DAMAGED.json") for key in bucket.objects) == 1


def test_one_bad_look_at_the_size_condemns_nothing(bucket: s3.S3) -> None:
    store = CheckpointStore(JobDir(bucket.url), "checkpoints")
    save(store, 3, [snapshot(3)])
    name = save(store, 6, [snapshot(6)])
    bucket.fail("HEAD", f"{name}/rank-00000.bin", status=404, code="NoSuchKey", times=1)
    assert restored(store) == [(6, 60)]


def test_an_object_store_that_fails_marks_nothing(bucket: s3.S3) -> None:
    store = CheckpointStore(JobDir(bucket.url), "checkpoints")
    save(store, 3, [snapshot(3)])
    name = save(store, 6, [snapshot(6)])
    bucket.fail("GET", f"{name}/rank-00000.bin", status=403, code="AccessDenied")
    assert restored(store) == [(3, 30)]
    assert not any(key.endswith("DAMAGED.json") for key in bucket.objects)


# Target memory


def test_restored_tensors_have_separate_memory(tmp_path: Path) -> None:
    """The optimizer keeps the tensors that it gets: they must outlive the file and any change of it."""
    store = local_store(tmp_path)
    weight = torch.nn.Parameter(torch.arange(1000.0))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(1000)
    optimizer.step()
    name = save(store, 1, [{"step": 1, "objects": {"optimizer": optimizer.state_dict()}}])
    (found,) = restore_all(store, 1)
    assert found
    other = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1000))])
    other.load_state_dict(found.snapshot["objects"]["optimizer"])
    del found
    data = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    data.write_bytes(os.urandom(data.stat().st_size))
    gc.collect()
    for key, value in optimizer.state_dict()["state"][0].items():
        assert torch.equal(value, other.state_dict()["state"][0][key])


def test_tied_weights_stay_tied_and_arrays_are_arrays(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tied = torch.ones(5)
    state = {"a": tied, "b": tied, "text": np.array(["x", "yz"]), "empty": torch.empty(0, 3), "n": np.float32(3)}
    save(store, 1, [{"step": 1, "objects": {"model": state}}])
    (found,) = restore_all(store, 1)
    assert found
    got = found.snapshot["objects"]["model"]
    assert got["a"] is got["b"]
    assert got["text"].tolist() == ["x", "yz"]
    assert got["empty"].shape == (0, 3)
    assert isinstance(got["n"], np.float32)


# Another number of ranks, without torch.distributed


def test_more_and_fewer_ranks_take_the_first_ones_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from cloudgpu.runtime.checkpoint.data import random_state

    store = local_store(tmp_path)
    random.seed(5)
    state = random_state.capture()
    expected = random.random()
    save(store, 6, [snapshot(6, rank) | {"random": state} for rank in range(2)])
    with caplog.at_level(logging.INFO):
        found = restore_all(store, 3)
    assert "saved by 2 ranks, this run has 3: rank 0 goes on with its random numbers" in caplog.text
    drawn = []
    for one in found:
        assert one
        assert one.snapshot["objects"]["model"]["b"].item() == 60
        random_state.restore(one.snapshot["random"])
        drawn.append((random.random(), torch.rand(1).item(), np.random.rand()))
    assert drawn[0][0] == expected
    for values in zip(*drawn, strict=True):
        assert len(set(values)) == 3
    again = restore_all(store, 3)[2]
    assert again
    random_state.restore(again.snapshot["random"])
    assert (random.random(), torch.rand(1).item(), np.random.rand()) == drawn[2]


def test_what_one_rank_saved_for_all_is_found(tmp_path: Path) -> None:
    """Replicated state is written by one rank only. Every rank restores it, and other state from its own file."""
    store, name = local_store(tmp_path), Name.new(6, 1, 1)
    for rank in range(2):
        manifest, data = stage(name, rank, 2, snapshot(6, rank))
        kept = [piece for number, piece in enumerate(manifest.pieces) if number % 2 == rank]
        manifest.pieces = kept
        store.write_rank(manifest, data)
    store.commit(name, store.digests(name, 2), finished=False, time=0.0)
    ((w0, b0), (w1, b1)) = [
        (one.snapshot["objects"]["model"]["w"], one.snapshot["objects"]["model"]["b"].item())
        for one in restore_all(store, 2)
        if one
    ]
    assert torch.equal(w0, w1)
    assert b0 == b1 == 61  # only rank 1 has saved `b`
    assert restored(store, 1) == [(6, 61)]


def test_state_that_no_rank_saved_is_reported(tmp_path: Path) -> None:
    store, name = local_store(tmp_path), Name.new(6, 1, 1)
    manifest, data = stage(name, 0, 1, snapshot(6))
    manifest.pieces = manifest.pieces[:1]
    store.write_rank(manifest, data)
    store.commit(name, store.digests(name, 1), finished=False, time=0.0)
    with pytest.raises(CheckpointError, match="no checkpoint could be restored"):
        restored(store)


# Reading


@pytest.mark.parametrize("source", ["file", "memory"])
def test_any_targets_of_a_file(source: str, tmp_path: Path) -> None:
    draw = random.Random(3)
    content = draw.randbytes(10_000)
    path = tmp_path / "rank-00000.bin"
    path.write_bytes(content)
    for _ in range(50):
        size = draw.choice([64, 256, 1000, 4096, 20_000])
        manifest = RankManifest("", 0, 1, 0, len(content), [], None, chunk_hashes(content, size), size)
        cuts = sorted(draw.sample(range(len(content)), 2 * draw.randrange(1, 20)))
        targets = [
            Target(start, memoryview(bytearray(end - start))) for start, end in zip(cuts[::2], cuts[1::2], strict=True)
        ]
        data = LocalFile(path, len(content)) if source == "file" else Memory(memoryview(bytearray(content)))
        read_verified(data, manifest, draw.sample(targets, len(targets)))
        data.close()
        assert all(bytes(target.view) == content[target.at : target.end] for target in targets)


def test_only_touched_chunks_are_read_and_each_is_verified_whole(tmp_path: Path) -> None:
    content = os.urandom(1000)
    manifest = RankManifest("", 0, 1, 0, 1000, [], None, chunk_hashes(content, 100), 100)
    memory = bytearray(content)
    memory[250] ^= 1
    view = memoryview(bytearray(30))
    read_verified(Memory(memoryview(memory)), manifest, [Target(180, view[:10]), Target(310, view[10:])])
    assert bytes(view) == content[180:190] + content[310:330]
    with pytest.raises(UnusableError, match="differs from what was saved, from byte 200"):
        read_verified(Memory(memoryview(memory)), manifest, [Target(290, view[:5])])


def test_reads_that_come_in_parts(tmp_path: Path) -> None:
    """A read of more buffers than one call takes, and a file that ends too early for the last buffer."""
    content = os.urandom(verified_reads._SCATTERED * 3)
    path = tmp_path / "rank-00000.bin"
    path.write_bytes(content)
    data = LocalFile(path, len(content))
    views = [memoryview(bytearray(1)) for _ in content]
    data.read(0, views)
    assert b"".join(views) == content
    os.truncate(path, 100)
    with pytest.raises(UnusableError, match="ends at byte 100"):
        data.read(0, views)
    data.close()


def test_an_error_of_one_rank_leaves_none_waiting(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    save(store, 6, [snapshot(6, rank) for rank in range(2)])

    def cached(rank: int) -> Any:
        def ask(_name: Name) -> None:
            if rank == 1:
                raise MemoryError("no room")

        return ask

    with pytest.raises((MemoryError, CheckpointError), match="no room"):
        restored(store, 2, cached=cached)


def test_a_store_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    class Gone(CheckpointStore):
        def committed(self) -> list[Name]:
            raise JobDirError("the network is down")

    store = local_store(tmp_path)
    with pytest.raises(CheckpointError, match="checkpoints cannot be read: the network is down"):
        restored(Gone(store.job_dir, store.prefix), 2)
