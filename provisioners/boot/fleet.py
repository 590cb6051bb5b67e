"""What the machines of a fleet boot with: all of them the same, for they are made from one template.

Such a machine asks its fleet's folder for what to do (runtime/fleet/member.py), one job after the other.
"""

from __future__ import annotations

from ...jobspecs.fleets import FleetSpec
from ..base import AgentFile
from .record import BootRecord, boot_of
from .startup_script import startup_script
from .user_data import user_data


def fleet_boot(
    fleet: FleetSpec,
    fleet_dir: str,
    agent: AgentFile,
    *,
    identity: str | None = None,
    endpoint: str | None = None,
    api_endpoint: str | None = None,
    one_job: bool = False,
) -> str:
    """User data for the fleet's template: `#cloud-config`, or on gcp the metadata value `startup-script`.

    `fleet_dir`: URL of the folder where its machines look for what to do, with `agent` in it: both are put there by
    provisioners/cluster/files.py or job_groups.py. `identity`: azure's client id, Infrastructure.machine_role_id. The
    endpoints are for tests. `one_job`: as in BootRecord.
    The same text for the same arguments: nothing that may change without another template is of it. Raises ValueError
    for what no machine could start from.
    """
    record = BootRecord(
        job_dir=fleet_dir.rstrip("/"),
        job_id="",
        attempt=0,
        node="",
        job_sha256="",
        agent_key=agent.key,
        agent_sha256=agent.sha256,
        region=fleet.region,
        lifetime_s=fleet.lifetime_s,
        notices=fleet.cloud,
        endpoint=endpoint,
        cloud=fleet.cloud,
        api_endpoint=api_endpoint,
        identity=identity,
        fleet=fleet.name,
        one_job=one_job,
    )
    return startup_script(record) if boot_of(fleet.cloud).sent_as == "startup script" else user_data(record).decode()
