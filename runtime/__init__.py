"""Code that runs on the machines of a job: agent, launchers, checkpointing, preemption notices.

The public API for training programs:

Checkpointer(...)          save and restore a training loop, which resumes after an interruption
SeededDataset(dataset)     random augmentation that does not depend on workers
write_output(name, data)   write a file to the job's outputs/; returns its URL, raises JobDirError
CheckpointError            base class of the errors that Checkpointer and SeededDataset raise
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint.checkpointer import Checkpointer
    from .checkpoint.data.seeded import SeededDataset
    from .checkpoint.errors import CheckpointError
    from .outputs import write_output

__all__ = ["CheckpointError", "Checkpointer", "SeededDataset", "write_output"]

_HOME = {
    "CheckpointError": "checkpoint.errors",
    "Checkpointer": "checkpoint.checkpointer",
    "SeededDataset": "checkpoint.data.seeded",
    "write_output": "outputs",
}


def __getattr__(name: str) -> Any:  # each name has its own type, see above
    """Import a public name on first use, so that the agent does not load modules that only training programs need."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)
