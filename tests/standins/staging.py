"""Training as seen by the checkpoint writer: content that identifies its step and rank is staged and verified.

As a program it trains: python -m cloudgpu.tests.standins.staging URL RANK WORLD STEPS SIZE. It resumes from the newest
checkpoint, stages one per step, and prints "staged N" and "committed N" as soon as it knows.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cloudgpu.protocol.checkpoint_names import Name, run_nonce
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest, chunk_hashes, data_file, manifest_file
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.runtime.checkpoint.writer.client import Save, SaveResult, WriterClient, finish_earlier

KEEP = 3
MARK = os.environ.setdefault("CLOUDGPU_TEST_MARK", os.urandom(8).hex())
"""Marker in the environment of this process's children, since other tests may run on the same machine."""


def open_store(url: str) -> CheckpointStore:
    return CheckpointStore(JobDir(url), "checkpoints")


def content(step: int, rank: int, size: int) -> bytes:
    """Return the bytes to save: each 64 KiB block is unique, and no two steps or ranks share any."""
    block = hashlib.sha256(f"{step} {rank}".encode()).digest() * (2 << 10)
    data = bytearray(block * -(-size // len(block)))
    for number, at in enumerate(range(0, size, len(block))):
        data[at : at + 8] = number.to_bytes(8)
    return bytes(memoryview(data)[:size])


class Training:
    """One rank of a training; results of stage() and save() come from `client`."""

    def __init__(self, url: str, *, rank: int = 0, world: int = 1, attempt: int = 1, size: int = 100_000) -> None:
        self.store = open_store(url)
        self.rank, self.world, self.attempt, self.size = rank, world, attempt, size
        self.run = "a" * 8 if world > 1 else run_nonce()  # agreed upon by the ranks in a real run
        self.client = WriterClient.connect(self.store, rank, world, attempt)
        self.client.reserve(size)

    def name(self, step: int) -> Name:
        return Name.of_run(step, self.attempt, step, self.run)

    def stage(self, step: int, *, keep: int = KEEP, finished: bool = False, rows: bytes = b"") -> Name | None:
        """Stage a checkpoint without waiting for it; return its name, or None if no slot is free."""
        slot = self.client.free_slot()
        if slot is None:
            return None
        name = self.name(step)
        self.client.slot(slot)[: self.size] = content(step, self.rank, self.size)
        manifest = RankManifest(str(name), self.rank, self.world, step, self.size, [], {"step": step}).to_bytes()
        self.client.submit(Save(name, slot, self.size, manifest, finished, keep, rows))
        return name

    def save(
        self, step: int, timeout_s: float = 60, *, keep: int = KEEP, finished: bool = False, rows: bytes = b""
    ) -> SaveResult:
        """Stage a checkpoint and wait for its result."""
        name = self.stage(step, keep=keep, finished=finished, rows=rows)
        assert name is not None
        (result,) = self.client.wait(timeout_s)
        assert result.name == name
        return result


def verify(store: CheckpointStore, name: Name) -> None:
    """Assert that every rank's part exists and has the content that was staged at that step."""
    commit = store.read_commit(name)
    for rank, digest in enumerate(commit.manifests):
        text = store.get(name, manifest_file(rank))
        assert hashlib.sha256(text).hexdigest() == digest
        manifest = RankManifest.from_bytes(text)
        data = store.get(name, data_file(rank))
        assert (manifest.name, manifest.rank, manifest.world) == (str(name), rank, len(commit.manifests))
        assert chunk_hashes(data) == manifest.chunks
        assert data == content(name.step, rank, manifest.size)


def verified_steps(store: CheckpointStore) -> list[int]:
    """Return the steps of all checkpoints, newest first, after verifying each. It first waits for pending removals."""
    assert finish_earlier(store, 0, 60)
    names = store.committed()
    for name in names:
        verify(store, name)
    return [name.step for name in names]


def writers() -> set[int]:
    """Return the process ids of this test run's checkpoint writers, except zombies."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"cloudgpu.runtime.checkpoint.writer" not in (folder / "cmdline").read_bytes():
                continue
            ours = f"CLOUDGPU_TEST_MARK={MARK}".encode() in (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has just ended
        if ours and state != "Z":
            found.add(int(folder.name))
    return found


def start(url: str, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start this module as a program."""
    command = [sys.executable, "-m", "cloudgpu.tests.standins.staging", url, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | (env or {}))


def _results(training: Training, *, last: bool) -> Iterator[str]:
    for result in training.client.wait(180) if last else training.client.poll():
        yield f"committed {result.name.step}" if result.committed else f"failed {result.name.step} {result.error}"


def main(url: str, rank: int, world: int, steps: int, size: int) -> None:
    store = open_store(url)
    print("earlier", finish_earlier(store, rank, 60), flush=True)
    first = max((name.step + 1 for name in store.committed()), default=0)
    training = Training(url, rank=rank, world=world, attempt=store.claim(None) if world == 1 else 1, size=size)
    for step in range(first, steps):
        while training.stage(step) is None:
            for line in _results(training, last=False):
                print(line, flush=True)
        # A single write even with PYTHONUNBUFFERED, so that a kill leaves no partial line.
        print(f"staged {step}", flush=True)
    for line in _results(training, last=True):
        print(line, flush=True)
    training.client.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
