"""Training loops with Accelerate, killed and stopped at random batches, end in the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import check, needs, results
from cloudgpu.tests.standins.long_mode import LONG, in_long_mode

needs("accelerate")

PROGRAM = """\
import os, random
import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it: once, here, instead of in every run
from torch import nn
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from cloudgpu.runtime.integrations.accelerate import AcceleratorCheckpointer

KIND = {kind!r}
WORKERS = 2 if "workers" in KIND else 0

class Noisy(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return torch.full((8,), i / 53) + torch.randn(8) * 0.1 + random.random() + float(np.random.rand()), i % 4

def train(folder, every, batch_done, changed):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=3 if "accumulated" in KIND else 1,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seedable" in KIND),
    )
    set_seed(4)
    width = 33 if changed == "model" else 32
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 4))
    model[0].weight.data = model[0].weight.data.T.contiguous().T  # not row-major, as channels_last is not
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
    data = Noisy(69 if changed == "data" else 53)
    loader = torch.utils.data.DataLoader(data, batch_size=8 // processes, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ckpt = AcceleratorCheckpointer(accelerator, loader, folder=folder, every=every, replay=WORKERS > 0)
    optimizer.zero_grad()  # what was accumulated before an interruption comes back all the same
    for inputs, labels in ckpt.batches(epochs=6 if changed == "longer" else 4):
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
    check(results(PROGRAM.format(kind=kind), tmp_path), misfit="does not fit this program")


@in_long_mode
@pytest.mark.parametrize("kind", ["", "accumulated", "seedable", "workers"])
def test_two_processes(kind: str, tmp_path: Path) -> None:
    runs = results(PROGRAM.format(kind=kind), tmp_path, world=2)
    check(runs, misfit="does not fit this program")
