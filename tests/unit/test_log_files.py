"""Logs written as files: one for each attempt and machine; what is there and differs is kept."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudgpu.cli.shared.errors import CommandError
from cloudgpu.cli.shared.job.follow import LogFilter
from cloudgpu.cli.shared.job.log_files import write_logs
from cloudgpu.protocol.jobdir import JobDir, local_url, node_key
from cloudgpu.protocol.logs.reader import LogReader


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    made = JobDir(local_url(tmp_path / "job"))
    made.put("job.json", b"{}")
    return made


def put(job_dir: JobDir, rows: list[list[Any]], attempt: int = 1, node: str = "worker-0.1") -> None:
    data = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    job_dir.put(node_key(attempt, node, "log/00000001.gz"), data)


def write(job_dir: JobDir, folder: Path, *, ranks: int = 1, force: bool = False, **more: Any) -> dict[str, str]:
    offer = SimpleNamespace(roles=[SimpleNamespace(count=ranks, nodes=1)])
    job: Any = SimpleNamespace(logs=lambda: LogReader(job_dir), offer=offer)
    chosen = LogFilter(**{name: value for name, value in more.items() if name != "timestamps"})
    write_logs(job, folder, chosen, timestamps=bool(more.get("timestamps")), force=force)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_attempt_and_machine_has_a_file(job_dir: JobDir, tmp_path: Path) -> None:
    put(job_dir, [[1, 0, "stdout", "one \x1b[31mred\x1b[0m\x1b[2J"]])
    put(job_dir, [[2, 0, "stdout", "two"]], node="worker-1.1")
    put(job_dir, [[3, 0, "stdout", "more", True], [3, 0, "stdout", " of it"]], attempt=2)
    expected = {
        "attempt-1/worker-0.1.log": "one red\n",
        "attempt-1/worker-1.1.log": "two\n",
        "attempt-2/worker-0.1.log": "more of it\n",
    }
    assert write(job_dir, tmp_path / "logs") == expected
    assert set(write(job_dir, tmp_path / "some", attempt=1, node="worker-1")) == {"attempt-1/worker-1.1.log"}


def test_ranks_and_times_are_before_the_lines(job_dir: JobDir, tmp_path: Path) -> None:
    put(job_dir, [[1, 0, "stdout", "a"], [1.5, 1, "stderr", "b"], [2, None, "agent", "c"]])
    found = write(job_dir, tmp_path / "logs", ranks=2, timestamps=True)["attempt-1/worker-0.1.log"]
    assert found.splitlines() == [
        "1970-01-01T00:00:01.000Z rank 0 | a",
        "1970-01-01T00:00:01.500Z rank 1 | b",
        "1970-01-01T00:00:02.000Z c",
    ]


def test_a_log_that_has_grown_replaces_its_beginning_and_nothing_else(job_dir: JobDir, tmp_path: Path) -> None:
    put(job_dir, [[1, 0, "stdout", "a"]])
    write(job_dir, tmp_path / "logs")
    put(job_dir, [[1, 0, "stdout", "a"], [2, 0, "stdout", "b"]])
    assert write(job_dir, tmp_path / "logs") == {"attempt-1/worker-0.1.log": "a\nb\n"}
    (tmp_path / "logs/attempt-1/worker-0.1.log").write_text("notes of mine")
    with pytest.raises(CommandError, match="is there, and is not the beginning"):
        write(job_dir, tmp_path / "logs")
    assert (tmp_path / "logs/attempt-1/worker-0.1.log").read_text() == "notes of mine"
    assert write(job_dir, tmp_path / "logs", force=True) == {"attempt-1/worker-0.1.log": "a\nb\n"}


def test_names_that_are_no_machines_are_left_out(
    job_dir: JobDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(job_dir, [[1, 0, "stdout", "a"]], node="-rf~x")
    assert write(job_dir, tmp_path / "logs") == {}
    assert "left out, because it is no name of a machine: -rf~x" in capsys.readouterr().err
