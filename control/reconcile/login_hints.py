"""Add to a job's reason which login to renew while its cloud refuses the credentials.

It is a line of its own, after the reason that the job has otherwise, and goes as soon as a step succeeds.
"""

from __future__ import annotations

import os

from ...protocol.jobdir import JobDirError, is_login
from ...provisioners.base import ProvisionError
from ..supervisor_environment import credentials_among

_MARK = "waiting for credentials: "


def trouble(error: Exception) -> str:
    """Return what to say of an error that credentials have caused; "": they have not."""
    if isinstance(error, ProvisionError) and error.error_class in ("auth", "expired"):
        return words(error)
    return str(error) if isinstance(error, JobDirError) and is_login(error) else ""


def words(error: ProvisionError) -> str:
    """Return what to do, then what the provider said."""
    if not error.advice:
        return str(error)
    return f"{error.advice} ({str(error).removesuffix(f'; {error.advice}')})"


def consequence(target: str, *, has_machines: bool) -> str:
    """Return what is not being done meanwhile, and how new credentials reach this process, a supervisor."""
    given = credentials_among(target, os.environ)
    if given:
        mending = (
            f"The supervisor (process {os.getpid()}) has {', '.join(given)} of the shell that started it: run any "
            "command, e.g. `cloudgpu status`, in a shell with new ones; it is then replaced"
        )
    else:
        mending = "New credentials are used within 30 s"
    return f"Until then {undone(has_machines=has_machines)}. {mending}"


def undone(*, has_machines: bool) -> str:
    """Return what a supervisor without credentials cannot do."""
    return "cancel and limits do not act on its machines" if has_machines else "nothing is launched for it"


def noted(reason: str, trouble: str) -> str:
    """Return a job's reason with a line about its credentials."""
    return "\n".join(filter(None, [plain(reason), f"{_MARK}{trouble}"]))


def plain(reason: str) -> str:
    """Return a job's reason without that line."""
    return "\n".join(line for line in reason.split("\n") if not line.startswith(_MARK))
