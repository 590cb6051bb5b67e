"""Copies of a job's checkpoint into a new job's folder: complete, verified, the first of the new job, or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudgpu.control.errors import SubmitError
from cloudgpu.control.submit.origin import of_url, split_step
from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobDirError, JobRecord, attempt_key, local_url
from cloudgpu.protocol.metrics import Segment, read_metrics
from cloudgpu.runtime.checkpoint.format.manifest import data_file
from cloudgpu.runtime.checkpoint.metrics import MetricRows
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.runtime.checkpoint_copy import Copied, copy_checkpoints, survey
from cloudgpu.tests.standins.checkpoints import restore_all, save, save_as

FOLDER = "checkpoints"


@pytest.fixture
def source(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "target"))


def state(step: int) -> dict[str, Any]:
    return {"objects": {"model": {"w": torch.arange(1_000, dtype=torch.float32) + step}}, "step": step}


def saved(job_dir: JobDir, *steps: int, attempt: int = 3, ranks: int = 2, folder: str = FOLDER) -> list[Name]:
    store = CheckpointStore(job_dir, folder)
    return [save(store, step, [state(step)] * ranks, attempt=attempt) for step in steps]


def copied(source: JobDir, target: JobDir, step: int | None = None, since: int = 0) -> Copied | None:
    return copy_checkpoints(source, target, step=step, since=since, on_bytes=lambda _done, _total: None)


def restored(job_dir: JobDir, ranks: int = 2) -> int:
    found = restore_all(CheckpointStore(job_dir, FOLDER), ranks)[0]
    assert found is not None
    step: int = found.snapshot["step"]
    assert torch.equal(found.snapshot["objects"]["model"]["w"], state(step)["objects"]["model"]["w"])
    return step


def test_the_newest_is_copied_as_what_precedes_the_first_attempt(source: JobDir, target: JobDir) -> None:
    names = saved(source, 10, 20)
    done: list[tuple[int, int]] = []
    found = copy_checkpoints(source, target, step=None, since=0, on_bytes=lambda *both: done.append(both))
    assert found is not None and (found.step, found.skipped) == (20, ())
    assert done[0][0] == 0 and done == sorted(done) and len({total for _, total in done}) == 1
    store = CheckpointStore(target, FOLDER)
    assert store.names() == [Name(20, 0, names[1].nonce)] and restored(target) == 20
    assert store.claim(1) == 1  # the first attempt may save
    newer = save(store, 5, [state(5)] * 2, attempt=1)
    assert store.committed()[0] == newer and restored(target) == 5
    assert CheckpointStore(source, FOLDER).newest_attempt() == 3, "a running source is not fenced off"


def test_a_step_may_be_named(source: JobDir, target: JobDir) -> None:
    saved(source, 10, 20)
    assert copied(source, target, 15) is None and target.list("") == []
    found = copied(source, target, 10)
    assert found is not None and found.step == 10 == restored(target)


def test_what_was_logged_comes_along(source: JobDir, target: JobDir) -> None:
    store, rows = CheckpointStore(source, FOLDER), MetricRows(segment=300)
    for step in range(30):
        rows.log(step, {"loss": float(step)})
        if step % 10 == 9:
            name = Name.new(step + 1, 1, step)
            store.put_metrics(rows.take(str(name)))
            save_as(store, name, [state(step + 1)])
            rows.committed(str(name))
    assert copied(source, target) is not None
    assert [row.step for row in read_metrics(target)] == list(range(30))
    shutil.rmtree((source.folder or Path()) / FOLDER / "metrics")
    second = JobDir(target.url + "-2")
    assert copied(source, second) is not None and restored(second, 1) == 30


def test_a_damaged_checkpoint_is_passed_over_and_nothing_of_it_is_left(source: JobDir, target: JobDir) -> None:
    _, newest = saved(source, 10, 20)
    path = (source.folder or Path()) / FOLDER / str(newest) / data_file(1)
    path.write_bytes(bytes(path.stat().st_size))
    found = copied(source, target)
    assert found is not None and found.step == 10 and "differs from what was saved" in found.skipped[0]
    assert [name.step for name in CheckpointStore(target, FOLDER).names()] == [10] and restored(target) == 10
    assert CheckpointStore(source, FOLDER).damaged() == [], "another job's folder is only read"
    assert copied(source, JobDir(target.url + "-2"), 20) is None


def test_a_copy_that_fails_is_no_checkpoint(source: JobDir, target: JobDir) -> None:
    saved(source, 10)

    def fail(done: int, total: int) -> None:
        if done > total // 2:
            raise JobDirError("the disk is full")

    with pytest.raises(JobDirError, match="disk is full"):
        copy_checkpoints(source, target, step=None, since=0, on_bytes=fail)
    assert CheckpointStore(target, FOLDER).committed() == []


def test_a_name_of_a_segment_that_leads_elsewhere_is_not_followed(source: JobDir, target: JobDir) -> None:
    (name,) = saved(source, 10)
    head = Segment(str(name), "../../elsewhere", closed=False).to_bytes()
    source.put(f"{FOLDER}/{name}/metrics.jsonl", head)
    source.put("elsewhere.jsonl", head)
    assert copied(source, target) is not None
    assert {key.partition("/")[0] for key in target.list("")} == {FOLDER}


def test_of_trainings_by_node_each_is_copied(source: JobDir, target: JobDir) -> None:
    for node in ("worker-0", "worker-1"):
        saved(source, 10, 20, ranks=1, folder=f"{FOLDER}/{node}")
    saved(source, 30, ranks=1, folder=f"{FOLDER}/worker-0")
    assert survey(source, 0).steps == (20, 10) and survey(source, 0).trainings == 2
    found = copied(source, target)
    assert found is not None and found.step == 20
    steps = [CheckpointStore(target, f"{FOLDER}/worker-{node}").names()[0].step for node in (0, 1)]
    assert steps == [30, 20]


def test_of_trainings_by_node_all_are_copied_or_none(source: JobDir, target: JobDir) -> None:
    saved(source, 10, ranks=1, folder=f"{FOLDER}/worker-0")
    saved(source, 20, ranks=1, folder=f"{FOLDER}/worker-1")
    assert copied(source, target, 10) is None
    assert CheckpointStore(target, f"{FOLDER}/worker-0").names() == []
    saved(source, 10, ranks=1, folder=f"{FOLDER}/worker-1")
    assert copied(source, target, 10) is not None


# -- which job is meant


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("digits", ("digits", None)),
        ("digits-a1b2c3d4@1200", ("digits-a1b2c3d4", 1200)),
        ("az://box@account/jobs/a-1", ("az://box@account/jobs/a-1", None)),
        ("az://box@account/jobs/a-1@7", ("az://box@account/jobs/a-1", 7)),
        ("digits@newest", ("digits@newest", None)),
        ("@7", ("@7", None)),
    ],
)
def test_a_job_and_a_step(text: str, parts: tuple[str, int | None]) -> None:
    assert split_step(text) == parts


def test_a_folder_is_enough_and_its_dropped_progress_does_not_count(source: JobDir) -> None:
    source.put(JOB_KEY, JobRecord(job_id="a-1", name="a", run="true").to_bytes())
    with pytest.raises(SubmitError, match="a-1 has saved no checkpoint"):
        of_url(source.url, None)
    saved(source, 10, 20, attempt=1)
    assert of_url(source.url, None).since == 0
    with pytest.raises(SubmitError, match="no checkpoint of step 15; it has: 20, 10"):
        of_url(source.url, 15)
    source.put(attempt_key(2), AttemptRecord(2, {}, [], progress_since=2).to_bytes())
    with pytest.raises(SubmitError, match="has saved no checkpoint"):
        of_url(source.url, None)


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"job_id": 7}', b'{"job_id": "a\\u001b[2J", "name": "a", "run": "true"}']
)
def test_a_folder_of_no_job_is_refused(source: JobDir, content: bytes | None) -> None:
    if content is not None:
        source.put(JOB_KEY, content)
    with pytest.raises(SubmitError, match=r"no job's folder|not a JobRecord|invalid job_id"):
        of_url(source.url, None)
