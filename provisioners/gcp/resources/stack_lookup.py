"""What an infra stack has made in a region (`cloudgpu infra up`), as launches use it."""

from __future__ import annotations

from ...base import LaunchRequest, ProvisionError
from ...shared.infra_outputs import Infrastructure, load
from ..clients import Clients


def known_stack(clients: Clients, region: str) -> Infrastructure | None:
    """Outputs of the infra stack of a region; None: there is none in this project. Raises ProvisionError if its file is
    damaged."""
    try:
        found = load("gcp", region)
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="region") from error
    in_project = found is not None and f"projects/{clients.project}/" in found.subnets.get("", "")
    return found if in_project else None


def machine_account(clients: Clients, stack: Infrastructure | None, request: LaunchRequest) -> str:
    """E-mail address of who the machines are: whoever a setting names, else the stack's if it reaches all that they
    need, else the one that was made by hand."""
    if clients.named_account or stack is None:
        return clients.service_account
    return stack.role_for((request.job_dir, *request.reads, *request.writes)) or clients.service_account
