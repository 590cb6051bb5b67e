"""Random number generators: capture and restore, as plain values that execute nothing when they are loaded.

Covered: Python's `random`, NumPy's global generator (if the program uses NumPy), torch's CPU generator, torch's CUDA
generators (if CUDA is in use), and those of a loader (generators.py). A generator object that the program keeps
elsewhere is not seen: keep its state in `ckpt.state`.
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
    """Return the state of every generator now; `generators` are those of the loader."""
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
    """Put every generator back; those that were not captured keep their state.

    Raises CheckpointError if the loader's generators are not those that were captured.
    """
    (generators or Generators(None)).restore(state["generators"])  # first: one of them may be a global one
    random.setstate(to_python(state["python"]))
    if "numpy" in state:
        import numpy as np

        np.random.set_state(_convert_key(state["numpy"], lambda key: np.frombuffer(key, dtype=np.uint32)))
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            if "cuda" in state:  # another machine may have fewer GPUs: the first ones keep their streams
                torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
            if "cuda_seed" in state:
                torch.cuda.manual_seed_all(state["cuda_seed"])


def derive(state: dict[str, Any], rank: int, step: int) -> dict[str, Any]:
    """A rank's state made of rank 0's, for a run on another number of ranks than saved it.

    Rank 0 goes on with its own streams. Each other rank gets new ones, which depend on rank 0's state, the rank and the
    step alone: running it again gives the same. Generators of the loader stay as they are: they make the order of the
    data, upon which the ranks must agree.
    """
    if rank == 0:
        return state

    def seed(name: str, content: bytes) -> int:
        return int.from_bytes(hashlib.sha256(b"%s %d %d " % (name.encode(), rank, step) + content).digest()[:8], "big")

    _, words, _ = state["python"]
    fresh_python = random.Random(seed("python", words))  # noqa: S311 - training's, no secrets
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
        # Only a machine with CUDA knows what such a generator's state looks like.
        derived["cuda_seed"] = seed("cuda", content) >> 1
        derived.pop("cuda", None)
    return derived


def _convert_key(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """NumPy's state with its array converted; of its bit generators, only MT19937 has one."""
    inner = {name: convert(value) if name == "key" else value for name, value in state["state"].items()}
    return {**state, "state": inner}
