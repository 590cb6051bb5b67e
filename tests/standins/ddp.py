"""A data-parallel training on CPUs whose end is the same, bit for bit, however often it was interrupted."""

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
"""A program: arguments are the number of steps, and seconds to sleep in each. A third is the path of a file: until it
is there, training is still to be disturbed, so in its second half it takes its time, however busy the computer is."""


def beginnings(lines: list[str]) -> list[tuple[int, int]]:
    """(number of ranks, first step) of every process that began, as its output tells."""
    words = [line.split() for line in lines if line.startswith("world ")]
    return [(int(word[1]), int(word[4])) for word in words]
