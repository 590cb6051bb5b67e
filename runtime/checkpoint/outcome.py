"""How a training process says how it ended: by its exit code, and by a file beside it.

The file (named by CLOUDGPU_OUTCOME) is for launchers through which no exit code comes: torchrun makes 1 of every one.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from .errors import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_NONE,
    EXIT_OLDER,
    EXIT_SAVED,
    EXIT_STORE,
    EXIT_USER,
    CheckpointError,
    logger,
)

WORDS = {
    EXIT_DONE: "done",
    EXIT_SAVED: "interrupted",
    EXIT_OLDER: "stale",
    EXIT_NONE: "nothing-saved",
    EXIT_STORE: "store",
    EXIT_USER: "user",
    EXIT_FENCED: "fenced",
}
_REASON = 4000
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome file."""

    code: int
    """A key of WORDS, whatever the process's exit code is."""
    step: int
    """Steps done."""
    saved_step: int | None
    """Steps done in the newest checkpoint known to be committed."""
    checkpoint: str | None
    """Its name."""
    reason: str
    """For people."""

    def to_bytes(self) -> bytes:
        fields: dict[str, Any] = {**asdict(self), "outcome": WORDS[self.code], "reason": self.reason[:_REASON]}
        return json.dumps(fields).encode()

    def write(self) -> None:
        """To the file named by CLOUDGPU_OUTCOME, if it is; one that cannot be written is told of, no more."""
        path = os.environ.get("CLOUDGPU_OUTCOME")
        if not path:
            return
        new = Path(f"{path}.new")
        try:
            new.write_bytes(self.to_bytes())
            new.replace(path)
        except OSError as error:
            logger().warning(f"the outcome file cannot be written: {path}: {error.strerror}")

    def leave(self) -> NoReturn:
        """End the program: the reason to the log, the outcome to the file and as exit code."""
        self.write()
        logger().log(logging.INFO if self.code == EXIT_SAVED else logging.ERROR, self.reason)
        raise SystemExit(interrupted_exit() if self.code == EXIT_SAVED else self.code)


def interrupted_exit() -> int:
    """What to end with instead of 75, for platforms that know another code: CLOUDGPU_INTERRUPTED_EXIT."""
    text = os.environ.get("CLOUDGPU_INTERRUPTED_EXIT") or str(EXIT_SAVED)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 256):
        raise CheckpointError(f"CLOUDGPU_INTERRUPTED_EXIT={text!r}: expected an exit code, 1 to 255")
    return int(text)
