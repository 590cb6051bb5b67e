"""What all ranks of data-parallel training hold alike is saved once: each rank saves its share.

Alike for sure are the parameters that DistributedDataParallel keeps in step, and the state that torch's own optimizers
keep of these and no others. Not buffers (each rank has its own running statistics), not what a wrapper or an optimizer
of another kind may have sharded (ZeroRedundancyOptimizer). What a program has made to differ all the same, by steps
within no_sync() say, is found by comparing samples at each save: then every rank saves all it has.
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
"""Tensors that are compared at each save, others each time."""
ELEMENTS = 64
"""Of each of them."""


class Replicated:
    """Divides among the ranks what they hold alike."""

    def __init__(self, objects: Mapping[str, object], ranks: Ranks) -> None:
        self._objects, self._ranks = objects, ranks
        self._differ = False
        self._turn = 0
        self.divides = False
        """At the last save each rank had a share."""

    def absent(self, leaves: Mapping[str, Any]) -> Collection[str]:
        """Keys that other ranks save. Collective, if there are several ranks."""
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
    """One of torch's own, whose state follows from parameters and gradients alone."""
    torch: Any = sys.modules["torch"]
    return isinstance(value, torch.optim.Optimizer) and type(value).__module__.startswith("torch.optim.")


def _is_part(leaf: object) -> bool:
    """A DTensor has its own way of being saved once; arrays are small."""
    return not hasattr(leaf, "data_ptr") or type(leaf).__name__ == "DTensor"


def _shares(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Which rank saves which key: the largest first, each to the rank that has least. The same on every rank."""
    loads, owners = [0] * world, {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        owner = loads.index(min(loads))
        owners[key] = owner
        loads[owner] += sizes[key]
    return owners


def _fingerprint(leaves: Mapping[str, Any], keys: Sequence[str], turn: int) -> int:
    """Of the keys, and of samples; 0 to 2^62, so that it and its negative fit into the all-reduce."""
    import torch
    import xxhash

    digest = xxhash.xxh3_64()
    for key in sorted(keys):
        digest.update(f"{key} {leaves[key].dtype} {tuple(leaves[key].shape)};".encode())
    for number in range(min(SAMPLES, len(keys))):
        leaf = leaves[keys[(turn * SAMPLES + number) % len(keys)]].detach()
        some = leaf.flatten()[:: max(1, leaf.numel() // ELEMENTS)].contiguous()
        digest.update(bytes(some.view(torch.uint8).tolist()))  # not as numbers: some dtypes have none in Python
    return int(digest.intdigest() >> 2)
