"""Reason of a job whose machines are in another account than the supervisor's credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..reconcile.login_hints import suspended_actions

if TYPE_CHECKING:
    from ...provisioners.base import ProvisionError
    from ..store.model import JobRow

_BEGINS = "not supervised: "


def is_unsupervised(job: JobRow) -> bool:
    """Return whether the job's reason is one of unsupervised_reason()."""
    return job.reason.startswith(_BEGINS)


def unsupervised_reason(error: ProvisionError, *, has_machines: bool) -> str:
    """Return what is wrong, what is suspended meanwhile, and the remedy."""
    mending = "Run any command, e.g. `cloudgpu status`, with credentials of that account"
    return f"{_BEGINS}{error}. Until then {suspended_actions(has_machines=has_machines)}. {mending}"
