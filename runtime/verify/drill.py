"""One run of a verification: `python -m cloudgpu.runtime drill PLAN -- train.py ARGS…`.

Runs the program as `run` does. The program's Checkpointers save only at the plan's step, into the plan's folder. The
first Checkpointer writes the trace, and ends the process at the plan's step.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..attach.program.execute import Target, execute
from ..attach.program.frame_inspection import Code
from ..attach.session import Session
from ..checkpoint import checkpointer as module
from .program_state import ProgramState
from .trace import TraceWriter, digests_of

How = Literal["kill", "term", "notice"]
_NEVER = 1 << 60
_USAGE = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run; paths are absolute."""

    folder: str
    """Folder for checkpoints, trace.jsonl and report.json."""
    save_at: int | None = None
    """Save after this number of steps; None: do not save."""
    end_at: int | None = None
    """End the process after this number of steps; None: run to the end."""
    how: How = "kill"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text()))


class Drill:
    """Execution of a plan in this process."""

    def __init__(self, plan: Plan, code: Code) -> None:
        self.plan, self._held = plan, ProgramState(code)
        self._trace = TraceWriter(Path(plan.folder) / "trace.jsonl")
        self.made: list[module.Checkpointer] = []

    def trace(self, *, end: bool = False) -> None:
        """Add digests of the current state to the trace; at the program's end, only those of unsaved state."""
        if not self.made:
            return
        checkpointer = self.made[0]
        objects, loader = checkpointer._objects, checkpointer._loader
        attached = isinstance(objects.get("program"), Session)  # a Session saves models and similar objects itself
        held = self._held.digests([*objects.values(), loader], frozenset({"generator"}) if attached else None)
        saved = {} if end else digests_of(checkpointer._content().snapshot)
        self._trace.add(checkpointer.step, {**saved, **held}, end=end)

    def end_here(self) -> None:
        """End this process in the plan's way: SIGKILL, SIGTERM, or a notice to stop."""
        if self.plan.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.plan.how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            notice = {"reason": "verify-resume", "deadline": time.time() + 3600, "action": "stop", "id": "1"}
            Path(os.environ["CLOUDGPU_NOTICE"]).write_text(json.dumps(notice))


def substitute(drill: Drill) -> None:
    """Replace the class Checkpointer by one that follows the drill's plan."""
    plan = drill.plan

    class DrilledCheckpointer(module.Checkpointer):
        """Checkpointer that saves and ends the process according to the plan."""

        def __init__(self, **options: Any) -> None:  # as for Checkpointer
            number = len(drill.made) + 1
            place = Path(plan.folder) / ("checkpoints" if number == 1 else f"more-{number}")
            super().__init__(**{**options, "folder": str(place), "every": _NEVER, "keep": 3})
            drill.made.append(self)

        def _boundary(self) -> None:
            if self is drill.made[0]:
                drill.trace()
            if plan.end_at is not None and self.step >= plan.end_at:
                self._saver.settle(math.inf)
                drill.end_here()
            if plan.save_at is not None and self.step == plan.save_at:
                self._save_requested = True
            super()._boundary()

    module.Checkpointer = DrilledCheckpointer  # type: ignore[misc]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--" or (target := Target.parse(arguments[2:])) is None:
        print("usage: python -m cloudgpu.runtime drill PLAN -- train.py ARGS…", file=sys.stderr)
        return _USAGE
    plan = Plan.read(Path(arguments[0]))
    os.environ["CLOUDGPU_NOTICE"] = str(Path(plan.folder) / "notice.json")
    drill = Drill(plan, Code(target.folder))
    substitute(drill)
    session = Session(target, report=Path(plan.folder) / "report.json")

    def end() -> None:
        drill.trace(end=True)
        session.end()

    return session.run(lambda: execute(target, end, session.rewriter.compile))
