"""Tests of damaged checkpoints: damage of any file is detected, and the older checkpoint is restored.

A checkpoint may only be restored with exactly the data that was saved. Some damage has no effect, like a bit flip in
COMMIT.json in the name of a field that has its default value; then the newer checkpoint may be restored.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.tests.standins.long_mode import LONG

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from cloudgpu.protocol.checkpoint_names import Name  # noqa: E402
from cloudgpu.runtime.checkpoint.errors import CheckpointError  # noqa: E402
from cloudgpu.tests.standins.checkpoints import local_store, restore_all, save  # noqa: E402

WORLD = 2
OLDER, NEWER = 4, 8


def snapshot(step: int, rank: int, elements: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "rank": rank,
        "random": {"torch": torch.full((5,), 10 * step + rank)},
        "objects": {"model": {"w": torch.randn(elements, generator=generator), "n": np.arange(step)}},
    }


@pytest.fixture(scope="module", params=[1_000, 3_000_000], ids=["one chunk", "several chunks"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Yield a folder with two checkpoints, and the number of elements of their tensors."""
    folder = tmp_path_factory.mktemp("checkpoints")
    store = local_store(folder)
    for step in (OLDER, NEWER):
        save(store, step, [snapshot(step, rank, request.param) for rank in range(WORLD)])
    yield folder, request.param
    shutil.rmtree(folder)


def flip(path: Path, draw: random.Random, _other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def zero_page(path: Path, draw: random.Random, _other: Path) -> None:
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data)) // 4096 * 4096
    size = len(data[at : at + 4096])
    data[at : at + size] = bytes(size)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random, _other: Path) -> None:
    os.truncate(path, path.stat().st_size - draw.choice([1, 64, path.stat().st_size // 2]))


def grow(path: Path, _draw: random.Random, _other: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def put(path: Path, _draw: random.Random, other: Path) -> None:
    shutil.copyfile(other, path)


def swap(path: Path, _draw: random.Random, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, random.Random, Path], None]] = {
    "bit flipped": flip,
    "page of zeros": zero_page,
    "cut off": cut,
    "a byte too many": grow,
    "empty": lambda path, _draw, _other: os.truncate(path, 0),
    "missing": lambda path, _draw, _other: path.unlink(),
    "that of another": put,
    "swapped with another": swap,
}


def folders(folder: Path) -> tuple[Path, Path]:
    """Return the folders of the older and the newer checkpoint."""
    by_step = {name.step: path for path in (folder / "checkpoints").iterdir() if (name := Name.parse(path.name))}
    return by_step[OLDER], by_step[NEWER]


def private_copy(folder: Path, to: Path) -> Path:
    """Copy a folder of checkpoints; files of the older checkpoint stay hard links to the originals."""
    shutil.copytree(folder, to, copy_function=os.link)
    for path in folders(to)[1].iterdir():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    return to


def others(path: Path, older: Path) -> list[Path]:
    """Return files that could be mistaken for this one: the other rank's, and that of another step."""
    ranks = {"rank-00000": "rank-00001", "rank-00001": "rank-00000"}
    same = [path.with_name(f"{ranks[path.stem]}{path.suffix}")] if path.stem in ranks else []
    return [*same, older / path.name]


def check(folder: Path, elements: int) -> int:
    """Restore all ranks, check that they agree and have the saved data, and return the restored step."""
    restored = restore_all(local_store(folder), WORLD)
    steps = {found.snapshot["step"] for found in restored if found}
    assert len(steps) == 1
    assert None not in restored
    step: int = steps.pop()
    for rank, found in enumerate(restored):
        expected = snapshot(step, rank, elements)
        assert found
        assert found.name.step == step
        assert found.snapshot["rank"] == rank
        assert torch.equal(found.snapshot["random"]["torch"], expected["random"]["torch"])
        got, wanted = (one["objects"]["model"] for one in (found.snapshot, expected))
        assert torch.equal(got["w"], wanted["w"])
        assert np.array_equal(got["n"], wanted["n"])
    return step


@pytest.mark.parametrize("kind", DAMAGES)
def test_one_file(kind: str, original: tuple[Path, int], tmp_path: Path) -> None:
    folder, elements = original
    draw = random.Random(kind)
    few = 10 if elements < 10_000 else 2
    times = (200 if LONG else few) if kind in {"bit flipped", "page of zeros", "cut off"} else 1
    outcomes = []
    for file in sorted(path.name for path in folders(folder)[1].iterdir()):
        for number in range(times):
            copy = private_copy(folder, tmp_path / f"{file}-{number}")
            older, newer = folders(copy)
            other = others(newer / file, older)[0]
            if kind != "swapped with another" or other.parent == newer:  # otherwise both checkpoints would be damaged
                DAMAGES[kind](newer / file, draw, other)
                outcomes.append(check(copy, elements))
            shutil.rmtree(copy)
    found = outcomes.count(OLDER) / len(outcomes)
    assert found == 1 or (kind in {"bit flipped", "a byte too many"} and found > 0.7)


@pytest.mark.parametrize("file", ["rank-00000.bin", "rank-00001.json", "COMMIT.json"])
def test_a_file_of_another_step(file: str, original: tuple[Path, int], tmp_path: Path) -> None:
    folder, elements = original
    older, newer = folders(private_copy(folder, tmp_path / "copy"))
    shutil.copy(older / file, newer / file)
    assert check(tmp_path / "copy", elements) == OLDER


def test_files_of_another_step_that_fit_each_other(original: tuple[Path, int], tmp_path: Path) -> None:
    """One rank's data and manifest are stale: valid in themselves, but from the older checkpoint."""
    folder, elements = original
    private_copy(folder, tmp_path / "copy")
    older, newer = folders(tmp_path / "copy")
    for file in ("rank-00001.bin", "rank-00001.json"):
        shutil.copy(older / file, newer / file)
    assert check(tmp_path / "copy", elements) == OLDER


def test_a_whole_checkpoint_under_another_name(original: tuple[Path, int], tmp_path: Path) -> None:
    folder, elements = original
    private_copy(folder, tmp_path / "copy")
    older, newer = folders(tmp_path / "copy")
    for path in older.iterdir():
        shutil.copy(path, newer / path.name)
    assert check(tmp_path / "copy", elements) == OLDER


def test_a_damaged_checkpoint_is_marked_reported_once_and_kept(
    original: tuple[Path, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elements = original
    private_copy(folder, tmp_path / "copy")
    _, newer = folders(tmp_path / "copy")
    flip(newer / "rank-00001.bin", random.Random(1), newer)
    with caplog.at_level(logging.INFO):
        assert check(tmp_path / "copy", elements) == OLDER
    assert "rank 1): rank-00001.bin differs from what was saved, from byte" in caplog.text
    assert "rank-00001.bin differs" in (newer / "DAMAGED.json").read_text()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert check(tmp_path / "copy", elements) == OLDER
    assert not caplog.text
    assert (newer / "rank-00000.bin").exists()


def damage_all(folder: Path) -> list[str]:
    """Delete a data file of each checkpoint; return the checkpoints' names, newest first."""
    for path in folders(folder):
        (path / "rank-00000.bin").unlink()  # removes only the hard link of the older checkpoint's file
    return [str(name) for name in local_store(folder).names()]


def test_all_damaged_stops_and_names_the_option(original: tuple[Path, int], tmp_path: Path) -> None:
    """A second restore fails as well: checkpoints that are marked as damaged do not make training begin anew."""
    folder, _ = original
    names = damage_all(private_copy(folder, tmp_path / "copy"))
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            restore_all(local_store(tmp_path / "copy"), WORLD)
        assert caught.value.code == 70  # final: a retry would fail in the same way
        for said in ("every checkpoint is damaged", "on_damage: restart", *names, "rank-00000.bin is missing"):
            assert said in str(caught.value)
    assert len(local_store(tmp_path / "copy").damaged()) == 2


def test_all_damaged_begins_anew_where_that_was_asked_for(
    original: tuple[Path, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elements = original
    copy = private_copy(folder, tmp_path / "copy")
    names = damage_all(copy)
    for _ in range(2):
        caplog.clear()
        assert restore_all(local_store(copy), WORLD, on_damage="restart") == [None] * WORLD
        assert "every checkpoint is damaged: training starts over" in caplog.text
        assert all(name in caplog.text for name in names)
    # Retention deletes no damaged checkpoint, in the same attempt (where they have later steps) and in a new one.
    store = local_store(copy)
    for attempt in (1, 2):
        for step in (1, 2, 3):
            snapshots = [snapshot(step, rank, elements) for rank in range(WORLD)]
            store.retain(save(store, step, snapshots, attempt=attempt), 1)
    assert [name.step for name in store.committed()] == [3]
    assert [str(name) for name in local_store(copy).damaged()] == names
    assert all((copy / "checkpoints" / name / "rank-00001.bin").exists() for name in names)


def test_what_verifies_again_is_used_again(
    original: tuple[Path, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that was marked because of bad memory, disk or network verifies on another machine."""
    folder, elements = original
    copy = private_copy(folder, tmp_path / "copy")
    kept = {path: path.read_bytes() for path in (one / "rank-00000.bin" for one in folders(copy))}
    damage_all(copy)
    with pytest.raises(CheckpointError, match="verified again"):
        restore_all(local_store(copy), WORLD)
    older, newer = kept
    older.write_bytes(kept[older])
    caplog.set_level(logging.INFO)
    assert check(copy, elements) == OLDER
    assert "every byte of it verifies now" in caplog.text
    assert [name.step for name in local_store(copy).damaged()] == [NEWER]
    newer.write_bytes(kept[newer])
    assert check(copy, elements) == OLDER  # the good checkpoint is used, the marked one is not read again


def test_a_training_whose_checkpoints_are_all_damaged(tmp_path: Path) -> None:
    """The Checkpointer exits with its error and outcome file; on_damage works as argument and as variable."""
    program = (
        "import os\nfrom cloudgpu.runtime import Checkpointer\nckpt = Checkpointer(every=1)\nprint(ckpt.step)\n"
        "for _ in ckpt.steps(int(os.environ['STEPS'])):\n    ckpt.wait()\n"
    )
    env = os.environ | {"CLOUDGPU_OUTCOME": str(tmp_path / "outcome.json"), "CLOUDGPU_CHECKPOINTS": str(tmp_path / "c")}

    def run(steps: int, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, env=env | more | {"STEPS": str(steps)}
        )

    assert run(3).stdout == "0\n"
    damaged = sorted((tmp_path / "c").glob("0*"))
    for folder in damaged:
        flip(folder / "rank-00000.json", random.Random(1), folder)
    for _ in range(2):
        done = run(5)
        assert (done.returncode, done.stdout) == (1, "")
        outcome = json.loads((tmp_path / "outcome.json").read_bytes())
        assert (outcome["code"], outcome["outcome"]) == (70, "user")
        assert "on_damage: restart" in outcome["reason"]
    assert "expected" in run(5, CLOUDGPU_CHECKPOINT_ON_DAMAGE="maybe").stderr
    done = run(8, CLOUDGPU_CHECKPOINT_ON_DAMAGE="restart")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert all((folder / "DAMAGED.json").exists() for folder in damaged)
    assert run(9).stdout == "8\n"
