"""Checkpoints of one number of ranks restored by another, over torch.distributed: every tensor the same, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "standins" / "sharded.py"

RUNS = {
    "4, 2, 8, 1": [[4, "fsdp"], [2, "fsdp"], [8, "hsdp"], [1, "plain"]],
    "sharded twice, unevenly, not at all": [[4, "tp"], [3, "fsdp"], [2, "plain"], [3, "plain"]],
}
LONG_RUNS = {
    "one mesh to another": [[4, "tp"], [4, "hsdp"], [4, "fsdp"], [4, "tp"], [4, "plain"], [4, "hsdp"], [4, "tp"]],
    "there and back": [[1, "plain"], [8, "fsdp"], [1, "fsdp"], [8, "tp"], [6, "hsdp"], [5, "plain"], [7, "fsdp"]],
}
if os.environ.get("CLOUDGPU_LONG") == "1":
    RUNS |= LONG_RUNS


@pytest.mark.parametrize("run", RUNS)
def test_all_tensors_are_the_same(run: str, tmp_path: Path) -> None:
    """Model and AdamW's moments; the optimizer that restores has no state yet. sharded.py compares."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, PROGRAM, tmp_path, json.dumps(RUNS[run])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 goes on with its random numbers" in done.stderr
    assert len(list(tmp_path.glob("whole-*.pt"))) == len(RUNS[run])
