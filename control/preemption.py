"""Notices of preemption, as a cloud would give them, for the nodes of a running attempt."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..protocol.attempt_signal import send_signal
from ..protocol.jobdir import JobDir, JobDirError, Notice, node_key
from .errors import NotRunningError
from .reconcile.node_replacement import every_node

if TYPE_CHECKING:
    from .store.model import Attempt


def give_notice(job_dir: JobDir, attempt: Attempt, after_s: float, node: str | None) -> list[str]:
    """Write a notice of preemption in `after_s` seconds for all nodes that run, or for one; return their names.

    Raises NotRunningError, JobDirError.
    """
    machines = {} if attempt.allocation is None else attempt.allocation.machines
    chosen = _choose([request.node for request in every_node(attempt) if request.node in machines], node)
    nodes = [name for name in chosen if not job_dir.exists(node_key(attempt.number, name, "result.json"))]
    if not nodes:
        raise NotRunningError(f"{', '.join(chosen)} of {attempt.job_id} ended already")
    notice = Notice("preempt", time.time() + after_s, "cloudgpu preempt", after_s).to_bytes()
    for name in nodes:
        # No-op if the node already has a notice.
        job_dir.create(node_key(attempt.number, name, "notice.json"), notice)
    with suppress(JobDirError):  # without a signal, nodes see the notice within a minute
        send_signal(job_dir, attempt.number)
    return nodes


def _choose(nodes: list[str], wanted: str | None) -> list[str]:
    """Return all nodes, or the named node; the name may omit the incarnation."""
    chosen = [name for name in nodes if wanted in (None, name, name.rpartition(".")[0])]
    if not chosen:
        raise NotRunningError(f"there is no node {wanted!r}; there are: {', '.join(nodes)}")
    return chosen
