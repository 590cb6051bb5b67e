"""What a job's reason says while its supervisor lacks credentials for its machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..provisioners.accounts import OTHER_ACCOUNT
from .settings import credentials_among

if TYPE_CHECKING:
    from ..provisioners.base import ProvisionError
    from .model import JobRow

_BEGINS = "not supervised: "


def is_unsupervised(job: JobRow) -> bool:
    """Return whether the job's reason is one of unsupervised_reason()."""
    return job.reason.startswith(_BEGINS)


def unsupervised_reason(error: ProvisionError, target: str, *, has_machines: bool) -> str:
    """Return what is wrong, what is not being done meanwhile, and how to mend it. For the supervisor's process."""
    undone = "cancel and limits do not act on its machines" if has_machines else "nothing is launched for it"
    return f"{_BEGINS}{error}. Until then {undone}. {_mending(error, target)}"


def _mending(error: ProvisionError, target: str) -> str:
    if error.code == OTHER_ACCOUNT:
        return "Run any command, e.g. `cloudgpu status`, with credentials of that account"
    given = credentials_among(target, os.environ)
    if not given:
        return "Log in again; new credentials are used within a minute"
    return (
        f"The supervisor (process {os.getpid()}) has {', '.join(given)} of the shell that started it: run any command, "
        "e.g. `cloudgpu status`, in a shell with new ones; it is then replaced"
    )
