"""Data-parallel CPU training with a bit-identical result, regardless of interruptions."""

from __future__ import annotations

TRAIN = """\
import hashlib, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudgpu.runtime import Checkpointer, write_output

torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 2))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
ckpt = Checkpointer(model=model, optimizer=optimizer, every=8)
print(f"world {world} from step {ckpt.step}", flush=True)
steps, pause, undisturbed = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
for step in ckpt.steps(steps):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    labels = torch.randint(0, 2, (8,), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if undisturbed and step >= steps // 2 and not os.path.exists(undisturbed[0]):
        pause = 1.0
    time.sleep(pause)
if rank == 0:
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    write_output("weights.sha256", hashlib.sha256(weights).hexdigest())
dist.destroy_process_group()
"""
"""A program. Arguments: the number of steps, the seconds to sleep in each, and optionally the path of a file. Until
this file exists the second half is slow, so that the test can interrupt the training even on a busy computer."""


def beginnings(lines: list[str]) -> list[tuple[int, int]]:
    """Parse the processes' output; return (number of ranks, first step) of each process start."""
    words = [line.split() for line in lines if line.startswith("world ")]
    return [(int(word[1]), int(word[4])) for word in words]
