"""The folder of checkpoints: what is damaged is found and passed over, what is good is never removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.runtime.checkpoint.errors import CheckpointError, FencedError, UnusableError
from cloudgpu.runtime.checkpoint.ranks import Ranks
from cloudgpu.runtime.checkpoint.names import Name
from cloudgpu.runtime.checkpoint.store import CHUNK, CheckpointStore, read_newest
from cloudgpu.runtime.jobdir import JobDir, JobDirError, local_url

CONTENT = bytes(range(256)) * 40


def open_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(JobDir(local_url(folder)), "checkpoints")


def save(store: CheckpointStore, step: int, attempt: int = 1, data: bytes | None = None, world: int = 1) -> Name:
    name = Name(step, attempt, f"{step:012x}")
    content = CONTENT + str(step).encode() if data is None else data
    shards = [store.write_shard(name, rank, content + b"%d" % rank) for rank in range(world)]
    store.commit(name, shards, finished=False, time=0.0)
    return name


def newest(store: CheckpointStore) -> int | None:
    found = read_newest(store, Ranks())
    return found[0].step if found else None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def other(path: Path) -> None:
    """The same file of the older checkpoint."""
    shutil.copy(next(path.parent.parent.glob("00000010-*")) / path.name, path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit flip": flip,
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "not text": lambda path: path.write_bytes(b"\xff\x00{"),
    "json, but no object": lambda path: path.write_bytes(b"[[1]]"),
    "swapped": other,
}


@pytest.mark.parametrize("file", ["rank-00000.bin", "rank-00000.json", "COMMIT.json"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_falls_back_to_the_older(kind: str, file: str, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 10)
    name = save(store, 20)
    assert newest(store) == 20
    DAMAGE[kind](tmp_path / "checkpoints" / str(name) / file)
    assert newest(store) == 10
    assert newest(open_store(tmp_path)) == 10
    # What has lost its commit is no checkpoint; everything else is kept, marked, for a person to look at.
    marked = (tmp_path / "checkpoints" / str(name) / "DAMAGED.json").exists()
    assert marked == (not (file == "COMMIT.json" and kind == "missing"))


def test_a_whole_folder_swapped_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    old, new = save(store, 10), save(store, 20)
    shutil.rmtree(tmp_path / "checkpoints" / str(new))
    shutil.copytree(tmp_path / "checkpoints" / str(old), tmp_path / "checkpoints" / str(new))
    assert newest(store) == 10


def test_damage_in_a_later_chunk_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = save(store, 10, data=bytes(2 * CHUNK + 5))
    path = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    with path.open("r+b") as file:
        file.seek(2 * CHUNK + 1)
        file.write(b"x")
    with pytest.raises(UnusableError, match=f"from byte {2 * CHUNK}"):
        store.read(name, 0, 1)


def test_empty_state_can_be_saved(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = Name(1, 1, "0" * 12)
    store.commit(name, [store.write_shard(name, 0, b"")], finished=False, time=0.0)
    assert store.read(name, 0, 1)[1] == b""


def test_everything_damaged_begins_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for step in (10, 20):
        flip(tmp_path / "checkpoints" / str(save(store, step)) / "rank-00000.bin")
    assert newest(store) is None


def test_what_is_unreadable_for_now_is_not_given_up(tmp_path: Path) -> None:
    """A link to itself cannot be read, as with an I/O error: nothing is marked, nothing begins anew."""
    store = open_store(tmp_path)
    save(store, 10)
    name = save(store, 20)
    path = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)
    assert newest(store) == 10
    shutil.rmtree(tmp_path / "checkpoints" / next(p.name for p in (tmp_path / "checkpoints").glob("00000010*")))
    with pytest.raises(CheckpointError, match="no checkpoint could be restored"):
        newest(store)
    path.unlink()
    path.write_bytes(content)
    assert newest(store) == 20


def test_foreign_things_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    store = open_store(tmp_path)
    save(store, 10)
    (folder / "notes.txt").write_text("mine")
    (folder / "99999999-0001-zzzzzzzzzzzz").mkdir()
    (folder / "99999999-0009-000000000000").mkdir()  # never committed
    (folder / "epoch=3.ckpt").mkdir()
    assert newest(store) == 10
    store.clean(attempt=9)
    assert sorted(p.name for p in folder.iterdir()) == [
        "00000010-0001-00000000000a",
        "99999999-0001-zzzzzzzzzzzz",
        "epoch=3.ckpt",
        "notes.txt",
    ]


def test_another_format_is_passed_over_and_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 10)
    name = save(store, 20)
    path = tmp_path / "checkpoints" / str(name) / "COMMIT.json"
    path.write_text(path.read_text().replace("cloudgpu-checkpoint/2", "cloudgpu-checkpoint/9"))
    assert newest(store) == 10
    assert not (path.parent / "DAMAGED.json").exists()


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 10, world=2)
    with pytest.raises(CheckpointError, match="saved by 2 ranks, this run has 1"):
        newest(store)


def test_the_newest_is_of_the_newest_attempt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 100, attempt=1)
    save(store, 500, attempt=1)  # by a zombie, before the fence or in the instant after it
    save(store, 120, attempt=2)
    assert [name.step for name in store.committed()] == [120, 500, 100]
    assert newest(store) == 120


def test_a_zombie_is_fenced_off(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.claim(None) == 1
    save(store, 10)
    assert store.claim(None) == 2
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        save(store, 20, attempt=1)
    assert newest(store) == 10
    store.clean(2)  # what the zombie wrote and could not commit
    assert [p.name[:8] for p in (tmp_path / "checkpoints").glob("0*")] == ["00000010"]
    assert store.claim(7) == 7
    assert store.claim(7) == 7  # a program started twice by one attempt
    assert store.newest_attempt() == 7


def test_attempts_go_on_from_what_is_there(tmp_path: Path) -> None:
    """Also if the fences were lost, for instance by copying the checkpoints alone."""
    store = open_store(tmp_path)
    save(store, 10, attempt=4)
    assert store.claim(None) == 5


def test_retention(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    names = [save(store, step) for step in (10, 20, 30, 40)]
    store.retain(names[-1], keep=2)
    assert [name.step for name in store.committed()] == [40, 30]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # no empty folders are left
    store.retain(names[-1], keep=1)
    assert [name.step for name in store.committed()] == [40]


def test_one_step_saved_twice(tmp_path: Path) -> None:
    """On schedule, and then as the end: the later one is the newer."""
    store = open_store(tmp_path)
    for count in range(20):
        name = Name.new(5, 1, count)
        store.commit(name, [store.write_shard(name, 0, b"%d" % count)], finished=False, time=0.0)
        store.retain(name, keep=2)
        assert store.committed()[0] == name
        assert len(store.committed()) == min(count + 1, 2)


def test_retention_does_not_count_the_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    names = [save(store, step) for step in (10, 20, 30)]
    flip(tmp_path / "checkpoints" / str(names[2]) / "rank-00000.bin")
    assert newest(store) == 20
    last = save(store, 40)
    store.retain(last, keep=2)
    assert [name.step for name in store.committed()] == [40, 20]
    last = save(store, 50)
    store.retain(last, keep=2)
    assert [name.step for name in store.committed()] == [50, 40]
    assert sorted(p.name[:8] for p in (tmp_path / "checkpoints").iterdir()) == ["00000040", "00000050"]


def test_a_zombie_removes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    old = [save(store, step, attempt=1) for step in (10, 20, 30)]
    save(store, 15, attempt=2)
    store.retain(old[-1], keep=1)
    assert len(store.committed()) == 4


def test_a_shard_that_did_not_arrive_whole_is_not_committed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = Name(10, 1, "0" * 12)
    shards = [store.write_shard(name, 0, CONTENT)]
    path = tmp_path / "checkpoints" / str(name) / "rank-00000.bin"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(JobDirError, match="has 100 bytes, 10240 were written"):
        store.commit(name, shards, finished=False, time=0.0)
    assert store.committed() == []


def test_two_commits_of_one_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    name = save(store, 10)
    with pytest.raises(JobDirError, match="committed by another process"):
        store.commit(name, [store.write_shard(name, 0, b"other")], finished=False, time=0.0)


def test_half_written_leftovers_are_removed(tmp_path: Path) -> None:
    """A killed writer leaves files that no listing shows."""
    store = open_store(tmp_path)
    save(store, 10)
    torn = tmp_path / "checkpoints" / "00000020-0001-000000000000"
    torn.mkdir()
    (torn / "rank-00000.bin#1").write_bytes(b"half")
    store.clean(attempt=2)
    assert not torn.exists()
    assert newest(store) == 10
