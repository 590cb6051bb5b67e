"""One run of a program under `run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .execute import Target


class Session:
    """Watches the program from its first line to its end."""

    def __init__(self, target: Target, *, report: Path | None = None) -> None:
        self._target, self._report = target, report

    def run(self, program: Callable[[], int]) -> int:
        return program()

    def end(self) -> None:
        """The program has come to its end by itself."""
