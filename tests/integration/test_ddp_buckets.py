"""Tests of DistributedDataParallel on three and four ranks, interrupted at random batches: bit-identical results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import needs, results
from cloudgpu.tests.standins.interrupted import Run
from cloudgpu.tests.standins.long_mode import LONG

needs("torch")

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel
from cloudgpu.runtime import Checkpointer

def train(folder, every, batch_done, changed):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(7)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(64, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ckpt = Checkpointer(model=model, optimizer=optimizer, every=every, folder=folder)
    for step in ckpt.steps(12):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x, y = torch.randn(8, 64, generator=generator), torch.randint(0, 2, (8,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        batch_done()
    torch.distributed.destroy_process_group()
    return b"".join(one.detach().numpy().tobytes() for one in model.parameters())
"""


@pytest.mark.parametrize("world", [3, 4] if LONG else [3])
def test_interrupted(world: int, tmp_path: Path) -> None:
    plan = [
        Run("undisturbed", folder="undisturbed", world=world),
        Run("after its first step", every=1, how="kill", after=2, world=world),
        Run("again", every=1, how="kill", after=4, world=world),
        Run("resumed", world=world),
    ]
    runs = results(PROGRAM, tmp_path, world=world, plan=plan if LONG else [*plan[:2], plan[3]])
    digests = {name: [rank.get("digest") for rank in run["ranks"]] for name, run in runs.items()}
    assert 6 <= runs["resumed"]["ranks"][0]["batches"] < 12, runs["resumed"]["output"]
    assert digests["resumed"] == digests["undisturbed"]
