"""Lines that a process writes: the types of those who pass them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

OutputStream = Literal["stdout", "stderr"]
OnLine = Callable[[OutputStream, int | None, str, bool], None]
"""(stream, rank, text, whether the line goes on)."""
