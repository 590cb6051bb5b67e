"""`python -m cloudgpu`: the command line without the installed script."""

from __future__ import annotations

from .cli import run

run()
