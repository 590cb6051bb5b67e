"""Hint in a job's reason which login to renew while its cloud refuses the credentials.

The hint is a separate line after the job's other reason, and is removed once a step succeeds.
"""

from __future__ import annotations

import os

from ...protocol.jobdir import JobDirError, is_login
from ...provisioners.base import ProvisionError
from ..supervisor_environment import credentials_among

_MARK = "waiting for credentials: "


def login_message(error: Exception) -> str:
    """Return the message for the user if missing or expired credentials caused the error, else ""."""
    if isinstance(error, ProvisionError) and error.error_class in ("auth", "expired"):
        return advice_text(error)
    return str(error) if isinstance(error, JobDirError) and is_login(error) else ""


def advice_text(error: ProvisionError) -> str:
    """Return the advice followed by the provider's message."""
    if not error.advice:
        return str(error)
    return f"{error.advice} ({str(error).removesuffix(f'; {error.advice}')})"


def consequence(target: str, *, has_machines: bool) -> str:
    """Return sentences for the user: what is suspended until the login is renewed, and how the supervisor gets it."""
    given = credentials_among(target, os.environ)
    if given:
        mending = (
            f"The supervisor (process {os.getpid()}) has {', '.join(given)} of the shell that started it: run any "
            "command, e.g. `cloudgpu status`, in a shell with new ones; it is then replaced"
        )
    else:
        mending = "New credentials are used within 30 s"
    return f"Until then {suspended_actions(has_machines=has_machines)}. {mending}"


def suspended_actions(*, has_machines: bool) -> str:
    """Return the clause that names what a supervisor without credentials does not do for the job."""
    return "cancel and limits do not act on its machines" if has_machines else "nothing is launched for it"


def with_hint(reason: str, trouble: str) -> str:
    """Return a job's reason with a line about its credentials."""
    return "\n".join(filter(None, [plain(reason), f"{_MARK}{trouble}"]))


def plain(reason: str) -> str:
    """Return a job's reason without the line about credentials."""
    return "\n".join(line for line in reason.split("\n") if not line.startswith(_MARK))
