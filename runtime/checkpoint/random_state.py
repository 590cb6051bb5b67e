"""Random number generators: capture and restore, as plain values that execute nothing when they are loaded.

Covered: Python's `random`, NumPy's global generator (if the program uses NumPy), torch's CPU generator, torch's CUDA
generators (if CUDA is in use), and generators handed in. A generator object that the program keeps to itself is not
seen: add it by name (`Checkpointer(rng=...)` needs state_dict) or keep its state in `ckpt.state`.
"""

from __future__ import annotations

import hashlib
import random
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from .errors import CheckpointError


def capture(generators: Sequence[Any] = ()) -> dict[str, Any]:
    """The state of every generator now. `generators`: torch.Generator objects, known by their order."""
    state: dict[str, Any] = {
        "python": _from_python(random.getstate()),
        "generators": [generator.get_state() for generator in generators],
    }
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = _convert_key(numpy.random.get_state(legacy=False), lambda key: key.tobytes())
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
    random.setstate(_to_python(state["python"]))
    for generator, value in zip(generators, state["generators"], strict=True):
        generator.set_state(value)
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
    derived = {**state, "python": _from_python(fresh_python.getstate())}
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


def _from_python(state: tuple[Any, ...]) -> list[Any]:
    version, words, gauss = state
    return [version, array("Q", words).tobytes(), gauss]


def _to_python(state: Sequence[Any]) -> tuple[Any, ...]:
    version, words, gauss = state
    return (version, tuple(array("Q", words)), gauss)


def _convert_key(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """NumPy's state with its array converted; of its bit generators, only MT19937 has one."""
    inner = {name: convert(value) if name == "key" else value for name, value in state["state"].items()}
    return {**state, "state": inner}


def generators_of(loader: Any) -> list[Any]:  # noqa: ANN401 - anything that can be iterated
    """The torch.Generator objects that a DataLoader and its samplers draw from, each once, in a fixed order."""
    batches = getattr(loader, "batch_sampler", None)
    inner = getattr(batches, "batch_sampler", None)  # in Accelerate's BatchSamplerShard, if there are several processes
    parts = [part for owner in (loader, batches, inner) for part in (owner, getattr(owner, "sampler", None))]
    found: list[Any] = []
    for part in parts:
        generator = getattr(part, "generator", None)
        if hasattr(generator, "get_state") and not any(generator is known for known in found):
            found.append(generator)
    return found
