"""How long a checkpoint holds training up, against one copy of the same state in memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from .measure import Row, seconds

LAYERS, WIDTH = 12, 1024
"""50 MB of parameters; with AdamW's two moments 150 MB of state."""


def rows(rounds: int = 7) -> list[Row]:
    import torch

    from cloudgpu.runtime import Checkpointer

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, WIDTH)).sum().backward()
    optimizer.step()
    tensors = _tensors([model.state_dict(), optimizer.state_dict()])
    copies = [torch.empty_like(tensor) for tensor in tensors]

    def copy() -> None:
        for source, target in zip(tensors, copies, strict=True):
            target.copy_(source)

    def saved_by_torch(path: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    copy()  # the target's pages exist from here on, as those of a reused buffer would
    copied, saved, blocked = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        ckpt = Checkpointer(model=model, optimizer=optimizer, folder=Path(folder, "ours"), every=10**9, keep=1)
        asked = None
        for _ in ckpt.steps(rounds + 1):
            if asked is not None:
                blocked.append(time.perf_counter() - asked)
            copied.append(seconds(copy))
            saved.append(seconds(lambda: saved_by_torch(Path(folder, "torch.pt"))))
            ckpt.save()
            asked = time.perf_counter()  # until the next step begins, training stands still
    megabytes = sum(tensor.nbytes for tensor in tensors) / 1e6
    base, by_torch, ours = map(statistics.median, (copied, saved, blocked))
    how = f"{megabytes:.0f} MB of state, median of {rounds}, local disk"
    return [
        Row("a checkpoint's blocking time (verified, flushed)", ours / base, None, "× one copy in memory", how),
        Row("the same, against torch.save (not flushed)", ours / by_torch, None, "× torch.save", how),
    ]


def _tensors(value: Any) -> list[Any]:
    if hasattr(value, "copy_"):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
