"""The committer's timeout for the parts of other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDir, local_url
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.runtime.checkpoint.writer.committer import Committer, Staged


class Saves:
    """The saves of rank 0 of two ranks; its own part is written."""

    def __init__(self, folder: Path) -> None:
        self.store = CheckpointStore(JobDir(local_url(folder)), "checkpoints")
        self.results: list[tuple[int, bool, str | None]] = []
        self.committer = Committer(self.store, 2, self._finish, lambda _rank: True, lambda _text: None)

    def _finish(self, staged: Staged, *, committed: bool, error: str | None, **_: Any) -> None:
        self.results.append((staged.name.step, committed, error))

    def write(self, step: int, rank: int) -> Name:
        name = Name.of_run(step, 1, step, "a" * 8)
        self.store.write_rank(RankManifest(str(name), rank, 2, step, 3, [], None), memoryview(b"abc"))
        return name

    def add(self, step: int, retry_timeout_s: float) -> None:
        staged = Staged(self.write(step, 0), None, 3, b"", finished=False, keep=3, rows=b"", submitted=0.0)
        self.committer.add(staged, retry_timeout_s=retry_timeout_s)


def test_a_slow_rank_is_waited_for_while_there_is_a_trainer(tmp_path: Path) -> None:
    """The rank's network may be ten times slower; with a timeout, a running training would never get a checkpoint."""
    saves = Saves(tmp_path)
    saves.add(1, retry_timeout_s=0.0)
    for _ in range(3):
        saves.committer.commit_ready(impatient=False)
    assert saves.results == []
    saves.write(1, 1)
    saves.committer.commit_ready(impatient=False)
    assert saves.results == [(1, True, None)]


def test_patience_begins_with_the_trainers_end(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.add(1, retry_timeout_s=0.0)
    saves.add(2, retry_timeout_s=600.0)
    saves.committer.commit_ready(impatient=False)
    for _ in range(2):
        saves.committer.commit_ready(impatient=True)
    assert saves.results == [(1, False, "1 of 2 ranks have not written their part: [1]")]
    saves.write(2, 1)
    saves.committer.commit_ready(impatient=True)
    assert saves.results[1:] == [(2, True, None)]
