"""Validation of records read from the job dir and a fleet's folder: types, sizes, depth, versions."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import (
    Address,
    Generation,
    Heartbeat,
    JobDir,
    JobDirError,
    Notice,
    Record,
    RecordError,
    Result,
    Stop,
    generation_key,
    local_url,
    node_key,
    read_generation,
)
from cloudgpu.runtime.fleet import work as fleet_work
from cloudgpu.runtime.notices import acknowledge

BEAT = b'{"sequence":1,"time":2.5,"phase":"running"%s}'


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "job"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"5", "an object is needed, and 5 is there"),
        (b"{}", "sequence: it is missing"),
        (b"\xff", "can't decode byte"),
        (b"9" * 5_000, "4300 digits"),
        (b'{"sequence":true}', "sequence: a whole number is needed, and true is there"),
        (b'{"sequence":1e999}', "sequence: a whole number is needed"),
        (b'{"sequence":' + b"9" * 400 + b"}", "sequence: a whole number up to"),
        (b'{"sequence":1,"time":NaN}', "NaN is no number of JSON"),
        (b'{"sequence":1,"time":1e300}', "time: a number up to"),
        (b'{"sequence":1,"time":2,"phase":5}', "phase: setup or waiting or running or stopping is needed, and 5"),
        (BEAT % b',"progress":5', "progress: an object is needed, and 5 is there"),
        (BEAT % b',"timeline":{"claimed":1,"spans":5}', "timeline.spans: a list is needed, and 5 is there"),
        (BEAT % b',"timeline":{"claimed":1,"spans":[{"generation":1}]}', "timeline.spans.0.started: it is missing"),
        (BEAT % b" " + b" " * (5 << 20), "bytes, 4194304 at most are allowed"),
    ],
    ids=range(15),
)
def test_what_is_wrong_is_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        Heartbeat.from_bytes(data)
    assert "not a Heartbeat: " in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


def test_figures_of_the_program_that_cannot_be_are_left_out() -> None:
    """Invalid figures in a program's progress do not make its machine count as lost."""
    progress = b'{"step":12.0,"saved_step":[],"cost":1e999,"lag":true,"mean":"x","newer":1,"step_seconds":3}'
    assert Heartbeat.from_bytes(BEAT % (b',"progress":' + progress)).progress == {"step": 12, "step_seconds": 3}


def test_words_of_a_newer_version_are_understood_as_far_as_they_can_be() -> None:
    result = Result.from_bytes(b'{"outcome":"moved","exit_code":0,"reason":"x","started":1,"ended":2,"newer":[1]}')
    assert (result.outcome, result.reason) == ("error", "unknown outcome 'moved': x")
    assert Heartbeat.from_bytes((BEAT % b"").replace(b"running", b"saving")).phase == "running"
    assert Stop.from_bytes(b'{"reason":"budget","deadline":1}').reason == "cancel"
    assert Notice.from_bytes(b'{"kind":"hibernate","deadline":1,"source":"x"}').kind == "terminate"


def test_every_class_of_records_can_be_checked() -> None:
    assert [fleet_work.Task, acknowledge.MachineName]
    for kind in Record.__subclasses__():
        with pytest.raises(RecordError):
            kind.from_value([])


@pytest.mark.parametrize("reads", [Heartbeat, Result, Address])
def test_no_more_is_read_than_a_record_may_have(job_dir: JobDir, reads: type[Record]) -> None:
    key = node_key(1, "worker-0.1", "it.json")
    job_dir.put(key, b"{}")
    assert job_dir.folder is not None
    os.truncate(job_dir.folder / key, 1 << 40)  # a sparse file, larger than any memory
    with pytest.raises(RecordError, match="1099511627776 bytes"):
        reads.read(job_dir, key)


@pytest.mark.parametrize("kind", ["folder", "pipe", "below a file"])
def test_what_is_no_file_is_refused_at_once(job_dir: JobDir, kind: str) -> None:
    key = node_key(1, "worker-0.1", "heartbeat.json")
    job_dir.put("attempts/0001/attempt.json", b"{}")
    assert job_dir.folder is not None
    path = job_dir.folder / key
    path.parent.parent.mkdir()
    if kind == "below a file":
        path.parent.write_text("x")
        assert Heartbeat.read(job_dir, key) is None
        return
    path.parent.mkdir()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    failed: list[JobDirError] = []

    def read() -> None:
        try:
            Heartbeat.read(job_dir, key)
        except RecordError as error:
            failed.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for somebody to write into the pipe"
    assert "is no file" in str(failed[0])


def test_a_damaged_generation_ends_the_row(job_dir: JobDir) -> None:
    """It reads as `closed`: a node cannot follow an unreadable record, and no other can be created under its number."""
    assert read_generation(job_dir, 1, 2) is None
    record = Generation(3, "failure", "worker-0.1", True, "x", 0.0, 1, 0, 1.0, "n")
    for data in (b"torn", dataclasses.replace(record, nodes=[{"node": 5}]).to_bytes(), record.to_bytes()):
        job_dir.put(generation_key(1, 2), data)
        found = read_generation(job_dir, 1, 2)
        assert found is not None
        assert (found.generation, found.kind) == (2, "closed")


def test_a_name_does_not_lead_out_of_the_job_dir(job_dir: JobDir, tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("{}")
    job_dir.put("a/b.json", b"{}")
    with pytest.raises(JobDirError):
        job_dir.get("a/../../outside.json", 100)
