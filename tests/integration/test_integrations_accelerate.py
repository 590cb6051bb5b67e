"""Loops with Accelerate, killed and told to stop at random batches: end in the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import LONG, check, results

pytest.importorskip("accelerate")

PROGRAM = """\
import random
import numpy as np
import torch
from torch import nn
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from cloudgpu.runtime.integrations.accelerate import AcceleratorCheckpointer

KIND = {kind!r}
WORKERS = 2 if "workers" in KIND else 0

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 53
    def __getitem__(self, i):
        return torch.full((8,), i / 53) + torch.randn(8) * 0.1 + random.random() + float(np.random.rand()), i % 4

def train(folder, every, batch_done, changed):
    torch.set_num_threads(1)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=3 if "accumulated" in KIND else 1,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seedable" in KIND),
    )
    set_seed(4)
    width = 33 if changed else 32
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer(accelerator, loader, folder=folder, every=every, replay=WORKERS > 0)
    for inputs, labels in ckpt.batches(epochs=4):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        batch_done()
    moments = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    tensors = [*model.state_dict().values(), *moments]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors) + repr(scheduler.state_dict()).encode()
"""

CASES = ["accumulated"] if not LONG else ["", "accumulated", "seedable", "seedable accumulated", "workers"]


@pytest.mark.parametrize("kind", CASES)
def test_interrupted(kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    runs = results(PROGRAM.format(kind=kind), tmp_path, [chance.randrange(2, 9) for _ in range(2)])
    check(runs, 28, "does not fit this program")
