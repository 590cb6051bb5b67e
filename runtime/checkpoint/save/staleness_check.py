"""Check that saved state is the live state, and that it changes as training proceeds.

If a program's state_dict() returns stale tensors (a copy made at the start, a cached structure), saves succeed and
verify, and the error shows only after a restore. Both checks compare samples, to keep saves cheap. Each object is
reported at most once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import logger
from ..format.manifest import Piece, chunk_hash, is_dense
from ..format.strides import flatten_memory, strides_of

SAMPLES = 16
"""Number of pieces to sample of each object."""
STRETCH = 256
"""Bytes to sample of each piece."""
UNCHANGED_STEPS = 100
"""Number of steps after which unchanged state is suspicious; fewer are normal while gradients are accumulated."""
COMPARED = 4
"""Number of live tensors of each object to compare with the staged ones at a check, in rotation."""
FIRST_CHECKS, CHECK_EVERY = 3, 8
"""Live tensors are compared at the first FIRST_CHECKS saves, because most stale copies are stale from the first save
on, then at every CHECK_EVERY-th save."""


class StaleSaves:
    """Detector of stale state in staged saves. `objects`: the live objects, by name."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self._seen: dict[str, tuple[int, str]] = {}
        """Step and fingerprint of the last save in which an object's sample changed."""
        self._suspects: dict[str, tuple[int, str]] = {}
        """Step and hash of all bytes of each object whose sample has not changed since that step."""
        self._trained = 0
        """Step of the last save in which an optimizer's state had changed, which shows training; buffers do not."""
        self._reported: set[str] = set()
        """Names of the objects reported already."""
        self._turn = 0
        self._grouped: tuple[Sequence[Piece], dict[str, list[Piece]]] = [], {}
        """The pieces of the last save, and the same pieces by object name; cached because they rarely change."""

    def check(self, step: int, pieces: Sequence[Piece], memory: memoryview, *, live: bool) -> None:
        """Check a staged save before it is submitted, and log a warning about stale state.

        live  True if the objects have not changed since the save was staged
        """
        self._turn += 1
        if self._grouped[0] is not pieces:
            self._grouped = pieces, _by_object(pieces)
        mine = self._grouped[1]
        live = live and (self._turn <= FIRST_CHECKS or self._turn % CHECK_EVERY == 0)
        for name in [name for name in self._objects if name not in self._reported]:
            own = mine.get(name, [])
            if own and _should_change(self._objects[name]):
                self._look_for_change(name, step, own, memory)
            if live:
                self._compare_with_live(name, own, memory)
        self._report_unchanged(step)

    # State changes

    def _look_for_change(self, name: str, step: int, pieces: Sequence[Piece], memory: memoryview) -> None:
        sample = _fingerprint(pieces, memory)
        before = self._seen.get(name)
        if before is not None and before[1] != sample:
            self._count_change(name, step)
        if before is None or before[1] != sample or step <= before[0]:
            self._seen[name] = step, sample
            self._suspects.pop(name, None)
            return
        everything = chunk_hash(b"".join(chunk_hash(memory[p.at : p.at + p.size]).encode() for p in pieces))
        suspect = self._suspects.setdefault(name, (step, everything))
        if suspect[1] != everything:  # a change that the sample missed
            self._suspects[name] = step, everything
            self._count_change(name, step)

    def _count_change(self, name: str, step: int) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(self._objects[name], torch.optim.Optimizer):
            self._trained = step

    def _report_unchanged(self, step: int) -> None:
        """Report objects that did not change although an optimizer did, or for UNCHANGED_STEPS steps."""
        for name, (since, _) in list(self._suspects.items()):
            if (
                name not in self._reported
                and step > since
                and (self._trained > since or step - since >= UNCHANGED_STEPS)
            ):
                self._warn(
                    name,
                    f"not one bit of what {name}.state_dict() gives has changed between step {since} and step {step}: "
                    "if it is trained, it is saved as it was long ago",
                )

    # State is live

    def _compare_with_live(self, name: str, pieces: Sequence[Piece], memory: memoryview) -> None:
        staged = {piece.key.removeprefix(f"objects/{name}/"): piece for piece in pieces}
        live = [(key, tensor) for key, tensor in _live_tensors(self._objects[name]) if key in staged]
        for number in range(min(COMPARED, len(live))):
            key, tensor = live[(self._turn * COMPARED + number) % len(live)]
            piece = staged[key]
            if _comparable(tensor, piece) and not _same(tensor, piece, memory):
                self._warn(
                    name,
                    f"what {name}.state_dict() gives as {key} is not what {name} holds now: it is not the live state "
                    "that is saved",
                )
                return

    def _warn(self, name: str, text: str) -> None:
        self._reported.add(name)
        logger().warning(f"checkpoints may hold stale state: {text}")


def _by_object(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        top, _, rest = piece.key.partition("/")
        if top == "objects" and piece.size:
            found.setdefault(rest.partition("/")[0], []).append(piece)
    return found


def _fingerprint(pieces: Sequence[Piece], memory: memoryview) -> str:
    """Return a hash of STRETCH bytes from the middle of each of about SAMPLES evenly spaced pieces."""
    chosen = pieces[:: max(1, len(pieces) // SAMPLES)]
    parts = []
    for piece in chosen:
        start = piece.at + max(0, piece.size // 2 - STRETCH // 2)
        parts.append(bytes(memory[start : min(start + STRETCH, piece.at + piece.size)]))
    return chunk_hash(b"".join(parts))


def _should_change(value: object) -> bool:  # any object
    """Return False for a model whose parameters are all frozen: its state does not change."""
    parameters = getattr(value, "parameters", None)
    if not callable(parameters):
        return True
    try:
        return any(parameter.requires_grad for parameter in parameters())
    except (TypeError, AttributeError):  # another kind of parameters() than torch's
        return True


def _live_tensors(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a module or optimizer, with the keys under which state_dict() should return them."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters()
    elif isinstance(value, torch.optim.Optimizer):
        number = 0
        for group in value.param_groups:
            for parameter in group["params"]:
                for key, item in value.state.get(parameter, {}).items():
                    if isinstance(item, torch.Tensor):
                        yield f"state/{number}/{key}", item
                number += 1


def _comparable(tensor: Any, piece: Piece) -> bool:
    """Return whether a live tensor is plain, and has the form of the piece."""
    return type(tensor).__name__ in {"Tensor", "Parameter"} and (
        tuple(tensor.shape) == piece.shape
        and str(tensor.dtype).removeprefix("torch.") == piece.dtype
        and is_dense(tensor.shape, tensor.stride())
        and strides_of(tensor) == piece.strides
        and piece.whole is None
    )


def _same(tensor: object, piece: Piece, memory: memoryview) -> bool:
    """Return whether STRETCH bytes in the middle of the tensor are equal to the staged bytes."""
    import torch

    flat = flatten_memory(tensor)
    item = flat.element_size()
    count = max(1, STRETCH // item)
    first = max(0, (flat.numel() - count) // 2)
    live = bytes(flat[first : first + count].view(torch.uint8).tolist())  # from a GPU, 256 bytes are copied
    at = piece.at + first * item
    return bytes(memory[at : at + len(live)]) == live
