"""Checkpoints saved by one number of ranks and restored by another, over torch.distributed: all bits of tensors
agree."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.tests.standins.long_mode import LONG

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "standins" / "sharded.py"

RUNS = {"4, 2, 8, 3, 1": [[4, "tp"], [2, "fsdp"], [8, "hsdp"], [3, "plain"], [1, "plain"]]}
LONG_RUNS = {
    "4, 2, 8, 1": [[4, "fsdp"], [2, "fsdp"], [8, "hsdp"], [1, "plain"]],
    "sharded twice, unevenly, not at all": [[4, "tp"], [3, "plain"], [2, "plain"]],
    "one mesh to another": [[4, "tp"], [4, "hsdp"], [4, "fsdp"], [4, "tp"], [4, "plain"], [4, "hsdp"], [4, "tp"]],
    "there and back": [[1, "plain"], [8, "fsdp"], [1, "fsdp"], [8, "tp"], [6, "hsdp"], [5, "plain"], [7, "fsdp"]],
}
if LONG:
    RUNS |= LONG_RUNS


@pytest.mark.parametrize("run", RUNS)
def test_all_tensors_are_the_same(run: str, tmp_path: Path) -> None:
    """sharded.py compares the model and AdamW's moments; the optimizer that restores has no state yet."""
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, json.dumps(RUNS[run])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    worlds = [world for world, _ in RUNS[run]]
    changes = sum(one != next_one for one, next_one in itertools.pairwise(worlds))
    assert done.stderr.count("rank 0 goes on with its random numbers") == changes
    assert len(list(tmp_path.glob("whole-*.pt"))) == len(RUNS[run])
