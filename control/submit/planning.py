"""Planning of a job for today and for this computer."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from ...jobspecs.targets import info

if TYPE_CHECKING:
    from ...jobspecs.models import JobSpec
    from ...jobspecs.plan import Plan


def plan_today(spec: JobSpec) -> Plan:
    """Plan a job with today's date and, if it may run locally, with this machine."""
    from ...jobspecs.planner.planner import plan

    clouds = spec.resources.cloud
    machine = None
    if clouds is None or any(info(cloud).is_here for cloud in clouds):
        from ...provisioners.local.provisioner import inspect_machine

        machine = inspect_machine()
    return plan(spec, machine=machine, today=datetime.datetime.now(datetime.UTC).date())
