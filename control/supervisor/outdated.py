"""Detection and replacement of an outdated supervisor, by its version, settings and credentials.

By design a supervisor may be killed at any moment, so a command may replace one that a command has started.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Mapping

from ... import __version__
from ..errors import SubmitError
from ..paths import DATABASE_VARIABLE
from ..secrets.channel import carry
from ..supervisor_environment import credentials_of, differing, has_new_password, settings_of
from . import supervisor_lock
from .supervisor_lock import Running

_ENDS_S = 12.0
"""Seconds to wait for a supervisor to end after a signal: daemon.CLOSE_S plus a margin."""
_POLL_S = 0.05

_judged: set[tuple[int | None, frozenset[tuple[str, str]]]] = set()
"""(supervisor's process id, environment) pairs that this process has compared. Each pair is compared once, so that two
running commands with different credentials do not replace each other's supervisor again and again."""


def is_outdated(there: Running) -> bool:
    """Return whether a command should replace the supervisor.

    True if its version is older, or if its credentials differ and this process has credentials for all accounts that
    active jobs need. False for a newer supervisor, and for one that runs as a service or in a terminal.
    """
    if not there.is_replaceable:
        return False
    if _version(there.version) != _version(__version__):
        return _version(there.version) < _version(__version__)
    environment = frozenset((name, os.environ[name]) for name in _all_names(there) if name in os.environ)
    if (there.pid, environment) in _judged:
        return False
    _judged.add((there.pid, environment))
    needed = _needed_accounts()
    unlike = [cloud for cloud in needed if _unlike([cloud], there)]
    rotated = has_new_password(there.settings, there.salt)
    return bool(needed and (unlike or rotated)) and has_needed_credentials(needed, unlike)


def replace_if_different(clouds: Collection[str]) -> bool:
    """End the running supervisor if its settings or credentials of these clouds differ from this process's and it may
    be replaced. Return whether it was ended, so that the caller must start another.

    Raises SubmitError if it must be kept although its settings or the account of its credentials differ.
    """
    there = supervisor_lock.running()
    if there is None or not (unlike := _unlike(clouds, there)):
        return False
    needed = _needed_accounts()
    mine = has_needed_credentials(needed, [cloud for cloud in needed if _unlike([cloud], there)])
    if there.is_replaceable and mine and end(there):
        return True
    settings = settings_of(clouds, os.environ)
    conflicting = [name for name in unlike if os.environ.get(name) and (name in settings or there.is_replaceable)]
    if conflicting:
        raise SubmitError(
            f"a supervisor runs (process {there.pid}) with other settings than this shell, and would launch with its "
            f"own: {', '.join(conflicting)}; it cannot be replaced while it has jobs of another account, or is a "
            "service: wait until its jobs have ended, or set CLOUDGPU_HOME to another folder"
        )
    return False


def end(there: Running) -> bool:
    """End a supervisor and wait until it has released its lock; return whether it has. Its secrets are kept for the
    next one."""
    carry()
    is_sent = supervisor_lock.send_signal(there, signal.SIGTERM)
    until = time.monotonic() + _ENDS_S
    while (now := supervisor_lock.running()) is not None and now.pid == there.pid:
        if not is_sent or time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _needed_accounts() -> dict[str, set[str | None]]:
    """Return cloud -> accounts in which active jobs have or will have machines; None: unknown."""
    from ..store.store import open_store

    store = open_store()
    jobs = store.list_jobs(active_only=True)
    attempts = store.current_attempts(jobs)
    needed: dict[str, set[str | None]] = {}
    for job in jobs:
        for cloud, account in job.policy.accounts.items():
            needed.setdefault(cloud, set()).add(account)
        attempt = attempts.get(job.id)
        if attempt is not None and attempt.ended is None and attempt.account != "":
            needed.setdefault(attempt.offer.cloud, set()).add(attempt.account)
    return needed


def has_needed_credentials(needed: Mapping[str, set[str | None]], clouds: Collection[str]) -> bool:
    """Return whether this process has credentials of all accounts that are needed in these clouds."""
    from ...provisioners import get_provisioner
    from ...provisioners.base import ProvisionError

    try:
        return all(needed[cloud] == {get_provisioner(cloud).account()} for cloud in clouds)
    except ProvisionError:  # the credentials here are missing or refused
        return False


def _unlike(clouds: Collection[str], there: Running) -> list[str]:
    names = settings_of(clouds, os.environ) | credentials_of(clouds, os.environ)
    names |= settings_of(clouds, there.settings) | credentials_of(clouds, there.settings)
    return differing(names, there.settings, there.salt)


def _all_names(there: Running) -> set[str]:
    from ...provisioners import launchable

    clouds = launchable()
    return {*settings_of(clouds, os.environ), *credentials_of(clouds, os.environ), *there.settings, DATABASE_VARIABLE}


def _version(text: str) -> tuple[int, ...]:
    """Parse a version for comparison. A lock file of an older cloudgpu has none, which sorts first."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))
