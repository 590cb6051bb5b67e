"""Outputs in a job dir: which files there are, from which attempt, and names that lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, Result, attempt_key, local_url, node_key
from cloudgpu.protocol.outputs import OutputsRecord, find_outputs, missing_outputs
from cloudgpu.runtime import outputs as uploads
from cloudgpu.runtime.outputs import Before, Destination, upload_outputs
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


def test_the_record_of_an_attempt_that_was_lost_before_it_copied_hides_none(job_dir: JobDir) -> None:
    job_dir.put("outputs/a", b"123")
    record(job_dir, 1, a=(3, "x"))
    record(job_dir, 2, a=(3, "y"))
    (found,) = find_outputs(job_dir).found
    assert found.sha256 == {"x", "y"}


def test_where_an_attempt_had_no_time_for_a_checksum_none_counts(job_dir: JobDir) -> None:
    job_dir.put("outputs/a", b"123")
    record(job_dir, 1, a=(3, "x"))
    job_dir.put(node_key(2, "worker-0.1", "outputs.json"), OutputsRecord({"outputs/a": 3}, {}).to_bytes())
    (found,) = find_outputs(job_dir).found
    assert (found.attempt, found.sha256) == (2, frozenset())


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


class TestUpload:
    """Copy of a node's files to the job dir."""

    @pytest.fixture
    def code(self, tmp_path: Path) -> Path:
        folder = tmp_path / "code"
        (folder / "results").mkdir(parents=True)
        (folder / "results/loss").write_bytes(b"0.5")
        (folder / "model").write_bytes(b"12345")
        return folder

    def upload(
        self,
        job_dir: JobDir,
        code: Path,
        wanted: Sequence[str] = ("results", "model"),
        *,
        seconds_left: Callable[[], float] = lambda: 100.0,
        unchanged: Container[str] = (),
    ) -> list[str]:
        self.said: list[str] = []
        to = Destination(job_dir, 1, "worker-0.1", "outputs")
        return upload_outputs(wanted, code, to, unchanged=unchanged, seconds_left=seconds_left, say=self.said.append)

    def recorded(self, job_dir: JobDir) -> OutputsRecord:
        found = OutputsRecord.read(job_dir, node_key(1, "worker-0.1", "outputs.json"))
        assert found is not None
        return found

    def test_a_failed_look_for_a_newer_attempt_loses_nothing(self, store: s3.S3, job_dir: JobDir, code: Path) -> None:
        store.fail("HEAD", "attempts/0002", status=400, code="InvalidRequest")
        assert self.upload(job_dir, code) == []
        assert job_dir.list("outputs") == ["outputs/model", "outputs/results/loss"]
        assert "whether a newer attempt has begun is not known" in self.said[0]

    def test_a_superseded_node_writes_nothing(self, job_dir: JobDir, code: Path) -> None:
        job_dir.put(attempt_key(2), b"{}")
        assert self.upload(job_dir, code) == [] and job_dir.list("outputs") == []

    def test_what_could_not_be_written_is_missing_also_if_an_older_one_is_there(
        self, store: s3.S3, job_dir: JobDir, code: Path
    ) -> None:
        job_dir.put("outputs/model", b"older")
        job_dir.put("outputs/plots/a", b"of an earlier attempt")
        (code / "results/other").write_bytes(b"1")
        store.fail("PUT", "outputs/model", status=403, code="AccessDenied")
        store.fail("PUT", "outputs/results/other", status=403, code="AccessDenied")
        assert self.upload(job_dir, code, ["results", "model", "plots"]) == ["results", "model"]
        assert any("results is incomplete: 1 of its 2 files" in text for text in self.said)

    def test_what_was_not_written_in_time_is_missing(self, store: s3.S3, job_dir: JobDir, code: Path) -> None:
        fault = store.fail("PUT", "outputs/model", hang=True)
        store.objects["job/outputs/model"] = b"of an earlier attempt"
        assert self.upload(job_dir, code, ["model"], seconds_left=lambda: 0.0 if fault.met else 100.0) == ["model"]

    def test_whether_one_is_there_must_be_known(self, store: s3.S3, job_dir: JobDir, code: Path) -> None:
        store.fail("HEAD", "outputs/nope", status=400, code="InvalidRequest")
        assert self.upload(job_dir, code, ["nope"]) == ["nope"]
        assert any("whether there is outputs/nope is not known" in text for text in self.said)

    def test_files_that_vanish_are_left_out(self, job_dir: JobDir, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (code / "results/gone").write_bytes(b"1")
        (code / "gone").write_bytes(b"1")
        describe = uploads._record

        def vanish(*args: Any) -> None:
            (code / "results/gone").unlink()
            (code / "gone").unlink()
            describe(*args)

        monkeypatch.setattr(uploads, "_record", vanish)
        assert self.upload(job_dir, code, ["results", "model", "gone"]) == ["gone"]
        assert job_dir.list("outputs") == ["outputs/model", "outputs/results/loss"]
        assert set(self.recorded(job_dir).sha256) == {"outputs/model", "outputs/results/loss"}

    def test_files_that_vanish_while_they_are_listed_are_left_out(
        self, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        below = uploads._below
        monkeypatch.setattr(uploads, "_below", lambda place: [*below(place), code / "results/gone"])
        before = Before(tmp_path / "before")
        before.note(["results"], code)
        assert before.unchanged(["results"], code) == {"results/loss"}

    def test_checksums_stop_when_their_time_is_over(
        self, job_dir: JobDir, code: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A notice comes while a file is read: what is left then decides."""
        left, pieces = 1_000.0, 0

        def sha256_of(_path: Path, check: Callable[[], None]) -> str:
            nonlocal left, pieces
            while pieces < 100:
                check()
                pieces += 1
                left = 0.0001 if pieces == 3 else left
            return "never"

        monkeypatch.setattr(uploads, "sha256_of", sha256_of)
        self.upload(job_dir, code, seconds_left=lambda: left)
        assert pieces == 3
        assert (self.recorded(job_dir).sizes, self.recorded(job_dir).sha256) == (
            {"outputs/model": 5, "outputs/results/loss": 3},
            {},
        )
        assert "outputs: the time is too short for the checksums of 2 files" in self.said

    def test_checksums_never_take_more_than_a_minute(
        self, job_dir: JobDir, code: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "_HASHED_PER_S", 4 / 60)  # bytes: the model is estimated at 75 s
        self.upload(job_dir, code, seconds_left=lambda: 6 * 3_600.0)
        assert set(self.recorded(job_dir).sha256) == {"outputs/results/loss"}
