"""Write the agent file and the settings of a fleet into its folder, where its machines read them."""

from __future__ import annotations

from ...jobspecs.fleets import FleetSpec
from ...protocol.fleet.records import FLEET_KEY, Settings
from ...protocol.jobdir import JobDir, agent_key
from .. import AgentFile, architecture_of
from ..boot.agent_file import build_agent_file


def put_agent(fleet: FleetSpec, fleet_dir: str) -> AgentFile:
    """Upload the agent file for a fleet's machines, unless it is there, and return it for fleet_boot().

    Raises AgentFileError, JobDirError, OSError.
    """
    built = build_agent_file(architecture_of(fleet.cloud, fleet.machine_type) or "x86_64")
    folder, key = JobDir(fleet_dir), agent_key(built.sha256)
    if folder.size(key) != built.size:
        folder.upload_file(key, built.path, lambda _done, _total: None)
    return AgentFile(key, built.sha256, built.architecture)


def put_settings(fleet: FleetSpec, fleet_dir: str, expires: float | None = None) -> None:
    """Write the fleet's settings, which running machines read too; called whenever the fleet is changed.

    `expires`: see Settings. Raises JobDirError."""
    JobDir(fleet_dir).put(FLEET_KEY, Settings(idle_s=fleet.idle_s, expires=expires).to_bytes())
