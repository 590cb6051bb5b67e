"""Make an unmodified PyTorch program resumable: `python -m cloudgpu.runtime run -- train.py`.

See docs/guides/attach.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ..checkpoint.settings import ON_DAMAGE
from .program.execute import Target, execute
from .session import Session

_VARIABLES = {
    "folder": "CLOUDGPU_CHECKPOINTS",
    "every": "CLOUDGPU_CHECKPOINT_EVERY",
    "keep": "CLOUDGPU_CHECKPOINT_KEEP",
    "on_damage": "CLOUDGPU_CHECKPOINT_ON_DAMAGE",
}


def main(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    target = Target.parse(words)
    if target is None:
        parser.error("no program given; write it after --: run -- train.py --epochs 10")
    for name, variable in _VARIABLES.items():
        if (value := getattr(options, name)) is not None:
            os.environ[variable] = f"{value} steps" if name == "every" and value.isdecimal() else str(value)
    session = Session(target, folder=options.folder, report=options.report, unsaved=options.unsaved)
    return session.run(lambda: execute(target, session.end, session.rewriter.compile))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cloudgpu.runtime run",
        description="Run a PyTorch training program, unmodified, so that it goes on after an interruption.",
        epilog="A program that uses cloudgpu's Checkpointer is run as it is. See docs/guides/attach.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--folder", help="path or URL of the checkpoints (default: the job's, or ./checkpoints)")
    parser.add_argument("--every", metavar="N|SECONDS|auto", help="how often to save: steps (100), time (30s), or auto")
    parser.add_argument("--keep", type=int, metavar="N", help="how many checkpoints to keep (default: 3)")
    parser.add_argument(
        "--on-damage", choices=ON_DAMAGE, help="when every checkpoint is damaged: stop (default), or restart"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what is captured, and what is not, as JSON")
    parser.add_argument("--unsaved", action="store_true", help="run a program that cannot be resumed, without saving")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- train.py ARGS…, or -- -m pkg.train ARGS…")
    return parser
