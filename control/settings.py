"""Whether the supervisor that runs has the settings of this shell.

Project, account and credentials of a cloud come from the environment of whoever calls it, and that is the supervisor:
one that was started with others would launch there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from . import paths
from .errors import SubmitError
from .presence import is_running

_ENDS_S = 12.0
"""So long a supervisor that is told to stop takes at most: daemon.CLOSE_S, and something."""
_POLL_S = 0.05
_GOOGLE = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST")
_NAMES = {
    "aws": ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"),
    "gcp": _GOOGLE,
    "vertex": _GOOGLE,
    "azure": ("AZURE_SUBSCRIPTION_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CONFIG_DIR"),
}
"""What decides whose machines are launched. Keys and tokens are not among them: they are renewed."""
_BEGINNINGS = {
    "aws": ("CLOUDGPU_AWS_",),
    "gcp": ("CLOUDGPU_GCP_",),
    "vertex": ("CLOUDGPU_GCP_", "CLOUDGPU_VERTEX_"),
    "azure": ("CLOUDGPU_AZURE_",),
}


def settle(clouds: Collection[str], *, busy: bool) -> bool:
    """See to it that jobs for these clouds are launched with the settings of this process.

    A supervisor with others, that a command has started and that has nothing to do (not `busy`), is ended, and True
    returned: another is to be started. Raises SubmitError if it must stay, and this shell sets what it has not. Where
    its environment cannot be read, nothing is known, and nothing done.
    """
    pid = _supervisor()
    if pid is None or (theirs := _environment(pid)) is None:
        return False
    unlike = differing(clouds, os.environ, theirs)
    if unlike and not busy and _was_started_by_a_command(pid):
        _end(pid)
        return True
    if told := [name for name in unlike if os.environ.get(name)]:
        raise SubmitError(
            f"a supervisor runs (process {pid}) with other settings than this shell, and would launch with its own: "
            f"{', '.join(told)}; wait until its jobs have ended, or set CLOUDGPU_HOME to another folder"
        )
    return False


def differing(clouds: Collection[str], ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names of the variables that say whose machines are launched in these clouds, and do not say the same."""
    exact = {name for cloud in clouds for name in _NAMES.get(cloud, ())}
    begin = tuple({start for cloud in clouds for start in _BEGINNINGS.get(cloud, ())})
    names = {name for name in {*ours, *theirs} if name in exact or name.startswith(begin or ("\0",))}
    return sorted(name for name in names if ours.get(name, "") != theirs.get(name, ""))


def _supervisor() -> int | None:
    if not is_running():
        return None
    with suppress(OSError, ValueError):
        return int(paths.supervisor_lock().read_text(encoding="ascii"))
    return None


def _environment(pid: int) -> dict[str, str] | None:
    """As it was when the process began."""
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's, or no Linux
        return None
    pairs = (os.fsdecode(pair).partition("=") for pair in given.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def _was_started_by_a_command(pid: int) -> bool:
    """As spawn starts it. Somebody's service would only begin anew as it was."""
    try:
        return b"--idle-exit" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _end(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _ENDS_S
    while is_running() and time.monotonic() < until:
        time.sleep(_POLL_S)
