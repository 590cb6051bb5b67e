"""Capture and restore random state, as plain values that execute no code when they are loaded.

Covered are Python's `random`, NumPy's global generator (if the program uses NumPy), torch's CPU generator, torch's CUDA
generators (if CUDA is in use), and the loader's generators (generators.py). Other generator objects are not found: keep
their state in `ckpt.state`.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

from .generators import Generators, from_python, generators_of, to_python

__all__ = ["capture", "derive", "generators_of", "restore"]


def capture(generators: Generators | None = None) -> dict[str, Any]:
    """Return the state of the global generators, and of `generators`, those of the loader."""
    state: dict[str, Any] = {
        "python": from_python(random.getstate()),
        "generators": generators.capture() if generators is not None else {},
    }
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = _convert_key(numpy.random.get_state(legacy=False), lambda key: key.tobytes())
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any], generators: Generators | None = None) -> None:
    """Restore the state of every generator; those that were not captured keep their state.

    Raises CheckpointError if the loader's generators have changed.
    """
    (generators or Generators(None)).restore(state["generators"])  # first, since one of them may be a global generator
    random.setstate(to_python(state["python"]))
    if "numpy" in state:
        import numpy as np

        np.random.set_state(_convert_key(state["numpy"], lambda key: np.frombuffer(key, dtype=np.uint32)))
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            if "cuda" in state:  # a machine with fewer GPUs gets the states of the first ones
                torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
            if "cuda_seed" in state:
                torch.cuda.manual_seed_all(state["cuda_seed"])


def derive(state: dict[str, Any], rank: int, step: int) -> dict[str, Any]:
    """Derive a rank's state from that of rank 0, for a run with another number of ranks than the saved one.

    Rank 0 keeps its state. The state of each other rank depends on rank 0's state, the rank and the step alone, so that
    a rerun gives the same. The loader's generators are unchanged: ranks must agree on the order of the data.
    """
    if rank == 0:
        return state

    def seed(name: str, content: bytes) -> int:
        return int.from_bytes(hashlib.sha256(b"%s %d %d " % (name.encode(), rank, step) + content).digest()[:8], "big")

    _, words, _ = state["python"]
    fresh_python = random.Random(seed("python", words))  # noqa: S311 - not for secrets
    derived = {**state, "python": from_python(fresh_python.getstate())}
    if "numpy" in state:
        import numpy as np

        content = repr(sorted(state["numpy"]["state"].items())).encode()
        fresh_numpy = np.random.RandomState(getattr(np.random, state["numpy"]["bit_generator"])(seed("numpy", content)))
        derived["numpy"] = _convert_key(fresh_numpy.get_state(legacy=False), lambda key: key.tobytes())
    if "torch" in state:
        import torch

        content = bytes(state["torch"].tolist())
        derived["torch"] = torch.Generator().manual_seed(seed("torch", content) >> 1).get_state()
        # The format of a CUDA generator's state is known only on a machine with CUDA: keep a seed instead.
        derived["cuda_seed"] = seed("cuda", content) >> 1
        derived.pop("cuda", None)
    return derived


def _convert_key(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Convert the array "key" in a state of NumPy; only the bit generator MT19937 has it."""
    inner = {name: convert(value) if name == "key" else value for name, value in state["state"].items()}
    return {**state, "state": inner}
