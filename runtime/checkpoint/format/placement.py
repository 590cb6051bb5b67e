"""Map DTensors to parts of tensors, for saving, and parts to DTensors, for restoring.

FSDP2 (`fully_shard`), tensor parallelism and their combinations on meshes of any dimension use DTensors. A checkpoint
holds them as parts with offsets (manifest.py). A restore builds DTensors with the placements of the live objects'
DTensors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError
from .reshard import Box
from .tree import flatten


def is_dtensor(value: object) -> bool:  # any value
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(value, distributed.DTensor)


def local_box(tensor: Any, key: str) -> Box:  # a DTensor
    """Return the box of this rank's part in the whole tensor; empty if this rank has none.

    Raises CheckpointError if the sharding is not supported.
    """
    local = tuple(tensor.to_local().shape)
    if tensor.device_mesh.get_coordinate() is None:
        return Box((0,) * tensor.ndim, (0,) * tensor.ndim)
    (part,) = tensor.__create_chunk_list__()  # protocol of DTensor with torch.distributed.checkpoint
    if tuple(part.sizes) != local:  # with two uneven shardings, the part may not be where torch reports it
        raise CheckpointError(f"{key} is sharded in a way that cannot be restored: {tensor.placements}")
    return Box(tuple(part.offsets), local)


class Placements:
    """Live DTensors by the keys under which their state is saved."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._live: dict[str, Any] = {}
        self._parameters: dict[str, list[Any]] = {}
        """Parameters of each optimizer, in the order of their numbers in its state."""
        for name, value in objects.items():
            if not _has_dtensors(value):
                continue
            leaves = flatten(value.state_dict(), f"objects/{name}")[1]
            self._live |= {key: leaf for key, leaf in leaves.items() if is_dtensor(leaf)}
            if groups := getattr(value, "param_groups", None):
                self._parameters[f"objects/{name}/state/"] = [one for group in groups for one in group["params"]]

    def find(self, key: str, whole: tuple[int, ...]) -> Any:
        """Return the live DTensor whose placement a restored tensor gets; None if it is restored as a plain tensor.

        whole  shape of the tensor in the checkpoint

        An optimizer has no state before its first step, so its saved state gets the placements of its parameters.
        Raises CheckpointError if the shapes differ.
        """
        live = self._live.get(key)
        if live is None:
            for prefix, parameters in self._parameters.items():
                number = key.removeprefix(prefix).partition("/")[0]
                if key.startswith(prefix) and number.isdecimal() and int(number) < len(parameters):
                    parameter = parameters[int(number)]
                    return parameter if is_dtensor(parameter) and tuple(parameter.shape) == whole else None
            return None
        if tuple(live.shape) != whole:
            raise CheckpointError(f"{key} is {whole} in the checkpoint and {tuple(live.shape)} in this program")
        return live


def _has_dtensors(value: object) -> bool:
    """Return whether an object may have DTensors; False saves a costly state_dict()."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    if groups := getattr(value, "param_groups", None):
        return any(is_dtensor(one) for group in groups for one in group["params"])
    if callable(parameters := getattr(value, "parameters", None)):
        return any(is_dtensor(one) for one in parameters())
    return True
