"""`launcher: auto`: which launcher a program gets, and why. Standard library only; see docs/reference/launchers.md.

The machines decide, from the code they have unpacked; whoever submits may ask before, from the folder that is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .program_scan import Scan, scan


@dataclass(frozen=True, slots=True)
class Choice:
    """A launcher's name, and why it was chosen."""

    launcher: str
    reason: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of an attempt's nodes, in rank order."""

    roles: Sequence[str]
    gpus: Sequence[int]

    @property
    def ranks(self) -> int:
        """Processes, were there one per GPU."""
        return sum(max(1, count) for count in self.gpus)


# The first that a program imports decides: who imports mpi4py or Horovod and torch wants the ranks of the former.
_FRAMEWORKS = {
    "horovod": "horovod",
    "mpi4py": "mpi",
    "torch": "torchrun",
    "lightning": "torchrun",
    "pytorch_lightning": "torchrun",
    "accelerate": "torchrun",
    "transformers": "torchrun",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
}
_KERAS_BACKENDS = {"torch": "torchrun", "tensorflow": "tensorflow"}
_ONE_PER_NODE = frozenset({"tensorflow"})
"""Launchers that start one process per node, which drives all its GPUs."""


def choose(run: str | Sequence[str] | None, code: Path | None, shape: Shape, env: Mapping[str, str]) -> Choice:
    """The launcher for a program; `env` is the job's own. Reads files of `code`; runs nothing."""
    if run is None:
        return Choice("none", "the image's own entrypoint is started")
    found = scan(run, code)
    if found.starters:
        return Choice("none", f"`run` starts its processes itself, by {found.starters[0]}")
    if "parameter_server" in shape.roles:
        return Choice("tensorflow", "there are parameter servers")
    framework = next((name for name in _FRAMEWORKS if name in found.imports), None)
    launcher = _launcher(framework, env)
    if framework is None or launcher is None:
        return _without_hint(found, shape)
    why = f"{found.imports[framework]} imports {framework}"
    ranks = len(shape.roles) if launcher in _ONE_PER_NODE else shape.ranks
    if ranks == 1:
        return Choice("none", f"{why}; there is one process")
    return Choice(launcher, f"{why}; there are {ranks} processes")


def _launcher(framework: str | None, env: Mapping[str, str]) -> str | None:
    if framework == "keras":
        return _KERAS_BACKENDS.get(env.get("KERAS_BACKEND", "tensorflow"))
    return _FRAMEWORKS.get(framework or "")


def _without_hint(found: Scan, shape: Shape) -> Choice:
    """Most programs that train on several GPUs find their ranks as torchrun tells them."""
    read = f"{found.entry} imports nothing that decides" if found.entry else "the program cannot be read"
    if shape.ranks == 1:
        return Choice("none", f"there is one process; {read}")
    return Choice("torchrun", f"there are {shape.ranks} processes; {read}")
