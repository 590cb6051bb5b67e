"""`cloudgpu outputs` with a job's folder in a bucket: what is fetched, verified, kept, refused, and resumed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloudgpu.cli import main
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, Result, attempt_key, node_key
from cloudgpu.protocol.outputs import OutputsRecord
from cloudgpu.storage.downloads import PART, Download, DownloadError

from ..standins import s3
from ..standins.control import make_offer

LARGE = os.urandom(1 << 20) * 40


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        job_dir = JobDir(standin.url)
        job_dir.put(JOB_KEY, JobRecord(job_id="job-1", name="job", run="x").to_bytes())
        node = {"node": "worker-0.1", "role": "worker", "index": 0, "rank": 0, "gpus": 0}
        job_dir.put(attempt_key(1), AttemptRecord(1, dict(make_offer().to_json()), [node]).to_bytes())
        result = Result("succeeded", 0, "", 1.0, 2.0, missing_outputs=["nope"])
        job_dir.put(node_key(1, "worker-0.1", "result.json"), result.to_bytes())
        yield standin


def put(store: s3.S3, files: dict[str, bytes], *, recorded: bool = True) -> None:
    job_dir = JobDir(store.url)
    for name, data in files.items():
        job_dir.put(f"outputs/{name}", data)
    if recorded:
        sums = {f"outputs/{name}": hashlib.sha256(data).hexdigest() for name, data in files.items()}
        sizes = {f"outputs/{name}": len(data) for name, data in files.items()}
        job_dir.put(node_key(1, "worker-0.1", "outputs.json"), OutputsRecord(sizes, sums).to_bytes())


def outputs(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Done:
    capsys.readouterr()
    code = main(["outputs", "s3://bucket/job", *map(str, words)])
    printed = capsys.readouterr()
    return Done(code, printed.out, printed.err)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_lists_what_there_is_and_what_is_missing(store: s3.S3, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"plots/loss.png": b"123", "m\u202e": b""})
    done = outputs(capsys)
    assert done.code == 0
    assert [line.split()[:4] for line in done.out.splitlines()][1:] == [
        ["m\\u202e", "0", "B", "1"],
        ["plots/loss.png", "3", "B", "1"],
    ]
    assert "warning: a declared output is missing: nope" in done.err
    assert "2 files, 3 B, in s3://bucket/job/outputs" in done.err
    assert "cloudgpu outputs s3://bucket/job --to FOLDER" in done.err
    found = json.loads(outputs(capsys, "--json").out)
    assert (found["job"], found["url"], found["missing"]) == ("job-1", "s3://bucket/job/outputs", ["nope"])
    assert found["files"][1] == {
        "path": "plots/loss.png",
        "size": 3,
        "modified": found["files"][1]["modified"],
        "attempt": 1,
    }


def test_without_any_it_says_how_to_have_some(store: s3.S3, capsys: pytest.CaptureFixture[str]) -> None:
    done = outputs(capsys)
    assert (done.code, done.out) == (0, "")
    assert "job-1 has no outputs: name files in `outputs:` of the job file, or call write_output()" in done.err


def test_a_download_is_verified_and_repeated_for_nothing(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, {"model.pt": LARGE, "plots/loss.png": b"123"})
    put(store, {"own.json": b"{}"}, recorded=False)
    done = outputs(capsys, "--to", tmp_path / "to")
    assert done.code == 0
    assert done.out.splitlines()[1] == "verified: 2 files by SHA-256, 1 file by size and ETag"
    assert tree(tmp_path / "to") == {"model.pt": LARGE, "plots/loss.png": b"123", "own.json": b"{}"}
    store.requests.clear()
    again = json.loads(outputs(capsys, "--to", tmp_path / "to", "--json").out)
    assert [file["fetched"] for file in again["files"]] == [False] * 3
    assert [file["verified"] for file in again["files"]] == ["sha256", "etag", "sha256"]
    assert store.count("GET", "outputs/") == 0


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["model.pt"], {"model.pt"}),
        (["plots"], {"plots/a.png", "plots/b.txt"}),
        (["plots/", "./model.pt"], {"model.pt", "plots/a.png", "plots/b.txt"}),
        (["*.png"], {"plots/a.png"}),
    ],
)
def test_paths_choose(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str], paths: list[str], names: set[str]
) -> None:
    put(store, {"model.pt": b"1", "plots/a.png": b"2", "plots/b.txt": b"3", "plots2/c": b"4"})
    assert outputs(capsys, *paths, "--to", tmp_path / "to").code == 0
    assert set(tree(tmp_path / "to")) == names


def test_a_path_without_outputs_is_an_error(store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"model.pt": b"1"})
    done = outputs(capsys, "modl.pt", "--to", tmp_path / "to")
    assert done.code == 2 and "did you mean model.pt?" in done.err and not (tmp_path / "to").exists()


def test_files_that_differ_are_not_replaced(store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"a": b"new", "b": b"1"})
    to = tmp_path / "to"
    to.mkdir()
    (to / "a").write_bytes(b"own")
    done = outputs(capsys, "--to", to)
    assert done.code == 2 and "1 file would be replaced by different ones" in done.err
    assert tree(to) == {"a": b"own"}
    assert outputs(capsys, "--to", to, "--force").code == 0
    assert tree(to) == {"a": b"new", "b": b"1"}


def test_one_without_a_checksum_is_the_same_if_size_and_time_are(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, {"a": b"new"}, recorded=False)
    assert outputs(capsys, "--to", tmp_path).code == 0
    assert outputs(capsys, "--to", tmp_path).code == 0
    (tmp_path / "a").write_bytes(b"own")
    assert outputs(capsys, "--to", tmp_path).code == 2


@pytest.mark.parametrize("there", ["file", "folder"])
def test_a_file_and_a_folder_of_one_name_are_refused(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    put(store, {"a/b": b"1"})
    if there == "file":
        (tmp_path / "a").touch()
    else:
        (tmp_path / "a/b").mkdir(parents=True)
    done = outputs(capsys, "--to", tmp_path, "--force")
    assert done.code == 2 and "a file and a folder would have the same name" in done.err


def test_a_file_that_was_written_over_is_kept_with_a_warning(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, {"a": b"1", "own": b"mine", "c": b"3"})
    put(store, {"own": b"over"}, recorded=False)
    for was_there in (False, True):
        done = outputs(capsys, "--to", tmp_path, "--json")
        assert done.code == 0 and f"warning: {tmp_path}/own is what the store has" in done.err
        files = {file["path"]: (file["verified"], not file["fetched"]) for file in json.loads(done.out)["files"]}
        assert files == {"a": ("sha256", was_there), "own": ("etag", was_there), "c": ("sha256", was_there)}
        assert tree(tmp_path) == {"a": b"1", "own": b"over", "c": b"3"}


def test_a_damaged_file_of_a_store_without_etags_is_not_kept(tmp_path: Path) -> None:
    job_dir = JobDir((tmp_path / "job").as_uri())
    job_dir.put("outputs/bad", b"evil")
    (entry,) = job_dir.entries("outputs")
    file = Download(
        job_dir, replace(entry, etag=""), tmp_path / "bad", frozenset({hashlib.sha256(b"good").hexdigest()})
    )
    file.partial.write_bytes(b"evil")
    with pytest.raises(DownloadError, match="outputs/bad is damaged"):
        file.finish()
    assert not file.path.exists() and not file.partial.exists()


@pytest.mark.parametrize("name", [".cloudgpu-download", ".cloudgpu-download/a", "plots/a.cloudgpu-partial"])
def test_the_names_of_a_download_itself_are_refused(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(store, {name: b"1", "a": b"2"})
    done = outputs(capsys, "--to", tmp_path / "to")
    assert done.code == 2 and f"the output {name} cannot be downloaded" in done.err
    assert not (tmp_path / "to").exists()
    assert outputs(capsys, "a", "--to", tmp_path / "to").code == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_folder_of_a_job_that_moved_says_where_to(
    store: s3.S3, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    put(store, {"a": b"1"})
    moved = AttemptRecord(2, dict(make_offer().to_json()), [], job_dir="gs://there/job")
    JobDir(store.url).put(attempt_key(2), moved.to_bytes())
    done = outputs(capsys, *options)
    assert done.code == 0 and "the job went on in another cloud: cloudgpu outputs gs://there/job" in done.err


def test_a_store_that_fails_is_asked_again(store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"a": b"1"})
    store.fail("GET", "outputs/a", status=503, code="SlowDown", times=4)
    assert outputs(capsys, "--to", tmp_path).code == 0


def test_a_name_that_is_too_long_is_an_error(store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"x" * 300: b"1"})
    done = outputs(capsys, "--to", tmp_path)
    assert done.code == 6 and "too long" in done.err


def test_two_downloads_into_a_folder_are_not_run_at_once(
    store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, {"a": b"1"})
    with (tmp_path / ".cloudgpu-download").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = outputs(capsys, "--to", tmp_path)
    assert done.code == 6 and "another download into" in done.err


def test_a_killed_download_goes_on(store: s3.S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, {"model.pt": LARGE, "small": b"1"})
    last = f"bytes={2 * PART}-{len(LARGE) - 1}"
    hanging: list[Any] = []

    def is_last(request: s3.Request) -> bool:
        if request.headers.get("Range") == last:
            hanging.append(request)
        return bool(hanging) and hanging[-1] is request

    store.faults.append(s3.Fault(is_last, hang=True))
    command = [sys.executable, "-m", "cloudgpu", "outputs", store.url, "--to", str(tmp_path / "to")]
    process = subprocess.Popen(command, env={**os.environ, **store.environment})
    journal = tmp_path / "to/.cloudgpu-download"
    until = time.monotonic() + 180
    while not hanging or not journal.exists() or len(journal.read_text().splitlines()) < 3:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "model.pt" not in tree(tmp_path / "to")
    store.faults.clear()
    store.requests.clear()
    assert outputs(capsys, "--to", tmp_path / "to").code == 0
    assert tree(tmp_path / "to") == {"model.pt": LARGE, "small": b"1"}
    ranges = [
        request.headers["Range"] for request in store.requests if request.kind == "GET" and "outputs/" in request.key
    ]
    assert ranges == [last]


def test_options_that_need_each_other(store: s3.S3, capsys: pytest.CaptureFixture[str]) -> None:
    assert outputs(capsys, "--force").code == 2
