"""Machines of a store's jobs that no running attempt needs: tests assert that there are none."""

from __future__ import annotations

from cloudgpu.control.store import states
from cloudgpu.control.store.store import open_store
from cloudgpu.control.submit.submission import owner_name
from cloudgpu.provisioners import get_provisioner, is_set_up, launchable
from cloudgpu.provisioners.base import Allocation, Owner


def orphans() -> list[Allocation]:
    """Return machines tagged by cloudgpu whose job or attempt has ended or is unknown. Raises ProvisionError."""
    found = [
        allocation
        for target in sorted(launchable())
        if is_set_up(target)
        for allocation in get_provisioner(target).find(Owner(owner_name()))
    ]
    # The store is read after the machines, so that it knows the machines launched during the search.
    return [allocation for allocation in found if _is_orphan(allocation)]


def _is_orphan(allocation: Allocation) -> bool:
    attempts = {attempt.number: attempt for attempt in open_store().attempts(allocation.job_id)}
    attempt = attempts.get(allocation.attempt)
    return attempt is None or attempt.state in states.ATTEMPT_END or attempt.token != allocation.token
