"""Log lines from a writer to a reader: order, resumption, bounded memory, failing job dirs, damage."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from cloudgpu.cli.shared.text import clock
from cloudgpu.protocol.jobdir import JobDir, local_url, node_key
from cloudgpu.protocol.logs import writer as log_writer
from cloudgpu.protocol.logs.format import LogLine
from cloudgpu.protocol.logs.reader import Cursor, LogReader
from cloudgpu.protocol.logs.writer import LogWriter


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    made = JobDir(local_url(tmp_path / "job"))
    made.put("job.json", b"{}")
    return made


def write(job_dir: JobDir, lines: list[str], node: str = "worker-0.1", attempt: int = 1) -> None:
    writer = LogWriter(job_dir, attempt, node)
    for line in lines:
        writer.add("stdout", 0, line)
    assert writer.close(180)


def drain(reader: LogReader, cursor: Cursor | None = None, **filters: object) -> tuple[list[LogLine], Cursor]:
    """Read everything as a follower does; the cursor is serialized to JSON after each read."""
    found: list[LogLine] = []
    while True:
        lines, cursor = reader.read(cursor, **filters)  # type: ignore[arg-type]
        cursor = json.loads(json.dumps(cursor))
        if not lines:
            return found, cursor
        found += lines


def test_lines_come_back_as_written(job_dir: JobDir) -> None:
    begun, writer = time.time(), LogWriter(job_dir, 2, "worker-0.1")
    writer.add("stdout", 0, "first \u2603 \x00 \x1b[31m")
    writer.add("stderr", 1, "", partial=True)
    writer.add_agent_line("stopping")
    assert writer.close(180)
    lines, _ = LogReader(job_dir).read()
    assert [(x.node, x.rank, x.stream, x.text, x.attempt, x.partial) for x in lines] == [
        ("worker-0.1", 0, "stdout", "first \u2603 \x00 \x1b[31m", 2, False),
        ("worker-0.1", 1, "stderr", "", 2, True),
        ("worker-0.1", None, "agent", "stopping", 2, False),
    ]
    assert begun - 1 < lines[0].time < time.time() + 1


def test_no_log_yet(tmp_path: Path, job_dir: JobDir) -> None:
    lines, cursor = LogReader(JobDir(local_url(tmp_path / "none"))).read()
    assert lines == []
    write(job_dir, ["now"])
    assert [line.text for line in drain(LogReader(job_dir), cursor)[0]] == ["now"]


def test_a_flood_keeps_order_in_few_objects(job_dir: JobDir) -> None:
    texts = [f"step {number} loss {number * 0.37:.6f} " + "x" * 60 for number in range(60_000)]
    write(job_dir, texts)
    assert [line.text for line in drain(LogReader(job_dir))[0]] == texts
    assert len(job_dir.list("attempts")) < 20


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_reading_in_pieces_loses_and_repeats_nothing(job_dir: JobDir, limit: int) -> None:
    texts = [str(number) for number in range(60)]
    write(job_dir, texts)
    assert [line.text for line in drain(LogReader(job_dir), limit=limit)[0]] == texts


def test_following_while_written(job_dir: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "CHUNK_BYTES", 300)  # gives the reader many objects that grow and end
    writer, reader, found = LogWriter(job_dir, 1, "worker-0.1"), LogReader(job_dir), []
    cursor = None
    for number in range(300):
        writer.add("stdout", 0, str(number))
        if number % 10 == 0:
            time.sleep(0.005)
            lines, cursor = reader.read(cursor)
            found += lines
    assert writer.close(180)
    rest, _ = drain(reader, cursor)
    assert [line.text for line in found + rest] == [str(number) for number in range(300)]


def test_the_log_of_a_job_that_moved_is_one(tmp_path: Path) -> None:
    """An attempt in another job dir that begins while the log is read comes after the previous one."""
    places: dict[int, JobDir] = {}
    reader = LogReader(JobDir(local_url(tmp_path / "1")), lambda: places)
    assert reader.read()[0] == []
    cursor, found = None, []
    for number in (1, 2, 3):
        places[number] = JobDir(local_url(tmp_path / f"{number % 2}"))
        writer = LogWriter(places[number], number, "worker-0.1")
        writer.add("stdout", 0, f"attempt {number}")
        assert writer.close(180)
        lines, cursor = reader.read(cursor)
        found += [line.text for line in lines]
    assert found == ["attempt 1", "attempt 2", "attempt 3"] == [line.text for line in drain(reader)[0]]
    assert [line.text for line in drain(reader, attempt=2)[0]] == ["attempt 2"]


@pytest.mark.alone
def test_latency_of_the_first_lines(job_dir: JobDir) -> None:
    def latency(number: int) -> float:
        writer, reader = LogWriter(job_dir, number, "worker-0.1"), LogReader(job_dir)
        begun = time.monotonic()
        writer.add("stdout", 0, "hello")
        while not reader.read(attempt=number)[0]:
            assert time.monotonic() - begun < 60
            time.sleep(0.01)
        took = time.monotonic() - begun
        assert writer.close(180)
        return took

    assert min(map(latency, range(1, 6))) < 1, "0.05 s are meant; the computer may be busy at times"


def test_polling_without_news_reads_no_object(job_dir: JobDir) -> None:
    write(job_dir, ["a", "b"])
    reader = LogReader(job_dir)
    _, cursor = drain(reader)
    (entry,) = job_dir.entries("attempts")
    assert cursor["nodes"] == {"1/worker-0.1": [1, entry.size, 0]}


def test_nodes_are_merged_by_time(job_dir: JobDir) -> None:
    writers = {node: LogWriter(job_dir, 1, node) for node in ("worker-0.1", "worker-1.1")}
    for number in range(20):
        writers[f"worker-{number % 2}.1"].add("stdout", 0, str(number))
        time.sleep(0.001)
    assert all(writer.close(180) for writer in writers.values())
    reader = LogReader(job_dir)
    assert [line.text for line in drain(reader, limit=3)[0]] == [str(number) for number in range(20)]
    assert [line.text for line in drain(reader, node="worker-1")[0]] == [str(number) for number in range(1, 20, 2)]
    assert drain(reader, node="worker-1.1") == drain(reader, node="worker-1")
    assert drain(reader, node="worker")[0] == []


def test_attempts_follow_one_another_and_old_ones_are_not_looked_at_again(job_dir: JobDir) -> None:
    reader = LogReader(job_dir)
    write(job_dir, ["a1", "a2"], attempt=1)
    _, cursor = drain(reader)
    assert cursor["done"] == 0
    write(job_dir, ["b1"], attempt=2)
    lines, cursor = drain(reader, cursor)
    assert [line.text for line in lines] == ["b1"]
    assert cursor["done"] == 1
    assert [line.text for line in drain(reader)[0]] == ["a1", "a2", "b1"]
    assert [line.text for line in drain(reader, attempt=1)[0]] == ["a1", "a2"]
    assert [line.text for line in drain(reader, attempt=2)[0]] == ["b1"]


def test_since(job_dir: JobDir) -> None:
    writer = LogWriter(job_dir, 1, "worker-0.1")
    writer.add("stdout", 0, "old")
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    writer.add("stdout", 0, "new")
    assert writer.close(180)
    lines, cursor = drain(LogReader(job_dir), since=since)
    assert [line.text for line in lines] == ["new"]
    lines, again = drain(LogReader(job_dir), since=time.time() + 100)
    assert lines == []
    assert again["nodes"] == cursor["nodes"], "what is too old is not read twice either"


def test_the_clock_never_goes_back(job_dir: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(job_dir, 1, "worker-0.1")
    writer.add("stdout", 0, "before")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    writer.add("stdout", 0, "after the clock was set to 1970")
    assert writer.close(180)
    first, second = LogReader(job_dir).read()[0]
    assert first.time <= second.time


def test_a_failing_job_dir_neither_stops_the_program_nor_fills_the_memory(
    tmp_path: Path, job_dir: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "BUFFER_BYTES", 4_000)
    writer = LogWriter(job_dir, 1, "worker-0.1")
    writer.add("stdout", 0, "first")
    while not job_dir.list("attempts"):
        time.sleep(0.01)
    (tmp_path / "job").rename(tmp_path / "away")
    for number in range(1_000):
        writer.add("stdout", 0, str(number))
    (tmp_path / "away").rename(tmp_path / "job")
    assert writer.close(180)
    lines = LogReader(job_dir).read()[0]
    missing = [int(line.text.split(" lines are missing here")[0]) for line in lines if line.stream == "agent"]
    kept = [line.text for line in lines if line.stream == "stdout"]
    assert kept[0] == "first"
    assert kept[-1] == "999", "the tail is what matters"
    assert sum(missing) == 1_001 - len(kept) > 0


def test_closing_ends_in_time_though_the_job_dir_is_gone(tmp_path: Path, job_dir: JobDir) -> None:
    writer = LogWriter(job_dir, 1, "worker-0.1")
    shutil.rmtree(tmp_path / "job")
    writer.add("stdout", 0, "never seen")
    assert not writer.close(0.3)  # the job dir stays deleted


class SlowJobDir(JobDir):
    """Job dir whose writes block until `let` is set."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.let = threading.Event()

    def put(self, key: str, data: bytes | Path) -> None:
        self.let.wait(180)
        super().put(key, data)


def test_a_slow_job_dir_holds_the_program_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "BUFFER_BYTES", 2_000)
    for name in ("MEMBER_BYTES", "GATHERED_BYTES"):  # what the first write takes is less than all lines
        monkeypatch.setattr(log_writer, name, 500)
    job_dir = SlowJobDir(local_url(tmp_path / "slow"))
    writer = LogWriter(job_dir, 1, "worker-0.1")

    def add_lines() -> None:
        for _ in range(200):
            writer.add("stdout", 0, "x" * 90)

    adding = threading.Thread(target=add_lines)
    adding.start()
    adding.join(0.5)
    assert adding.is_alive(), "waits for room"
    job_dir.let.set()
    adding.join(180)
    assert writer.close(180)
    assert len(LogReader(job_dir).read()[0]) == 200


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data[:-9] + b"\0" * 9, lambda data: b"rubbish"]
)
def test_damage_is_reported_and_skipped(job_dir: JobDir, damage: object) -> None:
    for chunk in (1, 2, 3):
        writer = LogWriter(job_dir, 1, "worker-0.1")
        writer._chunk = chunk
        writer.add("stdout", 0, f"chunk {chunk}")
        assert writer.close(180)
    key = job_dir.list("attempts")[1]
    job_dir.put(key, damage(job_dir.get(key)))  # type: ignore[operator]
    lines, _ = drain(LogReader(job_dir))
    assert [line.text for line in lines if line.stream == "stdout"] == ["chunk 1", "chunk 3"]
    assert "00000002.gz is damaged from byte 0 on" in next(line.text for line in lines if line.stream == "agent")


def test_other_objects_in_the_folder_are_no_log(job_dir: JobDir) -> None:
    write(job_dir, ["a"])
    job_dir.put("attempts/0001/nodes/worker-0.1/log/notes.txt", b"x")
    job_dir.put("attempts/backup/nodes/worker-0.1/log/00000001.gz", b"x")
    assert [line.text for line in drain(LogReader(job_dir))[0]] == ["a"]


LINES = {
    "odd times": [1e300, 0, "stdout", "x"],
    "no time": ["x", 0, "stdout", "x"],
    "no text": [1.0, 0, "stdout", 5],
    "no rank": [1.0, [], "stdout", "x"],
    "no stream": [1.0, 0, None, "x"],
    "too short": [1.0, 0],
    "no line": {"time": 1},
}


@pytest.mark.parametrize("name", LINES)
def test_invalid_lines_are_reported_as_damage(job_dir: JobDir, name: str) -> None:
    put_member(job_dir, json.dumps(LINES[name]).encode())
    [line] = drain(LogReader(job_dir))[0]
    assert line.stream == "agent" and line.text.endswith("from byte 0 on: these are no log lines")
    assert clock(line.time)


def test_deep_values_and_bombs_are_reported_as_damage(job_dir: JobDir) -> None:
    for content in (b"[" * 100_000, b'[1,0,"stdout","' + b"x" * (8 << 20) + b'"]'):
        put_member(job_dir, content)
        [line] = drain(LogReader(job_dir))[0]
        assert line.stream == "agent" and "is damaged from byte 0 on" in line.text


def test_halves_of_characters_can_be_printed(job_dir: JobDir) -> None:
    put_member(job_dir, b'[1.0,0,"stdout","a\\ud800b"]')
    [line] = drain(LogReader(job_dir))[0]
    assert line.text.encode() == "a\ufffdb".encode()


def test_members_beyond_the_read_window_are_read(job_dir: JobDir) -> None:
    """The object is larger than the read window: members beyond it, and one that is cut by its end."""
    texts = [f"{number} {random.Random(number).randbytes(100_000).hex()}" for number in range(12)]
    members = [gzip.compress(json.dumps([float(i), 0, "stdout", text]).encode()) for i, text in enumerate(texts)]
    job_dir.put(node_key(1, "worker-0.1", "log/00000001.gz"), b"".join(members))
    assert [line.text for line in drain(LogReader(job_dir))[0]] == texts
    lines, cursor = LogReader(job_dir).read(limit=7)
    assert [line.text for line in lines] == texts[:7]
    assert [line.text for line in LogReader(job_dir).read(cursor)[0]] == texts[7:]


@pytest.mark.parametrize("begins", [b"", gzip.compress(b"x" * 100)[:-9]], ids=["zeros", "a member that does not end"])
def test_a_huge_object_is_not_held_in_memory(job_dir: JobDir, begins: bytes) -> None:
    key = node_key(1, "worker-0.1", "log/00000001.gz")
    job_dir.put(key, begins)
    assert job_dir.folder is not None
    os.truncate(job_dir.folder / key, 400 << 20)
    tracemalloc.start()
    lines, _ = drain(LogReader(job_dir))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(lines) == 1 and "is damaged" in lines[0].text
    assert peak < 30 << 20


def put_member(job_dir: JobDir, content: bytes) -> None:
    job_dir.put(node_key(1, "worker-0.1", "log/00000001.gz"), gzip.compress(content))
