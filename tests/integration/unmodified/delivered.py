"""Compare what two runs of a program have delivered: their files and the last line of their standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TORCH = {".pt", ".pth", ".tar"}
_NOT_DELIVERED = ("checkpoints", "__pycache__")
_LINES = 1


def differences(ours: Path, theirs: Path) -> list[str]:
    """Return the differences by file: torch's files by their tensors, others by their bytes."""
    a, b = _files(ours), _files(theirs)
    found = [f"{name} is missing" for name in sorted(a.keys() - b.keys())]
    found += [f"{name} should not be there" for name in sorted(b.keys() - a.keys())]
    return found + [f"{name} differs" for name in sorted(a.keys() & b.keys()) if not _same_file(a[name], b[name])]


def last_lines(output: Path) -> list[str]:
    return [line for line in output.read_text(errors="replace").splitlines() if line.strip()][-_LINES:]


def _files(folder: Path) -> dict[str, Path]:
    every = ((path.relative_to(folder), path) for path in folder.rglob("*") if path.is_file())
    return {str(name): path for name, path in every if name.parts[0] not in _NOT_DELIVERED}


def _same_file(a: Path, b: Path) -> bool:
    if a.read_bytes() == b.read_bytes():
        return True
    if a.suffix not in _TORCH:
        return False
    import torch

    return _equal(torch.load(a, weights_only=False), torch.load(b, weights_only=False))


def _equal(a: Any, b: Any) -> bool:
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def bytes_of(tensor: Any) -> bytes:
    import torch

    found: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found
