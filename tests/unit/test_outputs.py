"""Outputs in a job dir: which files there are, from which attempt, and names that lead elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, Result, attempt_key, local_url, node_key
from cloudgpu.protocol.outputs import OutputsRecord, find_outputs, missing_outputs
from cloudgpu.storage.downloads import safe_parts

from ..standins import s3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


@pytest.fixture
def job_dir(store: s3.S3) -> JobDir:
    return JobDir(store.url)


def record(job_dir: JobDir, attempt: int, node: str = "worker-0.1", **files: tuple[int, str]) -> None:
    sizes = {f"outputs/{name}": size for name, (size, _) in files.items()}
    sums = {f"outputs/{name}": checksum for name, (_, checksum) in files.items()}
    job_dir.put(node_key(attempt, node, "outputs.json"), OutputsRecord(sizes, sums).to_bytes())


def test_each_file_is_from_the_newest_attempt_that_recorded_it(job_dir: JobDir) -> None:
    for name in ("old", "both", "own"):
        job_dir.put(f"outputs/{name}", b"123")
    record(job_dir, 1, old=(3, "a"), both=(3, "b"))
    record(job_dir, 2, both=(3, "c"), gone=(3, "d"))
    found = {output.path: (output.attempt, output.sha256) for output in find_outputs(job_dir).found}
    assert found == {
        "old": (1, frozenset({"a"})),
        "both": (2, frozenset({"b", "c"})),
        "own": (None, frozenset()),
    }


def test_a_record_of_another_size_is_of_another_file(job_dir: JobDir) -> None:
    """An attempt that was lost while it copied leaves files of the attempt before it."""
    job_dir.put("outputs/model", b"123")
    record(job_dir, 1, model=(3, "a"))
    record(job_dir, 2, model=(4, "b"))
    (model,) = find_outputs(job_dir).found
    assert (model.attempt, model.sha256) == (1, frozenset({"a"}))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"sizes": 3}', b'{"sizes": {"outputs/a": "x"}}', b'{"sizes": {}}'])
def test_an_invalid_record_is_done_without(job_dir: JobDir, data: bytes) -> None:
    job_dir.put("outputs/a", b"123")
    job_dir.put(node_key(2, "worker-0.1", "outputs.json"), data)
    record(job_dir, 1, a=(3, "x"))
    (found,) = find_outputs(job_dir).found
    assert found.attempt == 1


def test_old_attempts_are_not_read_where_the_newest_has_all(store: s3.S3, job_dir: JobDir) -> None:
    job_dir.put("outputs/a", b"123")
    for attempt in range(1, 30):
        record(job_dir, attempt, a=(3, "x"))
    store.requests.clear()
    find_outputs(job_dir)
    assert len(store.requests) == 4


@pytest.mark.parametrize("key", ["", ".", "..", "../x", "a/../x", "/x", "a/", "a\0b"])
def test_names_that_lead_out_are_no_paths(key: str) -> None:
    assert safe_parts(key) is None


def test_names_are_paths_below_the_folder() -> None:
    assert safe_parts("a/b..c/.d") == ("a", "b..c", ".d")


def test_a_name_that_no_key_can_have_is_an_error(store: s3.S3, job_dir: JobDir) -> None:
    store.objects["job/outputs/../../x"] = b"1"
    with pytest.raises(JobDirError, match="invalid path"):
        find_outputs(job_dir)


def test_markers_of_folders_are_no_files(store: s3.S3, job_dir: JobDir) -> None:
    store.objects |= {"job/outputs/plots/": b"", "job/outputs/plots/a": b"1", "job/outputs/empty": b""}
    assert [output.path for output in find_outputs(job_dir).found] == ["empty", "plots/a"]


def test_links_out_of_a_local_folder_are_left_out(tmp_path: Path) -> None:
    job_dir = JobDir(local_url(tmp_path / "job"))
    job_dir.put("outputs/a", b"1")
    (tmp_path / "secret").write_text("key")
    (tmp_path / "job/outputs/link").symlink_to(tmp_path / "secret")
    (tmp_path / "job/outputs/near").symlink_to(tmp_path / "job/outputs/a")
    assert "link" not in [output.path for output in find_outputs(job_dir).found]


def test_missing_ones_are_those_of_the_results(job_dir: JobDir) -> None:
    def put(node: str, missing: list[str]) -> None:
        result = Result("succeeded", 0, "", 1.0, 2.0, missing_outputs=missing)
        job_dir.put(node_key(1, node, "result.json"), result.to_bytes())

    job_dir.put(attempt_key(1), b"{}")
    put("worker-0.1", ["a", "b"])
    put("worker-1.1", [])
    job_dir.put(node_key(1, "worker-2.1", "result.json"), b"rubbish")
    nodes = ["worker-0.1", "worker-1.1", "worker-2.1", "worker-3.1"]
    assert missing_outputs(job_dir, 1, nodes) == ["a", "b"]
