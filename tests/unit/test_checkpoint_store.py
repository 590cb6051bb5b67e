"""The folder of checkpoints: reads return what was written, and a good checkpoint is never removed."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDir, JobDirError, MissingError, local_url
from cloudgpu.protocol.metrics import Segment, closed_key, find_segment, open_key
from cloudgpu.runtime.checkpoint.errors import FencedError, UnusableError
from cloudgpu.runtime.checkpoint.format.manifest import CHUNK, Piece, RankManifest, chunk_hashes
from cloudgpu.runtime.checkpoint.store import CheckpointStore

CONTENT = bytes(range(256)) * 40


def open_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(JobDir(local_url(folder)), "checkpoints")


def write(store: CheckpointStore, name: Name, rank: int = 0, world: int = 1, data: bytes = CONTENT) -> bytes:
    manifest = RankManifest(str(name), rank, world, name.step, len(data), [], {"step": name.step})
    return store.write_rank(manifest, memoryview(data))


def save(store: CheckpointStore, step: int, attempt: int = 1, world: int = 1) -> Name:
    name = Name(step, attempt, f"{step:012x}")
    for rank in range(world):
        write(store, name, rank, world)
    store.commit(name, store.digests(name, world), finished=False, time=0.0)
    return name


def steps(store: CheckpointStore) -> list[int]:
    return [name.step for name in store.committed()]


def test_names_sort_by_attempt_first() -> None:
    names = [Name(500, 1, "0" * 12), Name(120, 2, "0" * 12), Name(120, 2, "0" * 11 + "1"), Name(130, 2, "0" * 12)]
    assert [name.age for name in names] == sorted(name.age for name in names)
    assert [Name.parse(str(name)) for name in names] == names
    assert Name.of_run(7, 1, 0x1234F, "deadbeef").nonce == "234fdeadbeef"
    assert Name.new(7, 1, 1) != Name.new(7, 1, 1)
    for text in ("7-1-000000000000", "00000007-0001-00000000000G", "00000007-0001-000000000000x", "fences", ""):
        assert Name.parse(text) is None


# Writing


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_a_part_is_what_was_given(size: int, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name, data = Name(1, 1, "0" * 12), bytes(range(251)) * (size // 251 + 1)
    manifest = RankManifest.from_bytes(write(store, name, data=data[:size]))
    assert manifest.chunks == chunk_hashes(data[:size])
    assert store.get(name, "rank-00000.bin") == data[:size]
    assert store.file_size(name, "rank-00000.bin") == size
    assert store.get(name, "rank-00000.json") == manifest.to_bytes()
    path = store.local_path(name, "rank-00000.bin")
    assert path and path.stat().st_size == size
    assert sorted(path.name for path in path.parent.iterdir()) == ["rank-00000.bin", "rank-00000.json"]
    with pytest.raises(MissingError):
        store.file_size(name, "rank-00001.bin")


def test_what_a_killed_writer_left_of_a_part_is_no_part_of_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = Name(1, 1, "0" * 12)
    folder = tmp_path / "checkpoints" / str(name)
    folder.mkdir(parents=True)
    (folder / "rank-00000.bin").write_bytes(bytes(100_000))
    (folder / "rank-00000.json#77").write_bytes(b"{")
    with (folder / "rank-00000.bin").open("r+b") as of_the_killed:
        write(store, name)
        of_the_killed.write(b"what a writer that is not quite dead yet writes goes into its own file")
    assert store.get(name, "rank-00000.bin") == CONTENT
    assert store.ranks_written(name) == {0}


def test_a_part_written_again_is_left_alone(tmp_path: Path) -> None:
    """Its first writer was killed after writing the manifest; other ranks may have read it and committed."""
    store = open_store(tmp_path)
    name = save(store, 1)
    path = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    before = path.stat().st_ino
    assert write(store, name) == store.get(name, "rank-00000.json")
    assert path.stat().st_ino == before
    with pytest.raises(JobDirError, match="is there already, and of another content"):
        write(store, name, data=b"other")
    store.discard_rank(name, 0)  # cleanup by a failed save: no effect, because the checkpoint is committed
    assert path.exists()


def test_a_part_that_did_not_arrive_whole_is_not_committed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = Name(10, 1, "0" * 12)
    write(store, name)
    path = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    path.write_bytes(CONTENT[:100])
    with pytest.raises(JobDirError, match="has 100 bytes, 10240 were written"):
        store.digests(name, 1)
    path.unlink()
    with pytest.raises(JobDirError, match="has None bytes"):
        store.digests(name, 1)
    with pytest.raises(JobDirError):
        store.digests(name, 2)
    assert steps(store) == []


def test_two_commits_of_one_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = save(store, 10)
    with pytest.raises(JobDirError, match="committed by another process"):
        store.commit(name, store.digests(name, 1), finished=True, time=0.0)
    store.commit(
        name, store.digests(name, 1), finished=False, time=0.0
    )  # a retry of the same commit: the first response was lost


def test_clocks_do_not_matter(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for step, time in ((1, 5000.0), (2, 1400.0), (3, 8600.0)):
        name = Name(step, 1, "0" * 12)
        write(store, name)
        store.commit(name, store.digests(name, 1), finished=False, time=time)
    store.retain(Name(3, 1, "0" * 12), keep=2)
    assert steps(store) == [3, 2]


def test_metrics_go_where_their_reader_looks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    old, new = save(store, 1), save(store, 2)
    for name, closed in ((old, True), (new, False)):
        store.put_metrics(Segment(str(name), None, closed, [b'{"step": 1, "time": 0, "values": {}}']).to_bytes())
    folder = tmp_path / "checkpoints"
    assert (folder / closed_key(str(old))).exists()
    assert (folder / open_key(str(new))).exists()
    store.retain(new, keep=1)
    job_dir = JobDir(local_url(folder))
    assert find_segment(job_dir.find, str(old)) and find_segment(job_dir.find, str(new))
    store.discard_failed(old)
    assert find_segment(job_dir.find, str(old)) is None
    with pytest.raises(ValueError, match="Expecting value"):
        store.put_metrics(b"no segment")


def test_the_documented_reader_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    store, name = open_store(tmp_path), Name(5, 1, "0" * 12)
    matrix, scalar = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.tensor(7, dtype=torch.int64)
    data = bytearray(204)
    data[:12] = matrix.view(torch.uint8).numpy().tobytes()
    data[64:72] = scalar.numpy().tobytes()
    data[192:] = data[:12]
    pieces = [
        Piece("objects/model/weight", "bfloat16", (2, 3), 0),
        Piece("objects/step", "int64", (), 64),
        Piece("objects/nothing", "float32", (0, 4), 128),
        Piece("objects/transposed", "bfloat16", (3, 2), 192, strides=(1, 3)),
    ]
    tree = {"step": 5}
    store.write_rank(RankManifest(str(name), 0, 1, 5, len(data), pieces, tree), memoryview(data))
    store.commit(name, store.digests(name, 1), finished=False, time=0.0)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "checkpoint-format.md").read_text()
    code = textwrap.dedent(page[page.index("    import hashlib, json") :])
    found: dict[str, Any] = {}
    exec(code, found)
    tensors, read = found["read"](tmp_path / "checkpoints" / str(name))
    assert read == tree
    assert torch.equal(tensors["objects/model/weight"], matrix)
    assert torch.equal(tensors["objects/step"], scalar)
    assert tensors["objects/nothing"].shape == (0, 4)
    assert torch.equal(tensors["objects/transposed"], matrix.T)
    flip(tmp_path / "checkpoints" / str(name) / "rank-00000.bin")
    with pytest.raises(AssertionError):
        found["read"](tmp_path / "checkpoints" / str(name))


# COMMIT.json


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def other(path: Path) -> None:
    """Return the same file of the older checkpoint."""
    shutil.copy(next(path.parent.parent.glob("00000010-*")) / path.name, path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit flip": flip,
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "not text": lambda path: path.write_bytes(b"\xff\x00{"),
    "json, but no object": lambda path: path.write_bytes(b"[[1]]"),
    "fields of other types": lambda path: path.write_bytes(json.dumps({"name": 1, "manifests": 2}).encode()),
    "swapped": other,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_commit_is_found(kind: str, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 10)
    name = save(store, 20)
    assert store.read_commit(name).name == str(name)
    DAMAGE[kind](tmp_path / "checkpoints" / str(name) / "COMMIT.json")
    with pytest.raises(UnusableError) as caught:
        store.read_commit(name)
    assert caught.value.damaged


def test_another_format_is_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = save(store, 20)
    path = tmp_path / "checkpoints" / str(name) / "COMMIT.json"
    path.write_text(path.read_text().replace("cloudgpu-checkpoint/2", "cloudgpu-checkpoint/9"))
    with pytest.raises(UnusableError, match="another format") as caught:
        store.read_commit(name)
    assert not caught.value.damaged


def test_what_cannot_be_read_for_now_is_no_damage(tmp_path: Path) -> None:
    """A symbolic link to itself cannot be read, like a file with an I/O error."""
    store = open_store(tmp_path)
    path = tmp_path / "checkpoints" / str(name := save(store, 20)) / "COMMIT.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(UnusableError) as caught:
        store.read_commit(name)
    assert not caught.value.damaged


def test_the_damaged_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 10)
    store.mark_damaged(save(store, 20), "a test")
    assert steps(store) == [10]
    assert [name.step for name in store.names()] == [20, 10]


# Attempts


def test_the_newest_is_of_the_newest_attempt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 100, attempt=1)
    save(store, 500, attempt=1)  # by a stale process, before the fence or right after it
    save(store, 120, attempt=2)
    assert steps(store) == [120, 500, 100]


def test_a_zombie_is_fenced_off(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.claim(None) == 1
    save(store, 10)
    assert store.claim(None) == 2
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        save(store, 20, attempt=1)
    assert steps(store) == [10]
    store.clean(2)  # removes what the stale process wrote and could not commit
    assert [p.name[:8] for p in (tmp_path / "checkpoints").glob("0*")] == ["00000010"]
    assert store.claim(7) == 7
    assert store.claim(7) == 7  # a program that one attempt started twice
    assert store.newest_attempt() == 7


def test_attempts_go_on_from_what_is_there(tmp_path: Path) -> None:
    """The number must also increase if the fences are lost, for instance because only the checkpoints were copied."""
    store = open_store(tmp_path)
    save(store, 10, attempt=4)
    assert store.claim(None) == 5


# Removing


def test_foreign_things_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    store = open_store(tmp_path)
    save(store, 10)
    (folder / "notes.txt").write_text("mine")
    (folder / "99999999-0001-zzzzzzzzzzzz").mkdir()
    (folder / "99999999-0009-000000000000").mkdir()  # never committed
    (folder / "epoch=3.ckpt").mkdir()
    assert steps(store) == [10]
    store.clean(attempt=9)
    assert sorted(p.name for p in folder.iterdir()) == [
        "00000010-0001-00000000000a",
        "99999999-0001-zzzzzzzzzzzz",
        "epoch=3.ckpt",
        "notes.txt",
    ]


def test_half_written_leftovers_are_removed(tmp_path: Path) -> None:
    """A killed writer leaves temporary files that listings omit."""
    store = open_store(tmp_path)
    save(store, 10)
    torn = tmp_path / "checkpoints" / "00000020-0001-000000000000"
    torn.mkdir()
    (torn / "rank-00000.json#1").write_bytes(b"half")
    store.clean(attempt=2)
    assert not torn.exists()
    assert steps(store) == [10]


def test_retention(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    names = [save(store, step) for step in (10, 20, 30, 40)]
    store.retain(names[-1], keep=2)
    assert steps(store) == [40, 30]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # no empty folders are left
    store.retain(names[-1], keep=1)
    assert steps(store) == [40]


def test_retention_neither_counts_nor_removes_the_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    names = [save(store, step) for step in (10, 20, 30)]
    store.mark_damaged(names[2], "a test")
    store.retain(save(store, 40), keep=2)
    assert steps(store) == [40, 20]
    store.retain(save(store, 50), keep=2)
    assert steps(store) == [50, 40]
    assert sorted(p.name[:8] for p in (tmp_path / "checkpoints").iterdir()) == ["00000030", "00000040", "00000050"]


def test_what_cannot_be_looked_at_stops_no_retention(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = tmp_path / "checkpoints" / str(save(store, 10)) / "COMMIT.json"
    path.unlink()
    path.symlink_to(path)  # a link to itself cannot be opened, like a file without read permission
    for step in (20, 30, 40):
        store.retain(save(store, step), keep=2)
    assert steps(store) == [40, 30, 10]
    with pytest.raises(JobDirError, match="Too many levels of symbolic links"):
        store.clean(attempt=2)
    assert steps(store) == [40, 30, 10]


def test_retention_after_going_back_behind_a_damaged_one(tmp_path: Path) -> None:
    """A restarted run of the same attempt trains on from an older step: it must not fill the disk meanwhile."""
    store = open_store(tmp_path)
    save(store, 10)
    store.mark_damaged(save(store, 90), "a test")
    for step in (20, 30, 40):
        store.retain(save(store, step), keep=2)
    assert steps(store) == [40, 30]


@pytest.mark.parametrize("file", ["rank-00000.bin", "rank-00001.json", "COMMIT.json"])
def test_nothing_is_given_up_for_what_does_not_read_back(file: str, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    names = [save(store, step, world=2) for step in (10, 20)]
    path = tmp_path / "checkpoints" / str(names[1]) / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JobDirError):
        store.retain(names[1], keep=1)
    assert steps(store) == [20, 10]


def test_a_zombie_removes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    old = [save(store, step, attempt=1) for step in (10, 20, 30)]
    save(store, 15, attempt=2)
    store.retain(old[-1], keep=1)
    assert len(store.committed()) == 4
