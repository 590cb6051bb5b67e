"""What verify-resume compares besides checkpoints: files field by field, what a program holds, and working copies."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cloudgpu.cli.shared.errors import CommandError
from cloudgpu.cli.verify_resume.copy import WorkingCopies
from cloudgpu.runtime.verify.files import WORKING_COPY, Files, compare_files
from cloudgpu.runtime.verify.program_state import saved_parts
from cloudgpu.runtime.verify.values import Walk


def compare(folder: Path, name: str, *texts: str) -> Files:
    """Compare what an undisturbed run, a resumed one and a second undisturbed one have written."""
    runs = []
    for number, text in enumerate(texts):
        run = folder / str(number)
        (run / WORKING_COPY).mkdir(parents=True)
        (run / WORKING_COPY / name).write_text(text)
        runs.append(run)
    return compare_files(*runs)


LOG = "epoch 1 loss {loss} took {took} s\nepoch 2 loss 0.25 took {took}1 s\n2026-11-23 10:00:{took} done\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.txt", LOG),
        ("rows.csv", "epoch,loss,seconds\n1,{loss},{took}\n2,0.25,{took}\n"),
        ("history.json", '{{"rows": [{{"loss": {loss}, "seconds": {took}}}, {{"loss": 1, "seconds": {took}}}]}}'),
        ("metrics.jsonl", '{{"loss": {loss}, "seconds": {took}}}\n{{"loss": 1, "seconds": {took}}}\n'),
    ],
)
def test_fields_that_differ_by_themselves_hide_no_others(tmp_path: Path, name: str, text: str) -> None:
    ours, other = text.format(loss=0.5, took=11), text.format(loss=0.5, took=12)
    slow, wrong = text.format(loss=0.5, took=13), text.format(loss=0.75, took=14)
    fine = compare(tmp_path / "fine", name, ours, slow, other)
    assert (fine.different, fine.ignored) == ([], [name])
    (found,) = compare(tmp_path / "wrong", name, ours, wrong, other).different
    assert found["says"].endswith("0.75 instead of 0.5"), found
    assert compare(tmp_path / "strict", name, ours, slow, ours).different, "it differs by resuming alone"


@pytest.mark.parametrize("resumed", ["a 1\na 1\na 2\n", "a 1\n", ""])
def test_rows_that_are_twice_or_missing_differ(tmp_path: Path, resumed: str) -> None:
    assert compare(tmp_path, "log", "a 1\na 2\n", resumed, "a 1\na 2\n").different


def test_files_are_missing_new_or_named_by_the_time(tmp_path: Path) -> None:
    names = (["best.pt", "events.17.4711"], ["extra", "events.18.4712"], ["best.pt", "events.19.4713"])
    for number, files in enumerate(names):
        (tmp_path / str(number) / WORKING_COPY).mkdir(parents=True)
        for name in files:
            (tmp_path / str(number) / WORKING_COPY / name).touch()
    found = compare_files(*(tmp_path / str(number) for number in range(3)))
    assert {one["name"]: one["says"] for one in found.different} == {
        "best.pt": "is missing",
        "extra": "is there, but not after an undisturbed run",
    }


class Row(NamedTuple):
    loss: float


@dataclass(slots=True)
class Slotted:
    best: float


class Counts(dict[str, int]):
    total = 0


def names_of(value: Any) -> dict[str, bytes]:
    walk = Walk(lambda kind: kind.__module__ == __name__)
    found: dict[str, bytes] = {}
    for kind, name, data in walk.fields(value, "it"):
        found[f"{kind} {name}"] = found.get(f"{kind} {name}", b"") + data
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1.0, 2.0),
        ([1, 2], [1, 2, 3]),
        (deque([1]), deque([2])),
        ({"a": [1.5]}, {"a": [2.5]}),
        ({("a", 1): 2}, {("a", 1): 3}),
        (Row(1.0), Row(2.0)),
        (Slotted(1.0), Slotted(2.0)),
        (Counts(a=1), Counts(a=2)),
        ([{"loss": 1}], [{"loss": 2}]),
        (np.zeros(100_000), np.ones(100_000)),
        ([np.zeros(2), "x"], [np.ones(2), "x"]),
        (random.Random(1), random.Random(2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        ([], [object()]),
    ],
)
def test_every_kind_of_value_that_changes_has_a_field_that_differs(before: Any, after: Any) -> None:
    assert names_of(before) != names_of(after)
    assert names_of(before) == names_of(before)


def test_a_value_inside_of_itself_and_class_attributes_are_walked_once() -> None:
    loop: list[Any] = [1, {}]
    loop.append(loop)
    assert names_of(loop)
    Counts.total = 3
    assert names_of(Counts)["variable it.total"] == b"3"


def test_torch_values_have_fields_of_their_kind() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Dropout(0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = names_of({"net": net, "optimizer": optimizer, "scheduler": scheduler})
    assert "model it['net'] (Sequential)['0.weight']" not in before
    assert {name.partition(" ")[0] for name in before} == {"model", "optimizer", "scheduler", "variable"}
    with torch.no_grad():
        net[0].weight[299, 299] += 1
    net[1].p, optimizer.param_groups[0]["lr"] = 0.2, 0.3
    after = names_of({"net": net, "optimizer": optimizer, "scheduler": scheduler})
    assert [name for name in before if before[name] != after[name]] == [
        "model it['net'] (Sequential)",
        "variable it['net'].1.p",
        "optimizer it['optimizer'] (SGD)",
    ]


def test_generators_of_what_is_saved_are_saved_with_it() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.r, self.inner = np.random.default_rng(1), {"rng": random.Random(1)}

    sampler, other = Sampler(), random.Random(2)
    saved = saved_parts([sampler, None])
    assert {id(sampler.r), id(sampler.inner["rng"])} < saved
    assert id(other) not in saved


def test_a_working_copy_is_apart_and_leads_where_the_original_does(tmp_path: Path) -> None:
    project, verification = tmp_path / "here" / "project", tmp_path / "here" / "project" / "tmp" / "verification"
    verification.mkdir(parents=True)
    (tmp_path / "here" / "data").write_text("beside")
    (project / "src").mkdir()
    (project / "src" / "a.txt").write_text("a")
    (project / "large").write_bytes(bytes((16 << 20) + 1))
    (project / ".venv").mkdir()
    (project / "link").symlink_to("src/a.txt")
    copy = WorkingCopies(project, verification).make(verification / "root")
    assert (copy / "../data").read_text() == (copy / "../../here/data").read_text() == "beside"
    assert (copy / "large").is_symlink() and (copy / ".venv").is_symlink()
    assert not (copy / "tmp" / "verification").exists()
    (copy / "link").write_text("b")
    assert (copy / "src" / "a.txt").read_text() == "b"
    assert (project / "src" / "a.txt").read_text() == "a"
    assert not (copy / "src").is_symlink()


def test_the_root_folder_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="too many to copy"):
        WorkingCopies(Path("/"), tmp_path).make(tmp_path / "root")
