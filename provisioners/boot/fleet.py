"""Boot data of a fleet's machines, identical for all of them because they are created from one template.

Such a machine polls its fleet's folder for orders (runtime/fleet/member.py) and runs one job after the other.
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
    """Return user data for the fleet's template: `#cloud-config`, or on gcp the metadata value `startup-script`.

    `fleet_dir`: URL of the fleet's folder, which contains `agent`; provisioners/cluster/files.py or job_groups.py write
    it. `identity`: azure's client id, Infrastructure.machine_role_id. The endpoints are for tests. `one_job`: as in
    BootRecord.

    Deterministic: the text contains no settings that may change without a new template. Raises ValueError if no machine
    could boot from it.
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
