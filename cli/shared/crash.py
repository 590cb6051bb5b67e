"""Crash reports for defects of cloudgpu: details for a bug report, with secrets masked."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ... import __version__
from ...jobspecs.home import home, private
from .hidden_values import MASK, masked


def write_report(error: BaseException, words: Sequence[str]) -> Path | None:
    """Write a file with the details and return its path, in the state directory or else a temporary one; None if
    neither is writable."""
    text = "\n".join(
        [
            f"cloudgpu {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"time: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
            f"command: {' '.join(_without_secrets(words))}",
            f"executable: {sys.executable}",
            "",
            *(line.rstrip("\n") for line in traceback.format_exception(error)),
            "",
        ]
    )
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.txt"
    for folder in (_state_folder, _temporary_folder):
        try:
            path = folder() / name
            path.write_text(masked(text), encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return path
    return None


def _state_folder() -> Path:
    return private(home() / "crashes")


def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="cloudgpu-"))


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield the command line without the values of --env and --set and without the program's arguments."""
    hide_next = False
    for word in words:
        if word == "--":
            yield "-- …"
            return
        flag, equals, _ = word.partition("=")
        if hide_next or (flag in {"--env", "--set"} and equals):
            yield f"{flag}={MASK}"
        else:
            yield word
        hide_next = word in {"--env", "--set"}
