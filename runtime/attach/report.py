"""Report of the state that is saved and not saved for a program: on stderr, and as JSON for tools."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.errors import logger

_NAMES = 12
"""Maximum number of names in a log line."""
_LINES = """    from cloudgpu.runtime import Checkpointer
    ckpt = Checkpointer(model=model, optimizer=optimizer, loader=loader)
    for batch in ckpt.batches(epochs=EPOCHS):"""


def refusal(reason: str, place: str | None) -> str:
    """Return the message for a program that cannot be resumed, with the three lines that would make it resumable."""
    where = f" (at `{place}`)" if place else ""
    return (
        f"run: this program cannot be resumed exactly, so it is not trained{where}: {reason}.\n"
        f"These three lines make it resumable (docs/guides/checkpointing.md):\n{_LINES}\n"
        "With `run --unsaved` it is trained without checkpoints."
    )


class Report:
    """Report of one run. Only rank 0 reports, as all ranks have the same state.

    path  JSON file to write, or None
    """

    def __init__(self, path: Path | None) -> None:
        self._first = int(os.environ.get("RANK") or 0) == 0
        self._path = path if self._first else None
        self.open = True
        """True until it is reported that the program is saved, refused or run without saving."""
        self._content: dict[str, Any] = {"resumable": False, "reason": "no optimizer has made a step"}

    def leave_alone(self, reason: str) -> None:
        """Report that the program runs without saving."""
        if self.open:
            self._content = {"resumable": False, "reason": reason}
            if self._first:
                logger().info(f"run: {reason}")
        self.open = False

    def refuse(self, reason: str) -> None:
        """Report that the program is refused."""
        self.open = False
        self._content = {"resumable": False, "refused": True, "reason": reason}

    def stop(self, reason: str, step: int) -> None:
        """Report that nothing is saved from a step on."""
        self._content |= {"stopped_saving_at": step, "reason": reason}
        logger().warning(
            f"run: no more checkpoints from step {step} on: {reason}. Training goes on; what is saved already stays "
            "right, and an interruption costs the steps since then"
        )

    def report_saved_state(
        self,
        *,
        step: int,
        objects: Mapping[str, Any],
        variables: Mapping[str, Any],
        generators: Sequence[str],
        unknown: Sequence[str],
        left_out: Sequence[str],
        data: str | None,
    ) -> None:
        """Report the state that is saved from now on.

        step        number of completed steps, 0 if the program was not resumed
        unknown     objects whose changes cannot be detected
        left_out    handles and displays, which the program creates again
        data        site of the training loop
        """
        self.open = False
        saved = sorted(
            f"{path}.{name}" if name else path
            for path, record in variables["changed"].items()
            for name in (record.get("names") or [""])
        )
        self._content = {
            "resumable": True,
            "resumed_at_step": step or None,
            "objects": {name: type(one).__qualname__ for name, one in objects.items()},
            "data": data,
            "generators": list(generators),
            "variables": saved,
            "saved": [*objects, *saved, *generators],
            "not_saved": list(unknown),
            "left_to_the_program": list(left_out),
        }
        if not self._first:
            return
        log = logger()
        log.info(f"run: saved are {_names([f'{name} ({type(one).__qualname__})' for name, one in objects.items()])}")
        log.info(f"run: the place in the data is that of `{data}`")
        log.info(f"run: variables that change: {_names(saved)}; generators: {_names(generators)}")
        if unknown:
            log.warning(f"run: NOT saved, should they change: {_names(unknown)}")

    def write(self) -> None:
        """Write the JSON file, if there is a path. An error is logged."""
        if self._path is None:
            return
        try:
            self._path.write_text(json.dumps(self._content, indent=2) + "\n")
        except OSError as error:
            logger().warning(f"the report cannot be written: {self._path}: {error.strerror}")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return (", ".join(names[:_NAMES]) or "none") + more
