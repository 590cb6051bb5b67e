"""Run the command line as `python -m cloudgpu`, without the installed script."""

from __future__ import annotations

from .cli import run

run()
