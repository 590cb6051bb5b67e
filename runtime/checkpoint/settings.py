"""Settings of checkpointing: folder, interval and number of checkpoints.

Arguments of Checkpointer() override the job file's settings, which are passed as environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.jobdir import JobDir, JobDirError, local_url
from .errors import CheckpointError
from .schedule.interval import History
from .schedule.schedule import Schedule
from .store import CheckpointStore

_ON_DAMAGE = "CLOUDGPU_CHECKPOINT_ON_DAMAGE"


START_RETRY_TIMEOUT_S = 300.0
"""Seconds for which a failing store is retried at the program's start."""
ON_DAMAGE = ("stop", "restart")
"""Actions if every checkpoint is damaged; the first is the default."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of one Checkpointer: schedule, number of checkpoints, copy mode and action on damage."""

    schedule: Schedule
    keep: int
    overlap: bool | str
    on_damage: str

    @classmethod
    def of(
        cls, every: int | float | str | None, keep: int | None, overlap: bool | str, on_damage: str | None
    ) -> Policy:
        """Return the settings from Checkpointer's arguments; None: from the environment. Raises CheckpointError."""
        keep = keep if keep is not None else from_environment("CLOUDGPU_CHECKPOINT_KEEP", int, 3)
        on_damage = on_damage if on_damage is not None else from_environment(_ON_DAMAGE, str, ON_DAMAGE[0])
        if on_damage not in ON_DAMAGE:
            raise CheckpointError(f'on_damage={on_damage!r}: expected "stop" or "restart"')
        if overlap not in {True, False, "auto"}:
            raise CheckpointError(f'overlap={overlap!r}: expected True, False or "auto"')
        if keep < 1:
            raise CheckpointError(f"keep={keep}: at least one checkpoint must be kept")
        schedule = Schedule(
            every if every is not None else from_environment("CLOUDGPU_CHECKPOINT_EVERY", seconds_or_auto, "auto"),
            market=os.environ.get("CLOUDGPU_MARKET", ""),
            nodes=from_environment("CLOUDGPU_NODES", int, 1),
            known=History.from_text(os.environ.get("CLOUDGPU_INTERRUPTIONS", "")),
        )
        return cls(schedule, keep, overlap, on_damage)


def check_objects(objects: Mapping[str, object]) -> None:
    """Raise CheckpointError if an object lacks state_dict() or load_state_dict()."""
    for name, value in objects.items():
        if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
            raise CheckpointError(f"{name}= has no state_dict() and load_state_dict(): put it into ckpt.state")


def seconds_or_auto(text: str) -> int | float | str:
    """Parse $CLOUDGPU_CHECKPOINT_EVERY: "auto", seconds ("30.0", as in a job), a duration ("10m"), or "100 steps"."""
    if text.endswith("steps"):
        return int(text.removesuffix("steps"))
    try:
        return float(text)
    except ValueError:
        return text  # "auto" or a duration, which the schedule parses


def from_environment(name: str, parse: Callable[[str], object], default: object) -> Any:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise CheckpointError(f"{name}={text!r}: {error}") from error


def start_retry_timeout_s() -> float:
    """Return the seconds for which a failing store is retried at the program's start. Raises CheckpointError."""
    return float(from_environment("CLOUDGPU_START_PATIENCE", float, START_RETRY_TIMEOUT_S))


def find_store(folder: str | os.PathLike[str] | None, world: int) -> CheckpointStore:
    """Return the store in `folder`; default: the job's, else $CLOUDGPU_CHECKPOINTS, else ./checkpoints.

    world  number of ranks of the program. In a job with several nodes, 1 means that each node trains separately; then
           each has a separate folder in the job's.

    Raises CheckpointError if a folder or URL is invalid.
    """
    try:
        if folder is not None:
            return _open(folder)
        url = os.environ.get("CLOUDGPU_JOB_DIR")
        if not url:
            return _open(os.environ.get("CLOUDGPU_CHECKPOINTS") or "checkpoints")
        alone = world == 1 and from_environment("CLOUDGPU_WORLD_SIZE", int, 1) > 1
        node = re.sub(r"\.\d+$", "", os.environ.get("CLOUDGPU_NODE", "node")) if alone else ""
        return CheckpointStore(JobDir(url, make=False), f"checkpoints/{node}")
    except JobDirError as error:
        raise CheckpointError(str(error)) from error


def _open(place: str | os.PathLike[str]) -> CheckpointStore:
    text = os.fspath(place)
    return CheckpointStore(JobDir(text if "://" in text else local_url(Path(text))), "")
