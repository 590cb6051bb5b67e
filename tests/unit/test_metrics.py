"""Metrics: each step of the history counts once, also after interruptions, repeated steps, lost saves and stale
writers."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.cli import main
from cloudgpu.cli.metrics import curve
from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDir, JobDirError, local_url
from cloudgpu.protocol.metrics import closed_key, key_of, open_key, read_metrics, trainings
from cloudgpu.runtime.checkpoint.errors import CheckpointError
from cloudgpu.runtime.checkpoint.metrics import MetricRows

FOLDER = "checkpoints"


class Training:
    """Process that trains and saves, using MetricRows as the Checkpointer and its writer do."""

    def __init__(self, job_dir: JobDir, attempt: int, restored: Name | None = None, **limits: int) -> None:
        self.job_dir, self.attempt = job_dir, attempt
        self.rows = MetricRows(**limits)
        self.step = 0
        self.saves = 0
        if restored is not None:
            self.step = restored.step
            self.rows.resume(lambda key: job_dir.find(f"{FOLDER}/{key}"), str(restored))

    def train(self, steps: int, **values: float) -> None:
        for _ in range(steps):
            self.rows.log(self.step, {"loss": self.step + self.attempt / 1000, **values})
            self.step += 1

    def stage(self) -> tuple[Name, bytes]:
        self.saves += 1
        name = Name.of_run(self.step, self.attempt, self.saves, f"{self.attempt:08x}")
        return name, self.rows.take(str(name))

    def write(self, staged: tuple[Name, bytes], *, commit: bool = True) -> Name:
        name, rows = staged
        if rows:
            self.job_dir.put(f"{FOLDER}/{key_of(rows)}", rows)
        if commit:
            self.job_dir.put(f"{FOLDER}/{name}/COMMIT.json", b"{}")
        return name

    def save(self) -> Name:
        name = self.write(self.stage())
        self.rows.committed(str(name))
        return name


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "job"))


def steps(job_dir: JobDir) -> list[int]:
    return [row.step for row in read_metrics(job_dir)]


def losses(job_dir: JobDir) -> list[float]:
    return [row.values["loss"] for row in read_metrics(job_dir)]


def test_rows_of_a_save_are_read_back(job_dir: JobDir) -> None:
    training = Training(job_dir, 1)
    training.train(3, rate=0.5)
    training.save()
    rows = read_metrics(job_dir)
    assert [row.step for row in rows] == [0, 1, 2]
    assert rows[2].values == {"loss": 2.001, "rate": 0.5}
    assert rows[0].time <= rows[2].time


def test_nothing_logged_nothing_read(job_dir: JobDir) -> None:
    assert read_metrics(job_dir) == []
    training = Training(job_dir, 1)
    assert training.stage()[1] == b""
    training.save()
    assert read_metrics(job_dir) == []


def test_rows_that_are_in_no_checkpoint_do_not_show(job_dir: JobDir) -> None:
    training = Training(job_dir, 1)
    training.train(3)
    training.save()
    training.train(3)
    training.write(training.stage(), commit=False)
    assert steps(job_dir) == [0, 1, 2]


def test_redone_steps_show_once_and_as_they_were_redone(job_dir: JobDir) -> None:
    first = Training(job_dir, 1)
    first.train(5)
    saved = first.save()
    first.train(3)  # lost
    second = Training(job_dir, 2, saved)
    second.train(5)
    second.save()
    assert losses(job_dir) == [*(step + 0.001 for step in range(5)), *(step + 0.002 for step in range(5, 10))]


def test_a_zombie_of_an_older_attempt_does_not_show(job_dir: JobDir) -> None:
    zombie = Training(job_dir, 1)
    zombie.train(5)
    saved = zombie.save()
    second = Training(job_dir, 2, saved)
    second.train(2)
    second.save()
    zombie.train(50)
    zombie.save()
    assert losses(job_dir)[5:] == [5.002, 6.002]


def test_a_save_that_failed_loses_no_row(job_dir: JobDir) -> None:
    training = Training(job_dir, 1, segment=200)
    for _ in range(20):
        training.train(3)
        training.stage()  # never written
    training.train(1)
    training.save()
    assert steps(job_dir) == list(range(61))


def test_saves_that_are_under_way_at_the_same_time(job_dir: JobDir) -> None:
    """The second save is staged before the commit of the first is known; either may fail, in any order."""
    for outcome in range(4):
        folder = JobDir(f"{job_dir.url}-{outcome}")
        training = Training(folder, 1, segment=1)  # each save closes a segment
        training.train(2)
        training.save()
        training.train(2)
        first = training.stage()
        training.train(2)
        second = training.stage()
        committed = [training.write(one) for one, good in zip((second, first), (2, 1), strict=True) if outcome & good]
        for name in committed:
            training.rows.committed(str(name))
        training.train(2)
        training.save()
        assert steps(folder) == list(range(8)), outcome


def test_segments_close_and_stay(job_dir: JobDir) -> None:
    training = Training(job_dir, 1, segment=1000)
    names = []
    for _ in range(30):
        training.train(5)
        names.append(training.save())
    for name in names[:-1]:  # as retention does
        for entry in job_dir.list(f"{FOLDER}/{name}"):
            job_dir.delete(entry)
    assert steps(job_dir) == list(range(150))
    closed = job_dir.entries(f"{FOLDER}/metrics")
    assert 3 < len(closed) < 15
    assert all(1000 <= entry.size < 2000 for entry in closed), "bounded, and no row is in two of them"


def test_memory_is_bounded(job_dir: JobDir, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(job_dir, 1, segment=1000, limit=10_000)
    training.train(3)
    training.save()
    for _ in range(100):
        training.train(100)
        assert len(training.stage()[1]) < 11_000
    assert "every second row is dropped" in caplog.text
    training.save()
    kept = steps(job_dir)
    assert kept == sorted(set(kept))
    assert kept[-1] == 10_002
    assert len(kept) > 50
    training.train(3)
    training.save()
    assert steps(job_dir)[-4:] == [10_002, 10_003, 10_004, 10_005]


def test_values_of_one_step_are_one_row(job_dir: JobDir) -> None:
    training = Training(job_dir, 1)
    training.rows.log(0, {"loss": 1.0, "rate": 0.1})
    training.rows.log(0, {"accuracy": 0.5, "rate": 0.2})
    training.save()
    training.rows.log(0, {"late": 7})  # logged after the step was saved
    training.step = 1
    training.save()
    assert [dict(row.values) for row in read_metrics(job_dir)] == [
        {"loss": 1.0, "rate": 0.2, "accuracy": 0.5, "late": 7}
    ]


def test_nan_and_infinities_survive_in_valid_json(job_dir: JobDir) -> None:
    training = Training(job_dir, 1)
    training.rows.log(0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e-300, "e": 10**30, "f": True})
    staged = training.stage()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for line in staged[1].splitlines():
        json.loads(line, parse_constant=refuse)
    training.write(staged)
    values = read_metrics(job_dir)[0].values
    assert math.isnan(values["a"])
    assert [values[name] for name in "bcdef"] == [math.inf, -math.inf, 1e-300, 10**30, 1]


def test_scalars_of_numpy_and_torch_are_numbers() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    rows = MetricRows()
    rows.log(0, {"a": numpy.float32(0.5), "b": torch.tensor([2.5], requires_grad=True), "c": numpy.int64(3)})
    assert json.loads(rows.take("x").splitlines()[1])["values"] == {"a": 0.5, "b": 2.5, "c": 3}
    for wrong in (numpy.ones(2), torch.ones(2), torch.ones(1, dtype=torch.complex64)):
        with pytest.raises(CheckpointError, match="number"):
            rows.log(0, {"a": wrong})


@pytest.mark.parametrize("value", ["0.5", None, [1.0], {"a": 1}, 1j])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    rows = MetricRows()
    with pytest.raises(CheckpointError, match=r"log\(loss=...\): expected a number"):
        rows.log(0, {"loss": value})
    assert rows.take("x") == b"", "a row is logged whole or not at all"


@pytest.mark.parametrize("name", ["step", "time"])
def test_names_every_row_has_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="call it otherwise"):
        MetricRows().log(0, {name: 1})


def test_a_damaged_checkpoint_gives_way_to_the_one_before(job_dir: JobDir) -> None:
    training = Training(job_dir, 1)
    training.train(3)
    training.save()
    training.train(3)
    newest = training.save()
    job_dir.put(f"{FOLDER}/{newest}/DAMAGED.json", b"{}")
    assert steps(job_dir) == [0, 1, 2]


def test_damage_is_reported_not_shown(job_dir: JobDir) -> None:
    training = Training(job_dir, 1, segment=1)
    training.train(1)
    closed = training.save()
    training.train(1)
    training.save()
    whole = job_dir.get(f"{FOLDER}/{closed_key(str(closed))}")
    for damage in (b"", b"rubbish", b"{}\n", whole[:-5], whole.replace(b'"values"', b'"volumes"')):
        job_dir.put(f"{FOLDER}/{closed_key(str(closed))}", damage)
        with pytest.raises(JobDirError, match="cannot be read"):
            read_metrics(job_dir)
    job_dir.put(f"{FOLDER}/{closed_key(str(closed))}", whole.replace(b"null", f'"{closed}"'.encode()))
    with pytest.raises(JobDirError, match="goes on from itself"):
        read_metrics(job_dir)
    job_dir.delete(f"{FOLDER}/{closed_key(str(closed))}")
    with pytest.raises(JobDirError, match="is missing"):
        read_metrics(job_dir)


def test_training_goes_on_when_its_rows_cannot_be_read(job_dir: JobDir, caplog: pytest.LogCaptureFixture) -> None:
    first = Training(job_dir, 1)
    first.train(3)
    saved = first.save()
    job_dir.put(f"{FOLDER}/{open_key(str(saved))}", b"rubbish")
    second = Training(job_dir, 2, saved)
    assert "is lost" in caplog.text
    second.train(2)
    second.save()
    assert steps(job_dir) == [3, 4]


def test_nodes_that_train_each_for_itself_have_metrics_of_their_own(job_dir: JobDir) -> None:
    assert trainings(job_dir) == []
    for node in ("worker-0", "worker-1"):
        job_dir.put(f"{FOLDER}/{node}/{Name.new(3, 1, 1)}/COMMIT.json", b"{}")
    assert trainings(job_dir) == [f"{FOLDER}/worker-0", f"{FOLDER}/worker-1"]
    alone = JobDir(f"{job_dir.url}-alone")
    alone.put(f"{FOLDER}/{Name.new(3, 1, 1)}/COMMIT.json", b"{}")
    alone.put(f"{FOLDER}/metrics/x.jsonl", b"")
    assert trainings(alone) == [FOLDER]


@pytest.mark.parametrize("number", range(10))
def test_any_course_of_events_gives_each_step_once(tmp_path: Path, number: int) -> None:
    """Random crashes, lost saves, late commits and stale writers, compared with each process's own record."""
    rng = random.Random(number)
    job_dir = JobDir(local_url(tmp_path))
    truth: dict[Name | None, list[float]] = {None: []}  # checkpoint -> losses that led to it
    newest: Name | None = None
    zombie: tuple[Training, list[float]] | None = None

    def commit(training: Training, staged: tuple[Name, bytes]) -> None:
        nonlocal newest
        training.write(staged)
        newest = max(newest or staged[0], staged[0], key=lambda name: name.age)
        if rng.random() < 0.9:  # else the confirmation is late or never comes
            training.rows.committed(str(staged[0]))

    def train(training: Training, path: list[float], count: int) -> tuple[Name, bytes]:
        path += [step + training.attempt / 1000 for step in range(training.step, training.step + count)]
        training.train(count)
        staged = training.stage()
        truth[staged[0]] = list(path)
        return staged

    for attempt in range(1, 6):
        training = Training(job_dir, attempt, newest, segment=rng.choice([1, 300, 2_000]))
        path = list(truth[newest])
        under_way: list[tuple[Name, bytes]] = []
        for _ in range(rng.randrange(10)):
            under_way.append(train(training, path, rng.randrange(5)))
            while under_way and rng.random() < 0.7:
                staged = under_way.pop(0)
                if rng.random() < 0.8:
                    commit(training, staged)
                else:
                    training.write(staged, commit=False)
        if zombie is not None:
            commit(zombie[0], train(*zombie, 3))
        zombie = training, path
        assert losses(job_dir) == truth[newest]


# Output for users


@pytest.fixture
def folder(job_dir: JobDir, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    training = Training(job_dir, 1)
    for step in range(30):
        training.rows.log(step, {"loss": 1 / (step + 1), **({"rate": math.nan} if step == 3 else {})})
    training.step = 30
    training.save()
    return f"{job_dir.url}/{FOLDER}"


def test_metrics_as_a_table(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--folder", folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:6] == ["loss", "30", "1", "0.03333", "0.03333", "1"]
    assert lines[1].split()[6][0] == "█"
    assert lines[2].split() == ["rate", "1", "nan", "nan", "nan", "nan", "!"]
    assert max(map(len, lines)) <= 100


def test_metrics_for_programs(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--folder", folder, "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(30))
    assert math.isnan(float(rows[3]["rate"]))
    assert rows[4]["rate"] == ""
    assert main(["metrics", "--folder", folder, "--json"]) == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert values[3]["values"] == {"loss": 0.25, "rate": "NaN"}


def test_metrics_of_nothing_and_of_one_node_of_several(
    job_dir: JobDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--folder", str(tmp_path)]) == 0
    assert "nothing was logged" in capsys.readouterr().out
    for node in ("worker-0", "worker-1"):
        job_dir.put(f"{node}/{Name.new(3, 1, 1)}/COMMIT.json", b"{}")
    assert main(["metrics", "--folder", job_dir.url]) == 2
    assert "worker-0, worker-1" in capsys.readouterr().err
    assert main(["metrics", "--folder", job_dir.url, "--node", "worker-1"]) == 0
    assert main(["metrics", "--folder", job_dir.url, "--node", "worker-7"]) == 2
    for wrong in (["metrics"], ["metrics", "x", "--folder", "y"], ["metrics", "--folder", str(tmp_path / "none")]):
        assert main(wrong) == 2


def test_a_curve_has_every_value_in_it() -> None:
    assert curve([0.0, 1.0], 10) == "▁█"
    assert curve([1.0] * 100, 10) == "▁" * 10
    assert curve([float(value) for value in range(101)], 8) == "▁▂▃▄▅▆▇█"
    assert curve([0.0, math.nan, 1.0], 3) == "▁!█"
    assert curve([math.inf], 3) == "!"
    assert len(curve([1.0] * 7, 5)) == 5
