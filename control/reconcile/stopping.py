"""Stop an attempt: ask its nodes to save and end, and wait until they have, or until the deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ...protocol.attempt_signal import send_signal
from ...protocol.jobdir import JobDirError, Stop, StopReason, attempt_key
from ...provisioners.base import ProvisionError
from .concluding import conclude, conclude_by_nodes
from .context import AttemptContext
from .decisions import wanted_end
from .launch_request import LATE_S
from .observing import Observer
from .outcomes import Verdict


class Stopper:
    """Takes the step of an attempt that is stopping."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def take(self) -> bool:
        """Write stop.json, also for an attempt without nodes yet: a launch under way elsewhere must find it. Conclude
        the attempt when its nodes have ended. Return whether anything changed."""
        context, observer = self._context, Observer(self._context)
        job, attempt, now = context.job, context.attempt, context.now
        end = wanted_end(job, attempt, now)
        if end is not None and job.state != "stopping":  # its peers were being stopped when the user cancelled
            stopping = replace(job, state="stopping", cause=end.cause, reason=end.reason)
            return context.write("stopping", end.reason, job=stopping)
        deadline = attempt.deadline or 0.0
        try:
            self._write_stop(deadline)
            nodes = observer.members(observer.look())
            if observer.note_begun(nodes) or observer.take_generation(nodes):
                return True
        except (JobDirError, ProvisionError) as error:
            if context.time() < deadline + (LATE_S if isinstance(error, ProvisionError) else 0.0):
                raise
            return conclude(context, Verdict("stopped", _unseen(error), None, None))
        if all(node.end is not None for node in nodes) or now >= deadline + LATE_S:
            return conclude_by_nodes(context, nodes)
        if observer.is_only_queued(nodes):  # no program runs that could save
            return conclude_by_nodes(context, nodes, left="ended while it waited for machines")
        return False

    def _write_stop(self, deadline: float) -> None:
        """Write stop.json once in this process, and have the machines look for it."""
        context, attempt = self._context, self._context.attempt
        if context.memory.told == attempt.number:
            return
        left = max(0.0, deadline - context.now)
        epoch = context.tools.clock.now() + left  # as the machines' clocks, not as this job's time
        stop = Stop(cast("StopReason", attempt.cause), epoch, left)
        context.job_dir.put(attempt_key(attempt.number, "stop.json"), stop.to_bytes())
        send_signal(context.job_dir, attempt.number)
        context.memory.told = attempt.number


def _unseen(error: JobDirError | ProvisionError) -> str:
    """Return why an attempt was terminated without a look at its nodes."""
    if isinstance(error, JobDirError):
        return f"terminated without being told, for the job dir cannot be used: {error}"
    return f"terminated at the deadline; its machines could not be looked at: {error}"
