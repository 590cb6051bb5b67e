"""What is done upon each kind of notice: one table.

`stop`: save now and end. `save`: save now and train on, saving more often, and stop shortly before the event. `ignore`:
only said in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

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


_EC2 = "docs.aws.amazon.com/AWSEC2/latest/UserGuide/"
_SPOT = _EC2 + "spot-instance-termination-notices.html"
_REBALANCE = _EC2 + "rebalance-recommendations.html"
_EVENTS = _EC2 + "viewing_scheduled_events.html"
_GROUP = "docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html"
_BLOCK = _EC2 + "capacity-blocks-monitor.html"
_PREEMPTED = "docs.cloud.google.com/compute/docs/instances/spot"
_GPU_HOST = "docs.cloud.google.com/compute/docs/gpus/gpu-host-maintenance"
_LIVE = "docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice"
_A3 = "docs.cloud.google.com/ai-hypercomputer/docs/manage/host-events"
_AZURE = "learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"
_SLURM = "slurm.schedmd.com/sbatch.html#OPT_signal"
_OURS = "docs/job-dir.md"

# Where a stop comes before a planned event, it comes 2 min before: time for a long step, a save and its upload.
# fmt: off
POLICIES = tuple(Policy(*row) for row in (
    # cloud, kind, action, word, lead, near, stop, margin, source, acknowledged, vanishes, returns
    ("aws", "spot-terminate", "stop", "preempt", 120, None, None, 10, _SPOT),
    ("aws", "spot-stop", "stop", "preempt", 120, None, None, 10, _SPOT),
    # Begins at once: half a minute is what may be left, or what follows when the machine wakes.
    ("aws", "spot-hibernate", "stop", "preempt", 30, None, None, 5, _SPOT),
    # An elevated risk: without a time, and it may come to nothing.
    ("aws", "rebalance-recommendation", "save", "preempt", 3600, None, None, 0, _REBALANCE),
    ("aws", "instance-stop", "save", "terminate", 900, 900, 120, 10, _EVENTS),
    ("aws", "instance-retirement", "save", "terminate", 900, 900, 120, 10, _EVENTS),
    ("aws", "instance-reboot", "save", "reboot", 900, 900, 120, 10, _EVENTS),
    ("aws", "system-reboot", "save", "reboot", 900, 900, 120, 10, _EVENTS),
    # Network or power may fail for a moment.
    ("aws", "system-maintenance", "save", "maintenance", 900, 900, None, 0, _EVENTS),
    # As long as the group's lifecycle hook lasts; without a hook the machine shuts down at once.
    ("aws", "lifecycle-terminated", "stop", "terminate", 60, None, None, 10, _GROUP),
    ("aws", "lifecycle-warmed", "stop", "terminate", 60, None, None, 10, _GROUP),
    # AWS warns 10 min before it begins to terminate, which is 30 min before the end that was paid for.
    ("aws", "capacity-block-end", "save", "terminate", 600, 600, 120, 10, _BLOCK),
    ("gcp", "preempted", "stop", "preempt", 30, None, None, 5, _PREEMPTED),
    ("gcp", "terminate-on-host-maintenance", "save", "maintenance", 3600, None, 120, 10, _GPU_HOST),
    ("gcp", "terminate-on-host-maintenance-without-gpu", "stop", "maintenance", 60, None, None, 5, _LIVE),
    # As these two, of a machine that Compute Engine starts again afterwards (scheduling.automaticRestart).
    ("gcp", "terminate-on-host-maintenance-then-restart", "save", "maintenance", 3600, None, 120, 10, _GPU_HOST,
        False, False, True),
    ("gcp", "terminate-on-host-maintenance-without-gpu-then-restart", "stop", "maintenance", 60, None, None, 5, _LIVE,
        False, False, True),
    ("gcp", "migrate-on-host-maintenance", "ignore", "freeze", 60, None, None, 0, _LIVE),
    # Announced up to 90 days ahead.
    ("gcp", "upcoming-maintenance", "save", "maintenance", 3600, 3600, 120, 10, _A3),
    # A window is hours long: who comes back to the same machine trains on in it until its turn comes.
    ("gcp", "upcoming-maintenance-then-restart", "save", "maintenance", 3600, 3600, None, 0, _A3),
    # `maintenance-event` says when this machine's turn comes.
    ("gcp", "maintenance-window-open", "save", "maintenance", 3600, None, None, 0, _A3),
    ("azure", "freeze", "ignore", "freeze", 900, None, None, 0, _AZURE),
    # The same machine goes on, with its disk; after a redeployment on another host. See ends_at_once().
    ("azure", "reboot", "save", "reboot", 900, 900, 120, 10, _AZURE, True, False, True),
    ("azure", "redeploy", "save", "reboot", 600, 900, 120, 10, _AZURE, True, False, True),
    ("azure", "preempt", "stop", "preempt", 30, None, None, 5, _AZURE, True),
    ("azure", "terminate", "save", "terminate", 300, 900, 120, 10, _AZURE, True),
    # systemd, Kubernetes, Slurm's KillWait and the clouds' shutdown give 30 s between the signal and the end.
    ("signal", "sigterm", "stop", "terminate", 30, None, None, 5, "systemd, Kubernetes, Slurm"),
    ("signal", "sigusr1", "stop", "terminate", 60, None, None, 5, _SLURM),
    # notice.json: what `cloudgpu preempt` writes.
    ("simulated", "preempt", "stop", "preempt", 30, None, None, 0, _OURS, False, True),
    ("simulated", "terminate", "stop", "terminate", 30, None, None, 0, _OURS, False, True),
    ("simulated", "reboot", "stop", "reboot", 30, None, None, 0, _OURS, False, True),
    ("simulated", "maintenance", "save", "maintenance", 30, None, 10, 0, _OURS, False, True),
    ("simulated", "freeze", "ignore", "freeze", 30, None, None, 0, _OURS),
))
# fmt: on

_TABLE = {(policy.cloud, policy.kind): policy for policy in POLICIES}


def policy_of(cloud: str, kind: str) -> Policy:
    """The row. Upon a kind that this version does not know, the program saves and trains on."""
    return _TABLE.get((cloud, kind)) or Policy(cloud, kind, "save", "maintenance", 900, 900, None, 0, "unknown")
