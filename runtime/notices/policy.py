"""The reaction to each kind of notice: a table, of which each cloud's module has its part.

`stop`: save now and end. `save`: save now and train on, saving more often, and stop shortly before the event. `ignore`:
only said in the log.
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
    """The provider's own word, in lower case."""
    action: Literal["stop", "save", "ignore"]
    word: Word
    """For programs."""
    lead_s: float
    """From the notice to its event, where the notice itself does not say when."""
    near_s: float | None
    """Until the event is as near as this, it is only reported; None: acted upon at once."""
    stop_s: float | None
    """Of `save`: the program is asked to end this long before the event; None: it is not, the machine stays."""
    margin_s: float
    """The program is over this long before the event: time for the last lines and the result."""
    source: str
    acknowledged: bool = False
    """The provider may begin early when told that all is saved."""
    vanishes: bool = False
    """At the event the machine ends without a word, as in a cloud; of simulated notices only."""
    returns: bool = False
    """The provider starts the same machine again after the event: the node goes on there, and has no result yet."""

    def ends_at_once(self, machines: Sequence[str]) -> bool:
        """Whether the program is asked to end as soon as the event of these machines is known.

        Where the machine comes back, and nobody else has to agree that the event begins: then nothing is gained by
        waiting for it, and it comes when all is saved. An event of several machines may name somebody else's, and is
        waited for in any case: until it is near, they train on.
        """
        return self.action == "stop" or (self.acknowledged and self.returns and len(set(machines)) == 1)


CLOUDS = ("aws", "gcp", "azure")
"""Those with a module here, which has the rows of its notices: POLICIES."""


def rows(cloud: str, table: Sequence[tuple[Any, ...]]) -> dict[str, Policy]:
    """Return the rows of one cloud by kind. Raises ValueError for a kind that has two."""
    found = {row[0]: Policy(cloud, *row) for row in table}
    if len(found) < len(table):
        raise ValueError(f"a kind of notice of {cloud} has two rows")
    return found


# Where a stop comes before a planned event, it comes 2 min before: time for a long step, a save and its upload.
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
        # notice.json: what `cloudgpu preempt` writes.
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
    """The row. Upon a kind that this version does not know, the program saves and trains on."""
    return policies_of(cloud).get(kind) or Policy(cloud, kind, "save", "maintenance", 900, 900, None, 0, "unknown")
