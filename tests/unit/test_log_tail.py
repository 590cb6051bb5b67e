"""The end of a log: the same lines as the whole log has there, read from the end, whatever the objects hold."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, local_url, node_key
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.protocol.logs.writer import LogWriter

from ..standins import s3


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    made = JobDir(local_url(tmp_path / "job"))
    made.put("job.json", b"{}")
    return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


def member(lines: list[str], begin: float = 0.0) -> bytes:
    rows = (json.dumps([begin + index, 0, "stdout", text]) for index, text in enumerate(lines))
    return gzip.compress("\n".join(rows).encode(), mtime=0)


def put(job_dir: JobDir, data: bytes, chunk: int = 1, node: str = "worker-0.1", attempt: int = 1) -> None:
    job_dir.put(node_key(attempt, node, f"log/{chunk:08d}.gz"), data)


def texts(job_dir: JobDir, count: int) -> list[str]:
    return [line.text for line in LogReader(job_dir).tail(count)[0]]


def whole(job_dir: JobDir) -> list[str]:
    return [line.text for line in LogReader(job_dir).read(limit=10_000_000)[0]]


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_end_of_the_whole_log(job_dir: JobDir, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    for chunk in range(1, chance.randint(2, 5)):
        data = b""
        for _ in range(chance.randint(1, 30)):
            lines = [f"{number + i} {chance.randbytes(chance.choice((0, 9, 9_000))).hex()}" for i in range(9)]
            data += member(lines, number)
            number += 9
        put(job_dir, data, chunk)
    for count in (0, 1, 8, 9, 10, number - 1, number, number + 1):
        assert texts(job_dir, count) == (whole(job_dir)[-count:] if count else [])


def test_bytes_that_look_like_the_beginning_of_a_member_are_none(job_dir: JobDir) -> None:
    header = gzip.compress(b"", mtime=0)[:8]
    inner = gzip.compress(b'[1,0,"stdout","inner"]', mtime=0)
    stored = gzip.compress(json.dumps([1, 0, "stdout", "x"]).encode(), compresslevel=0, mtime=0)
    put(job_dir, member(["a", "b"]) + stored + member([header.hex(), inner.hex()]))
    assert texts(job_dir, 3) == ["x", header.hex(), inner.hex()]


def test_damage_is_read_from_the_beginning_and_said(job_dir: JobDir) -> None:
    put(job_dir, member(["a", "b"]) + b"rubbish", 1)
    put(job_dir, member(["c"]), 2)
    found = texts(job_dir, 10)
    assert found[:2] == ["a", "b"]
    assert "is damaged from byte" in found[2]
    assert found[3:] == ["c"]


def test_members_of_another_writer_are_read_too(job_dir: JobDir) -> None:
    put(job_dir, gzip.compress(b'[1,0,"stdout","named"]', mtime=7) + member(["mine"]))
    assert texts(job_dir, 5) == ["named", "mine"]
    assert texts(job_dir, 1) == ["mine"]


def test_lines_of_several_machines_and_attempts_are_in_order(job_dir: JobDir) -> None:
    put(job_dir, member(["old 0", "old 1"]), attempt=1)
    put(job_dir, member(["a0", "a1"], 10.0), node="worker-0.1", attempt=2)
    put(job_dir, member(["b0", "b1"], 10.5), node="worker-1.1", attempt=2)
    assert texts(job_dir, 3) == ["b0", "a1", "b1"]
    assert texts(job_dir, 5) == ["old 1", "a0", "b0", "a1", "b1"]
    reader = LogReader(job_dir)
    assert [line.text for line in reader.tail(9, attempt=1)[0]] == ["old 0", "old 1"]
    assert [line.text for line in reader.tail(1, node="worker-0")[0]] == ["a1"]
    assert [line.text for line in reader.tail(9, since=10.6)[0]] == ["a1", "b1"]


@pytest.mark.parametrize("count", [0, 1, 100])
def test_following_goes_on_after_it(job_dir: JobDir, count: int) -> None:
    writer = LogWriter(job_dir, 1, "worker-0.1")
    writer.add("stdout", 0, "first")
    assert writer.close(180)
    reader = LogReader(job_dir)
    lines, cursor = reader.tail(count)
    assert [line.text for line in lines] == ["first"][:count]
    again = LogWriter(job_dir, 1, "worker-0.1", chunk=2)
    again.add("stdout", 0, "second")
    assert again.close(180)
    put(job_dir, member(["other attempt"]), attempt=2)
    assert [line.text for line in reader.read(cursor)[0]] == ["second", "other attempt"]


def test_only_the_end_is_fetched(store: s3.S3) -> None:
    job_dir = JobDir(store.url)
    noise = random.Random(7)
    for chunk in range(1, 6):
        put(job_dir, b"".join(member([noise.randbytes(30_000).hex()], chunk) for _ in range(40)), chunk)
    store.requests.clear()
    assert len(texts(job_dir, 2)) == 2
    ranges = [request.headers["Range"] for request in store.requests if request.kind == "GET"]
    fetched = sum(int(last) - int(first) + 1 for first, last in (span[6:].split("-") for span in ranges))
    assert fetched < 200_000
    assert len(store.requests) <= 6
