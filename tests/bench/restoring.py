"""Time to restore the state of model and optimizer, compared with torch.load of the same state.

Both files are in the page cache. torch.load verifies nothing; cloudgpu verifies every byte it reads.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from .measure import Row, seconds
from .training import Training

ROUNDS, BUDGET = 9, 1.3


def rows() -> list[Row]:
    import torch

    from cloudgpu.runtime import Checkpointer

    training = Training()
    training.step()
    with tempfile.TemporaryDirectory(prefix="cloudgpu-bench-") as name:
        folder = Path(name, "ours")
        ckpt = Checkpointer(model=training.model, optimizer=training.optimizer, folder=folder, every=1_000_000)
        ckpt.begin()
        ckpt.end(finished=True)
        path = Path(name, "torch.pt")
        torch.save(training.state(), path)
        ours, theirs = [], []
        for number in range(ROUNDS + 1):
            live = Training(), Training()
            pair = seconds(partial(_restore, folder, live[0])), seconds(partial(_load, path, live[1]))
            if number:  # the first round warms the page cache
                ours.append(pair[0])
                theirs.append(pair[1])
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [Row("restore, every byte verified", ratio, BUDGET, "× torch.load", f"warm; median of {ROUNDS}, in turns")]


def _load(path: Path, training: Training) -> None:
    import torch

    state = torch.load(path)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])


def _restore(folder: Path, training: Training) -> None:
    from cloudgpu.runtime.checkpoint.ranks import Ranks
    from cloudgpu.runtime.checkpoint.restore.restore import restore
    from cloudgpu.runtime.checkpoint.settings import find_store

    objects: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer}
    found = restore(find_store(folder, world=1), Ranks(), objects=objects, cached=lambda _name: None)
    if found is None:
        raise RuntimeError("nothing was restored")
    for name, value in objects.items():
        value.load_state_dict(found.snapshot["objects"][name])
