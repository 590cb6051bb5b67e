"""Says plainly what of a program is saved, and what is not: on stderr, and as JSON for tools."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.errors import logger
from .openings import Opening
from .variables import Variables

_NAMES = 12
"""How many names a line shows."""


class Report:
    """path: where the JSON goes; None: nowhere. Of several ranks, which are alike, the first tells what is saved."""

    def __init__(self, path: Path | None) -> None:
        self._first = int(os.environ.get("RANK") or 0) == 0
        self._path = path if self._first else None
        self.open = True
        """Nothing has been told yet."""
        self._told: dict[str, Any] = {"resumable": False, "reason": "no optimizer has made a step"}

    def refuse(self, reason: str, *, plain: bool) -> None:
        """plain: it is no loss."""
        self.open = False
        self._told = {"resumable": False, "reason": reason}
        if plain:
            logger().info(f"run: {reason}")
        else:
            logger().warning(f"run: this program is NOT made resumable, nothing is saved: {reason}")

    def tell(
        self,
        *,
        step: int,
        objects: Mapping[str, Any],
        variables: Variables,
        opening: Opening | None,
        left_out: Mapping[str, int],
    ) -> None:
        """What is saved from now on."""
        self.open = False
        state = variables.state_dict()
        saved = sorted(f"{path}.{name}" for path, names in state["changed"].items() for name in names)
        self._told = {
            "resumable": True,
            "resumed_at_step": step or None,
            "objects": {name: type(one).__qualname__ for name, one in objects.items()},
            "data": opening.site if opening is not None else None,
            "generators": sorted(variables.generators()),
            "variables": saved,
            "not_saved": variables.unsaved(),
            "left_out_when_resuming": dict(left_out),
        }
        told = self._told
        if not self._first:
            return
        log = logger()
        log.info(f"run: saved are {_names([f'{name} ({kind})' for name, kind in told['objects'].items()])}")
        log.info(f"run: the place in the data is that of `{told['data']}`")
        log.info(f"run: variables that change: {_names(saved)}; generators: {_names(told['generators'])}")
        if told["not_saved"]:
            log.warning(f"run: NOT saved, should they change: {_names(told['not_saved'])}")
        if left_out:
            log.info(f"run: not done again for epochs that are done: {_names(sorted(left_out))}")

    def write(self) -> None:
        if self._path is None:
            return
        try:
            self._path.write_text(json.dumps(self._told, indent=2) + "\n")
        except OSError as error:
            logger().warning(f"the report cannot be written: {self._path}: {error.strerror}")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return (", ".join(names[:_NAMES]) or "none") + more
