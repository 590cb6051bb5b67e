"""The stand-in's only project: state that its services share."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from .tokens import Tokens

PROJECT = "project-of-tests"
NUMBER = "123456789012"


def account(name: str) -> str:
    """Return the email of a service account of the project."""
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


SUBMITTER = account("submitter")
"""Account of the submitter in tests; machines use a different one."""
LOOKER = account("looker")
"""Account of Leftovers."""
MACHINE = account("cloudgpu-machine")
"""Default service account of machines."""


class Project:
    """Project of all services of a stand-in. `boot`: machines and containers really run."""

    id = PROJECT
    number = NUMBER

    def __init__(self, *, boot: bool) -> None:
        self.boot = boot
        self.url = ""
        """URL of the stand-in; set before requests are served."""
        self.app: Any = None
        """WSGI application of all APIs, for services with other endpoints."""
        self.tokens = Tokens()
        self.over = threading.Event()
        """Set when the stand-in ends."""
        self._folder = tempfile.TemporaryDirectory(prefix="cloudgpu-gcp-")
        self.accounts: set[str] = {SUBMITTER, LOOKER, MACHINE}
        """Existing service accounts."""

    @property
    def folder(self) -> Path:
        """Folder for disks and similar data; it is deleted at the end."""
        return Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()
