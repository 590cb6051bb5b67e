"""Checkpoints created without a Checkpointer or a writer process: same layout, written directly by the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JobDir, local_url
from cloudgpu.runtime.checkpoint.checkpointer import Checkpointer
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest
from cloudgpu.runtime.checkpoint.format.tree import flatten
from cloudgpu.runtime.checkpoint.restore.restore import Restored, restore
from cloudgpu.runtime.checkpoint.save.staging import Stager
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.tests.standins.ranks import on_ranks


def local_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(JobDir(local_url(folder)), "checkpoints")


def stage(name: Name, rank: int, world: int, snapshot: Mapping[str, Any]) -> tuple[RankManifest, memoryview]:
    """Return a rank's part as it is laid out in shared memory, and its manifest without hashes."""
    tree, leaves = flatten(dict(snapshot), "")
    stager = Stager()
    layout, sources = stager.lay_out(leaves)
    memory = memoryview(bytearray(max(layout.size, 1)))
    stager.copy(layout, sources, 0, memory)
    manifest = RankManifest(str(name), rank, world, name.step, layout.size, layout.pieces, tree)
    return manifest, memory[: layout.size]


def save(store: CheckpointStore, step: int, snapshots: list[dict[str, Any]], *, attempt: int = 1) -> Name:
    """Save a checkpoint with one rank per snapshot."""
    return save_as(store, Name.new(step, attempt, step), snapshots)


def save_as(store: CheckpointStore, name: Name, snapshots: list[dict[str, Any]]) -> Name:
    """Save a checkpoint under the given name, with one rank per snapshot."""
    world = len(snapshots)
    for rank, snapshot in enumerate(snapshots):
        store.write_rank(*stage(name, rank, world, snapshot))
    store.commit(name, store.digests(name, world), finished=False, time=0.0)
    return name


Cached = Callable[[Name], tuple[bytes, memoryview] | None]


def restore_all(
    store: Any,
    world: int,
    objects: Mapping[str, Any] | None = None,
    cached: Callable[[int], Cached] = lambda _rank: lambda _name: None,
    on_damage: str = "stop",
) -> list[Restored | None]:
    """Restore on every rank; return the results in rank order. `cached(rank)` returns that rank's cache lookup."""
    return on_ranks(
        world,
        lambda ranks: restore(store, ranks, objects=objects or {}, cached=cached(ranks.rank), on_damage=on_damage),
    )


_made: list[Checkpointer] = []


def restarted(**options: Any) -> Checkpointer:
    """Return a new Checkpointer, as a restarted process would create it; earlier ones release their folders first."""
    while _made:
        _made.pop().release()
    _made.append(Checkpointer(**options))
    return _made[-1]
