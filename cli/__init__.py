"""Command line of cloudgpu: one module per command, imported only when that command runs."""

from __future__ import annotations

from .main import main, run

__all__ = ["main", "run"]
