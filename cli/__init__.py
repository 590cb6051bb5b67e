"""The command line: one module per command, imported only when that command runs."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
