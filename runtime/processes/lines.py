"""Types of the handlers for a process's output lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

OutputStream = Literal["stdout", "stderr"]
OnLine = Callable[[OutputStream, int | None, str, bool], None]
"""Handler called with (stream, rank, text, partial); partial: the rest of the line follows."""
