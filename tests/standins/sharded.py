"""Training on several processes that resumes from checkpoints of a different number of ranks: `sharded.py FOLDER
PHASES`.

PHASES is JSON: [[world, mode], ...]. Each phase restores the previous phase's checkpoint into a newly created model and
optimizer (without state), compares all tensors with the saved ones, trains on, and saves. It calls save and restore
directly, without the Checkpointer, so that every rank's part is written exactly as it is laid out.

    plain   whole tensors on every rank, each saved by one of them
    fsdp    fully_shard on a one-dimensional mesh
    hsdp    fully_shard on a two-dimensional mesh: shards are replicated
    tp      tensor parallelism inside fully_shard: some tensors are sharded twice
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401 - imported once here, not by each rank
import torch
import torch._dynamo  # imported once here, too
import torch.distributed as dist
import torch.distributed.checkpoint  # imported once here, too
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDir, local_url
from cloudgpu.runtime.checkpoint.data import random_state
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest
from cloudgpu.runtime.checkpoint.format.tree import flatten
from cloudgpu.runtime.checkpoint.ranks import Ranks
from cloudgpu.runtime.checkpoint.restore.restore import restore
from cloudgpu.runtime.checkpoint.save.staging import Stager
from cloudgpu.runtime.checkpoint.store import CheckpointStore


def make(mode: str, world: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    # 7 and 5 are not divisible by any number of ranks; 16 is, as tensor parallelism requires.
    model = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 5), nn.LayerNorm(5))
    if mode in {"fsdp", "hsdp"}:
        shape, names = ((world,), ("dp",)) if mode == "fsdp" else ((2, world // 2), ("copies", "dp"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
    elif mode == "tp":
        meshes = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, meshes["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=meshes["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 7)).square().sum().backward()
        optimizer.step()


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return every tensor unsharded, on every rank."""
    leaves = flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "")[1]
    return {key: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf.clone() for key, leaf in leaves.items()}


def save(store: CheckpointStore, ranks: Ranks, name: Name, snapshot: dict[str, Any], *, spread: bool) -> None:
    tree, leaves = flatten(snapshot, "")
    shared = [key for key in leaves if key.startswith("objects/")] if spread else []
    absent = {key for number, key in enumerate(shared) if number % ranks.world != ranks.rank}
    stager = Stager()
    layout, sources = stager.lay_out(leaves, absent)
    memory = memoryview(bytearray(max(layout.size, 1)))
    stager.copy(layout, sources, 0, memory)
    manifest = RankManifest(str(name), ranks.rank, ranks.world, name.step, layout.size, layout.pieces, tree)
    store.write_rank(manifest, memory[: layout.size])
    ranks.gather(None)
    if ranks.rank == 0:
        store.commit(name, store.digests(name, ranks.world), finished=False, time=0.0)


def phase(folder: Path, number: int, mode: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{number}", rank=rank, world_size=world)
    torch.manual_seed(100 + number)
    ranks, store = Ranks(), CheckpointStore(JobDir(local_url(folder)), "checkpoints")
    model, optimizer = make(mode, world)
    found = restore(store, ranks, objects={"model": model, "optimizer": optimizer}, cached=lambda _name: None)
    assert (found is not None) == (number > 0)
    if found:
        model.load_state_dict(found.snapshot["objects"]["model"])
        optimizer.load_state_dict(found.snapshot["objects"]["optimizer"])
        expected, got = torch.load(folder / f"whole-{number - 1}.pt"), whole(model, optimizer)
        assert expected.keys() == got.keys()
        for key, value in expected.items():
            assert torch.equal(value, got[key]), f"{key} after {world} ranks took over"
        random_state.restore(found.snapshot["random"])
    drawn = ranks.gather(torch.rand(1).item())
    assert len(set(drawn)) == (world if number else 1), "each rank has random numbers of its own"
    torch.manual_seed(number)
    train(model, optimizer, 3)
    complete = whole(model, optimizer)
    if rank == 0:
        torch.save(complete, folder / f"whole-{number}.pt")
    torch.manual_seed(1000 + rank)
    snapshot = {
        "step": 3 * (number + 1),
        "random": random_state.capture(),
        "objects": {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    }
    name = Name(3 * (number + 1), 1, f"{number:012x}")
    save(store, ranks, name, snapshot, spread=mode == "plain")
    ranks.gather(None)
    dist.destroy_process_group()


def run(folder: Path, number: int, mode: str, world: int) -> list[int]:
    """Return the ranks' exit codes. Ranks are forked because importing torch takes longer than their work."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            code = 1
            try:
                phase(folder, number, mode, rank, world)
                code = 0
            except BaseException:  # noqa: BLE001 - the child must not go on as its parent would
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    for number, (world, mode) in enumerate(json.loads(sys.argv[2])):
        codes = run(Path(sys.argv[1]), number, mode, world)
        if any(codes):
            sys.exit(f"phase {number}, {mode} on {world}: {codes}")
