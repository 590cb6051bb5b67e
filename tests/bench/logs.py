"""Time to show the end of a log of 500 MB: in a local folder, and in S3's stand-in with the bytes that are fetched."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudgpu.protocol.jobdir import JobDir, local_url, node_key
from cloudgpu.protocol.logs.format import MEMBER_BYTES
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.protocol.logs.writer import CHUNK_BYTES
from cloudgpu.tests.standins import s3

from .measure import Row, seconds

BYTES = 500_000_000
LINES = 100


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, _store() as store:
        objects = list(_objects())
        near, far = JobDir(local_url(Path(folder))), JobDir(store.url)
        for job_dir in (near, far):
            for number, data in enumerate(objects, 1):
                job_dir.put(node_key(1, "worker-0.1", f"log/{number:08d}.gz"), data)
        store.requests.clear()
        near_s, far_s = _tail_s(near), _tail_s(far)
        requests = len(store.requests) / 5
    what = f"`logs --tail {LINES}` of a log of {BYTES / 1e6:.0f} MB"
    how = "LogReader.tail(), median of 5"
    return [
        Row(f"{what}, local folder", near_s, 0.15, "s", how),
        Row(f"{what}, S3's stand-in", far_s, 1.0, "s", f"{how}; the stand-in hashes all objects that it lists"),
        Row(f"{what}: requests", requests, 10, "requests", "listings and ranged reads"),
    ]


def _tail_s(job_dir: JobDir) -> float:
    reader = LogReader(job_dir)
    return sorted(seconds(lambda: reader.tail(LINES)) for _ in range(5))[2]


def _objects() -> Iterator[bytes]:
    """Yield the objects of a log as LogWriter fills them."""
    step, written, packed = 0, 0, b""
    while written < BYTES:
        lines, size = [], 0
        while size < MEMBER_BYTES:
            text = f"step {step} loss {1 / (step + 1):.9f} lr 0.0003 tokens/s {step * 7919 % 100_003}"
            lines.append(json.dumps([1_800_000_000.0 + step * 0.01, 0, "stdout", text], separators=(",", ":")))
            size, step = size + len(lines[-1]), step + 1
        packed += gzip.compress("\n".join(lines).encode(), compresslevel=3, mtime=0)
        written += size
        if len(packed) >= CHUNK_BYTES or written >= BYTES:
            yield packed
            packed = b""


@contextmanager
def _store() -> Iterator[s3.S3]:
    with s3.running() as store:
        before = dict(os.environ)
        os.environ.update(store.environment)
        try:
            yield store
        finally:
            os.environ.clear()
            os.environ.update(before)
