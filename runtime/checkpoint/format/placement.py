"""Which part of a DTensor this rank holds, and which parts the live objects want back.

FSDP2 (`fully_shard`), tensor parallelism and their mixtures on meshes of any dimension give DTensors; what a checkpoint
has of them are parts with offsets (manifest.py), what a restore builds are DTensors again, placed as the live ones are.
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
    """Where this rank's part lies in the whole; empty if this rank has none. Raises CheckpointError."""
    local = tuple(tensor.to_local().shape)
    if tensor.device_mesh.get_coordinate() is None:
        return Box((0,) * tensor.ndim, (0,) * tensor.ndim)
    (part,) = tensor.__create_chunk_list__()  # how DTensors present themselves to torch.distributed.checkpoint
    if tuple(part.sizes) != local:  # what is sharded twice, and unevenly, need not be where torch says
        raise CheckpointError(f"{key} is sharded in a way that cannot be restored: {tensor.placements}")
    return Box(tuple(part.offsets), local)


class Placements:
    """The live objects' DTensors by the keys under which their state is saved."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._live: dict[str, Any] = {}
        self._parameters: dict[str, list[Any]] = {}
        """Of each optimizer, in the order in which its state numbers them."""
        for name, value in objects.items():
            if not _has_dtensors(value):
                continue
            leaves = flatten(value.state_dict(), f"objects/{name}")[1]
            self._live |= {key: leaf for key, leaf in leaves.items() if is_dtensor(leaf)}
            if groups := getattr(value, "param_groups", None):
                self._parameters[f"objects/{name}/state/"] = [one for group in groups for one in group["params"]]

    def find(self, key: str, whole: tuple[int, ...]) -> Any:
        """The DTensor that is to be placed as the one saved under this key; None if it is to be whole.

        An optimizer has no state before its first step: its moments are placed as the parameters they belong to.
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
    """Whether asking for the state is worth it: it may be costly."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    if groups := getattr(value, "param_groups", None):
        return any(is_dtensor(one) for group in groups for one in group["params"])
    if callable(parameters := getattr(value, "parameters", None)):
        return any(is_dtensor(one) for one in parameters())
    return True
