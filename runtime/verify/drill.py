"""`python -m cloudgpu.runtime drill PLAN -- train.py ARGS…`: one run of a verification.

The program is run as by `run`. Its Checkpointer, whoever makes it, saves into the plan's folder and nowhere else, when
the plan says so and at no other time, and ends the process at the plan's step.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..attach.execute import Target, execute
from ..attach.frames import Code
from ..attach.imports import AfterImport
from ..attach.objects import Objects
from ..attach.session import Session
from ..attach.variables import Variables, generator_state, is_plain
from ..checkpoint import checkpointer as module
from ..checkpoint.errors import CheckpointError
from .trace import UNSAVED, TraceWriter, digest_of, digests_of

How = Literal["kill", "term", "notice"]
_NEVER = 1 << 60
_USAGE = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen in a run; paths are absolute."""

    folder: str
    """For checkpoints, trace.jsonl and report.json."""
    save_at: int | None = None
    """Save when so many steps are done."""
    end_at: int | None = None
    """End the process when so many steps are done."""
    how: How = "kill"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text()))


class Watched:
    """What the program has and a Checkpointer does not save."""

    def __init__(self, code: Code) -> None:
        self._objects, self._variables = Objects(), Variables(code)
        AfterImport("torch", self._objects.watch).install()

    def digests(self, saved: Mapping[str, Any]) -> dict[str, str]:
        """By the name of the variable it is found by. saved: the objects given to the Checkpointer."""
        found = {f"generator {name}": generator_state(one) for name, one in self._variables.generators().items()}
        names: dict[int, str] = {}
        for space in self._variables.spaces():
            for name, value in space.values.items():
                names.setdefault(id(value), f"{space.path}.{name}")
                if is_plain(value):
                    found[f"variable {space.path}.{name}"] = value
        known = _parts(saved)
        for name, one in self._objects.by_name().items():
            if id(one) not in known and not (_parts({name: one}) & known):
                kind = name.partition("_")[0]
                found[f"{kind} {names.get(id(one), name)} ({type(one).__name__})"] = one.state_dict()
        return {f"{UNSAVED}{name}": digest for name, state in found.items() if (digest := _digest(state)) is not None}


def _digest(state: Any) -> str | None:  # noqa: ANN401
    try:
        return digest_of(state)
    except CheckpointError:  # of a kind that is not saved either
        return None


def _parts(objects: Mapping[str, Any]) -> set[int]:
    """The objects, and the modules inside of them."""
    found = set(map(id, objects.values()))
    for one in objects.values():
        if callable(modules := getattr(one, "modules", None)):
            found.update(map(id, modules()))
        found.add(id(getattr(one, "module", None)))
    return found - {id(None)}


def substitute(plan: Plan, code: Code) -> None:
    """From now on a Checkpointer is one of this plan."""
    watched = Watched(code)
    trace = TraceWriter(Path(plan.folder) / "trace.jsonl")
    made: list[object] = []

    class DrilledCheckpointer(module.Checkpointer):
        """Saves and ends as the plan has it."""

        def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as of every Checkpointer
            made.append(None)
            place = Path(plan.folder) / "checkpoints" if len(made) == 1 else Path(plan.folder) / f"more-{len(made)}"
            super().__init__(**{**options, "folder": str(place), "every": _NEVER, "keep": 3})

        def _boundary(self) -> None:
            self._trace()
            if plan.end_at is not None and self.step >= plan.end_at:
                self._end_here()
            if plan.save_at is not None and self.step == plan.save_at:
                self._asked = True
            super()._boundary()

        def _trace(self) -> None:
            attached = isinstance(self._objects.get("program"), Session)
            digests = digests_of(self._content().snapshot)
            trace.add(self.step, digests if attached else {**digests, **watched.digests(self._objects)})

        def _end_here(self) -> None:
            self._saver.settle(math.inf)
            if plan.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif plan.how == "term":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                notice = {"reason": "verify-resume", "deadline": time.time() + 3600, "action": "stop", "id": "1"}
                Path(os.environ["CLOUDGPU_NOTICE"]).write_text(json.dumps(notice))

    module.Checkpointer = DrilledCheckpointer  # type: ignore[misc]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--" or (target := Target.parse(arguments[2:])) is None:
        print("usage: python -m cloudgpu.runtime drill PLAN -- train.py ARGS…", file=sys.stderr)
        return _USAGE
    plan = Plan.read(Path(arguments[0]))
    os.environ["CLOUDGPU_NOTICE"] = str(Path(plan.folder) / "notice.json")
    substitute(plan, Code(target.folder))
    session = Session(target, report=Path(plan.folder) / "report.json")
    return session.run(lambda: execute(target, session.end, session.rewriter.compile))
