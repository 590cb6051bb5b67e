"""Lookup of a region's infra stack (`cloudgpu infra up`) for launches."""

from __future__ import annotations

from ...base import LaunchRequest, ProvisionError
from ...shared.infra_outputs import Infrastructure, load
from ..clients import Clients


def known_stack(clients: Clients, region: str) -> Infrastructure | None:
    """Return the outputs of a region's infra stack; None: this project has none. Raises ProvisionError if its file is
    damaged."""
    try:
        found = load("gcp", region)
    except ValueError as error:
        raise ProvisionError("invalid", str(error), scope="region") from error
    in_project = found is not None and f"projects/{clients.project}/" in found.subnets.get("", "")
    return found if in_project else None


def machine_account(clients: Clients, stack: Infrastructure | None, request: LaunchRequest) -> str:
    """Return the e-mail address of the machines' service account.

    It is the configured one, otherwise the stack's if it has all the access that the machines need, otherwise the
    default one, which users create by hand. Whether it may read the job's secrets is a matter of each secret's policy.
    """
    if clients.named_account or stack is None:
        return clients.service_account
    return stack.role_for((request.job_dir, *request.reads, *request.writes)) or clients.service_account
