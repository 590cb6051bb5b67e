"""Values of secrets in the supervisor's memory: nowhere else does this computer keep them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import SourceError


def this_computer() -> str:
    """Return the host and user whose files a job's sources name, as kept with the job."""
    return f"{socket.gethostname()}/{os.getuid()}"


@dataclass(slots=True)
class Vault:
    """The secrets of active jobs, as commands gave them. A new supervisor has none. Thread-safe."""

    _values: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)
    """Job id -> name -> value."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def give(self, job_id: str, values: Mapping[str, str]) -> None:
        """Keep values of a job, and those it has under other names."""
        with self._lock:
            self._values[job_id] = {**self._values.get(job_id, {}), **values}

    def take(self, job_id: str, sources: Mapping[str, str], computer: str) -> dict[str, str]:
        """Return the value of each source of a job. Raises SourceError if a value must be given again.

        Values from files are read anew, so that they survive a restart of the supervisor, unless the job was submitted
        on another `computer` (this_computer()): a path names another file here, and must not choose one of this user's.
        Variables of this process's own environment are never used: they are those of an arbitrary shell.
        """
        from ...jobspecs.secrets import ENV  # slow to import, and most processes that import this module need none
        from .sources import read_values

        with self._lock:
            held = dict(self._values.get(job_id, {}))
        missing = {name: source for name, source in sources.items() if name not in held}
        if lost := [name for name, source in missing.items() if source.startswith(f"{ENV}:")]:
            raise SourceError(f"the supervisor does not know {', '.join(lost)}, as it was started after `submit`")
        if missing and computer != this_computer():
            raise SourceError(f"{', '.join(missing)} must be read on the computer that submitted the job, {computer}")
        return {name: held[name] for name in sources if name in held} | read_values(missing, {})

    def missing(self, job_id: str, sources: Mapping[str, str], computer: str) -> str:
        """Return why the job's values cannot be taken; "": they can."""
        try:
            self.take(job_id, sources, computer)
        except SourceError as error:
            return str(error)
        return ""

    def forget(self, job_id: str) -> None:
        """Drop the values of a job that has ended."""
        with self._lock:
            self._values.pop(job_id, None)

    def all_values(self) -> dict[str, dict[str, str]]:
        """Return everything, for the supervisor that replaces this one."""
        with self._lock:
            return {job_id: dict(values) for job_id, values in self._values.items()}
