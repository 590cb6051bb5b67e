"""Long-running operations: what was asked for and is carried out afterwards.

After "Track asynchronous Azure operations": PUT is answered with 201 or 200, the resource as it begins, and
`Azure-AsyncOperation`; POST and DELETE with 202, `Azure-AsyncOperation` and `Location`. What fails later stands in the
operation, which is itself answered with 200.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World


class FailedError(Exception):
    """What was asked for could not be done: the operation ends with this error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


Work = Callable[[], float | None]
"""It may raise FailedError; returns after how many seconds it is to be called again, or None: it is done."""


def now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class Operations:
    """Of one subscription. All methods are called with the world's lock held."""

    world: World
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def begin(self, work: Work, failed: Callable[[], None] = lambda: None) -> str:
        """Its id. `failed` is called where it ends with an error."""
        name = str(uuid.uuid4())
        made = self.known[name] = {"name": name, "startTime": now(), "status": "InProgress"}
        self.world.after(self.world.delay_s, lambda: self._work(made, work, failed))
        return name

    def _work(self, operation: dict[str, Any], work: Work, failed: Callable[[], None]) -> None:
        try:
            again_s = work()
        except Exception as error:  # noqa: BLE001 - a bug of the stand-in must not leave the operation running for ever
            told = error if isinstance(error, FailedError) else FailedError("StandinBroken", traceback.format_exc())
            operation["error"] = {"code": told.code, "message": told.message}
            operation |= {"status": "Failed", "endTime": now()}
            failed()
            return
        if again_s is not None:
            self.world.after(again_s, lambda: self._work(operation, work, failed))
            return
        operation |= {"status": "Succeeded", "endTime": now()}
