"""Random number generators: capture and restore, as plain values that execute nothing when they are loaded.

Covered: Python's `random`, NumPy's global generator (if the program uses NumPy), torch's CPU generator, torch's CUDA
generators (if CUDA is in use), and generators handed in. A generator object that the program keeps to itself is not
seen: add it by name (`Checkpointer(rng=...)` needs state_dict) or keep its state in `ckpt.state`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .errors import CheckpointError


def capture(generators: Sequence[Any] = ()) -> dict[str, Any]:
    """The state of every generator now. `generators`: torch.Generator objects, known by their order."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss], "generators": [g.get_state() for g in generators]}
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = _numpy_state(numpy.random.get_state(legacy=False), lambda key: key.tolist())
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any], generators: Sequence[Any] = ()) -> None:
    """Put every generator back; those that were not captured keep their state."""
    if len(generators) != len(state["generators"]):
        raise CheckpointError(
            f"the loader drew from {len(state['generators'])} torch.Generator objects when it was saved, now it has "
            f"{len(generators)}: use the loader it was saved with, or give another folder to begin anew"
        )
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    for generator, value in zip(generators, state["generators"], strict=True):
        generator.set_state(value)
    if "numpy" in state:
        import numpy as np

        np.random.set_state(_numpy_state(state["numpy"], lambda key: np.array(key, dtype=np.uint32)))
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            # Another machine may have fewer GPUs: the first ones keep their streams.
            torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def _numpy_state(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The state with its array converted; of NumPy's bit generators, only MT19937 has one."""
    inner = {name: convert(value) if name == "key" else value for name, value in state["state"].items()}
    return {**state, "state": inner}


def generators_of(loader: Any) -> list[Any]:  # noqa: ANN401 - anything that can be iterated
    """The torch.Generator objects that a DataLoader and its samplers draw from, each once, in a fixed order."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    found: list[Any] = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if hasattr(generator, "get_state") and not any(generator is known for known in found):
            found.append(generator)
    return found
