"""Choose the launcher for `launcher: auto`, with the reason. Standard library only; see docs/reference/launchers.md.

The agent makes the choice, from the code that it has unpacked. `plan` and `submit` predict it from the folder to ship.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .program_scan import Scan, scan


@dataclass(frozen=True, slots=True)
class Choice:
    """A launcher's name and the reason for the choice."""

    launcher: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Roles and GPU counts of an attempt's nodes, in rank order."""

    roles: Sequence[str]
    gpus: Sequence[int]

    @property
    def ranks(self) -> int:
        """Number of processes if there is one per GPU, and one on a node without GPUs."""
        return sum(max(1, count) for count in self.gpus)


# In order of precedence: a program that imports torch and also mpi4py or Horovod uses the ranks of mpi4py or Horovod.
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


def choose(run: str | Sequence[str] | None, code: Path | None, shape: NodeLayout, env: Mapping[str, str]) -> Choice:
    """Return the launcher for a program, without running it.

    run    the job's command; None: the image's entrypoint
    code   folder of the code, whose files are read
    env    the job's environment variables
    """
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


def _without_hint(found: Scan, shape: NodeLayout) -> Choice:
    """Return the choice for a program whose imports decide nothing: `none` for one process, else `torchrun`.

    Most programs that train on several GPUs read the ranks that torchrun sets.
    """
    read = f"{found.entry} imports nothing that decides" if found.entry else "the program cannot be read"
    if shape.ranks == 1:
        return Choice("none", f"there is one process; {read}")
    return Choice("torchrun", f"there are {shape.ranks} processes; {read}")
