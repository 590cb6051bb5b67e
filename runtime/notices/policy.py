"""Table of the reactions to each kind of notice. The rows of a cloud's notices are in that cloud's module.

`stop`: save now and end. `save`: save now and continue training, saving more often, and stop shortly before the event.
`ignore`: only log the notice.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Word = Literal["preempt", "terminate", "reboot", "freeze", "maintenance"]


class Policy(NamedTuple):
    """One row of the table; times in seconds."""

    cloud: str
    kind: str
    """The provider's name for the kind of notice, in lower case."""
    action: Literal["stop", "save", "ignore"]
    word: Word
    """Reason as a fixed word, for programs (Order.word)."""
    lead_s: float
    """Assumed time from the notice to the event, if the notice does not contain the event's time."""
    near_s: float | None
    """The notice is only logged until this time before the event; None: no delay."""
    stop_s: float | None
    """For `save`: time before the event at which the program is asked to end; None: never, as the machine survives."""
    margin_s: float
    """Time between the program's deadline and the event, to write the last log lines and the result."""
    source: str
    """URL or name of the provider's documentation."""
    acknowledged: bool = False
    """True if cloudgpu acknowledges the event once all is saved, so that the provider may begin early."""
    vanishes: bool = False
    """True if the machine counts as gone at the event and writes no result; only for simulated notices."""
    returns: bool = False
    """True if the provider restarts the same machine after the event, and the node resumes there."""

    def ends_at_once(self, machines: Sequence[str]) -> bool:
        """Return whether the program is asked to end as soon as an event of these machines is announced.

        True for the action `stop`, and for an acknowledged event that restarts a single machine: the event begins when
        the program has saved, so waiting gains nothing. An event of several machines may include machines of another
        job. It begins at its scheduled time, so training continues until shortly before it.
        """
        return self.action == "stop" or (self.acknowledged and self.returns and len(set(machines)) == 1)


CLOUDS = ("aws", "gcp", "azure")
"""Clouds with a module in this package, which has the table POLICIES."""


def rows(cloud: str, table: Sequence[tuple[Any, ...]]) -> dict[str, Policy]:
    """Return the rows of one cloud by kind. Raises ValueError for a duplicate kind."""
    found = {row[0]: Policy(cloud, *row) for row in table}
    if len(found) < len(table):
        raise ValueError(f"a kind of notice of {cloud} has two rows")
    return found


# A stop is ordered 2 min before a planned event: time for a long step, a save and its upload.
_SLURM = "slurm.schedmd.com/sbatch.html#OPT_signal"
_OURS = "docs/reference/job-dir.md"
# fmt: off
_OWN = {
    "signal": rows("signal", (
        # kind, action, word, lead, near, stop, margin, source, acknowledged, vanishes, returns
        # systemd, Kubernetes, Slurm's KillWait and the clouds' shutdown give 30 s between the signal and the end.
        ("sigterm", "stop", "terminate", 30, None, None, 5, "systemd, Kubernetes, Slurm"),
        ("sigusr1", "stop", "terminate", 60, None, None, 5, _SLURM),
    )),
    "simulated": rows("simulated", (
        # notice.json, written by `cloudgpu preempt`.
        ("preempt", "stop", "preempt", 30, None, None, 0, _OURS, False, True),
        ("terminate", "stop", "terminate", 30, None, None, 0, _OURS, False, True),
        ("reboot", "stop", "reboot", 30, None, None, 0, _OURS, False, True),
        ("maintenance", "save", "maintenance", 30, None, 10, 0, _OURS, False, True),
        ("freeze", "ignore", "freeze", 30, None, None, 0, _OURS),
    )),
}
# fmt: on


def policies_of(cloud: str) -> Mapping[str, Policy]:
    """Return the rows of a cloud, or of `signal` and `simulated`, by kind."""
    if cloud in CLOUDS:
        found: Mapping[str, Policy] = importlib.import_module(f".{cloud}", __package__).POLICIES
        return found
    return _OWN.get(cloud, {})


def policy_of(cloud: str, kind: str) -> Policy:
    """Return the row for a kind of notice; for an unknown kind, a row to save and continue training."""
    return policies_of(cloud).get(kind) or Policy(cloud, kind, "save", "maintenance", 900, 900, None, 0, "unknown")
