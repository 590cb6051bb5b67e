"""Long-running operations.

They follow "Track asynchronous Azure operations": a PUT returns 201 or 200, the resource's initial state, and
`Azure-AsyncOperation`; POST and DELETE return 202, `Azure-AsyncOperation` and `Location`. A later error is in the
operation, which is itself returned with 200.
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
    """The request could not be carried out; its operation ends with this error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


Work = Callable[[], float | None]
"""Step of an operation. It may raise FailedError; it returns the seconds until it is to be called again, or None when
done."""


def now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class Operations:
    """Operations of a subscription. All methods require the world's lock."""

    world: World
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def begin(self, work: Work, failed: Callable[[], None] = lambda: None) -> str:
        """Start an operation; return its id. `failed` is called if it ends with an error."""
        name = str(uuid.uuid4())
        made = self.known[name] = {"name": name, "startTime": now(), "status": "InProgress"}
        self.world.after(self.world.delay_s, lambda: self._work(made, work, failed))
        return name

    def _work(self, operation: dict[str, Any], work: Work, failed: Callable[[], None]) -> None:
        try:
            again_s = work()
        except Exception as error:  # noqa: BLE001 - a bug of the stand-in must not leave the operation running for ever
            result = error if isinstance(error, FailedError) else FailedError("StandinBroken", traceback.format_exc())
            operation["error"] = {"code": result.code, "message": result.message}
            operation |= {"status": "Failed", "endTime": now()}
            failed()
            return
        if again_s is not None:
            self.world.after(again_s, lambda: self._work(operation, work, failed))
            return
        operation |= {"status": "Succeeded", "endTime": now()}
