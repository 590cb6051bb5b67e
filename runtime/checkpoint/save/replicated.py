"""Divide state that is replicated on all ranks, so that each rank saves a share instead of everything.

Two kinds of state are known to be replicated: the parameters that DistributedDataParallel synchronises, and the state
of torch's own optimizers that have only these parameters. All other state is saved by each rank: buffers differ between
ranks (running statistics), and other wrappers and optimizers may shard their state (ZeroRedundancyOptimizer). Samples
are compared at each save; if they differ, for example after steps in no_sync(), every rank saves all its state.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import logger
from ..format.tree import join

if TYPE_CHECKING:
    from ..ranks import Ranks

SAMPLES = 16
"""Number of tensors compared at each save, in rotation."""
ELEMENTS = 64
"""Number of elements compared of each tensor."""


class Replicated:
    """Assignment of replicated tensors to ranks, so that each rank saves a share."""

    def __init__(self, objects: Mapping[str, object], ranks: Ranks) -> None:
        self._objects, self._ranks = objects, ranks
        self._differ = False
        self._turn = 0
        self.divides = False
        """True if the last save was divided among the ranks."""

    def absent(self, leaves: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of the leaves that other ranks save, so that this rank omits them. Collective."""
        self.divides = False
        if self._ranks.world == 1 or self._differ:
            return ()
        keys = [key for key in _replicated(self._objects, leaves, self._ranks.world) if not _is_part(leaves[key])]
        self._turn += 1
        print_ = _fingerprint(leaves, keys, self._turn)
        greatest, smallest = self._ranks.maximum([print_, -print_])
        if greatest != -smallest:
            self._differ = True
            if self._ranks.rank == 0:
                logger().warning(
                    "the ranks' parameters, or the optimizer's state of them, are not alike although they are trained "
                    "by DistributedDataParallel: each rank saves its own"
                )
            return ()
        owners = _shares({key: leaves[key].numel() * leaves[key].element_size() for key in keys}, self._ranks.world)
        self.divides = bool(owners)
        return {key for key, owner in owners.items() if owner != self._ranks.rank}


def _replicated(objects: Mapping[str, Any], leaves: Mapping[str, Any], world: int) -> Iterator[str]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return
    known: set[int] = set()
    for name, value in objects.items():
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            if torch.distributed.get_world_size(value.process_group) != world:
                continue
            ignored = set(getattr(value, "parameters_to_ignore", ()))
            for path, parameter in value.named_parameters():
                if path.removeprefix("module.") in ignored:
                    continue
                known.add(id(parameter))
                key = join(f"objects/{name}", path)
                if key in leaves:
                    yield key
    for name, value in objects.items():
        if _is_plain_optimizer(value) and all(
            id(one) in known for group in value.param_groups for one in group["params"]
        ):
            yield from (key for key in leaves if key.startswith(f"objects/{name}/state/"))


def _is_plain_optimizer(value: object) -> bool:
    """Return whether this is one of torch's optimizers, whose state depends on parameters and gradients alone."""
    torch: Any = sys.modules["torch"]
    return isinstance(value, torch.optim.Optimizer) and type(value).__module__.startswith("torch.optim.")


def _is_part(leaf: object) -> bool:
    """Return whether a leaf is excluded here: a DTensor is divided by staging.py, a NumPy array is small."""
    return not hasattr(leaf, "data_ptr") or type(leaf).__name__ == "DTensor"


def _shares(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Return the rank that saves each key; the same on every rank. `sizes`: bytes by key.

    The keys are assigned by size, the largest first, each to the rank with the least bytes.
    """
    loads, owners = [0] * world, {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        owner = loads.index(min(loads))
        owners[key] = owner
        loads[owner] += sizes[key]
    return owners


def _fingerprint(leaves: Mapping[str, Any], keys: Sequence[str], turn: int) -> int:
    """Return a hash of the keys, dtypes, shapes and samples of the leaves.

    It is less than 2^62, so that it and its negative fit into the all-reduce.
    """
    import torch
    import xxhash

    digest = xxhash.xxh3_64()
    for key in sorted(keys):
        digest.update(f"{key} {leaves[key].dtype} {tuple(leaves[key].shape)};".encode())
    for number in range(min(SAMPLES, len(keys))):
        leaf = leaves[keys[(turn * SAMPLES + number) % len(keys)]].detach()
        some = leaf.flatten()[:: max(1, leaf.numel() // ELEMENTS)].contiguous()
        digest.update(bytes(some.view(torch.uint8).tolist()))  # as bytes, since some dtypes have no Python number
    return int(digest.intdigest() >> 2)
