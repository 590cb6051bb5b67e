"""Build the boot record of a launch's machines: which agent to run, for which node of which job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...jobspecs.targets import info
from ..base import AgentFile, LaunchRequest, NodeRequest, ProvisionError
from ..boot.record import BootRecord

_T = TypeVar("_T")


def check_agent(request: LaunchRequest, architecture_of: Callable[[NodeRequest], str]) -> None:
    """Raise ProvisionError if the request has no agent file, or a machine has another architecture than the file."""
    agent = agent_of(request)
    for node in request.nodes:
        architecture = architecture_of(node)
        if architecture != agent.architecture:
            message = f"{node.machine_type} is {architecture}, the job's agent file is for {agent.architecture}"
            raise ProvisionError("invalid", message, scope="cloud")


def build_boot_data(
    request: LaunchRequest,
    node: str,
    cloud: str,
    write: Callable[[BootRecord], _T],
    *,
    lifetime_s: int | None,
    endpoint: str | None,
    api_endpoint: str | None = None,
    identity: str | None = None,
    capacity_block_end: float | None = None,
) -> _T:
    """Build a machine's BootRecord and return it serialized by `write`, e.g. as user data. Arguments as in BootRecord.

    Raises ProvisionError if no machine could boot from the record.
    """
    agent = agent_of(request)
    try:
        return write(
            BootRecord(
                job_dir=request.job_dir,
                job_id=request.job_id,
                attempt=request.attempt,
                node=node,
                job_sha256=request.job_sha256,
                agent_key=agent.key,
                agent_sha256=agent.sha256,
                region=request.region,
                lifetime_s=lifetime_s,
                notices=info(cloud).host or cloud,
                capacity_block_end=capacity_block_end,
                secrets_pass=request.secrets_pass,
                endpoint=endpoint,
                cloud=cloud,
                api_endpoint=api_endpoint,
                identity=identity,
            )
        )
    except ValueError as error:
        raise ProvisionError("invalid", f"{node or 'the job'} cannot be started: {error}", scope="cloud") from error


def agent_of(request: LaunchRequest) -> AgentFile:
    """Return the request's agent file. Raises ProvisionError if it has none."""
    if request.agent is None:
        raise ProvisionError("invalid", "there is no agent file for the machines in the job dir", scope="cloud")
    return request.agent
