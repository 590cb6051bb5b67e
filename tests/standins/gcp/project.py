"""The one project of the stand-in: what its services share."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from .tokens import Tokens

PROJECT = "project-of-tests"
NUMBER = "123456789012"


def account(name: str) -> str:
    """The email of a service account of the project."""
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


SUBMITTER = account("submitter")
"""Who tests submit as: machines' calls are known by another account."""
LOOKER = account("looker")
"""Who looks for what is left."""
MACHINE = account("cloudgpu-machine")
"""The service account that machines have by default."""


class Project:
    """Of all services of one stand-in. `boot`: machines and containers really run."""

    id = PROJECT
    number = NUMBER

    def __init__(self, *, boot: bool) -> None:
        self.boot = boot
        self.url = ""
        """Of the stand-in; set before anything is served."""
        self.app: Any = None
        """The WSGI application of all APIs, for services that are reached in other ways, too."""
        self.tokens = Tokens()
        self.over = threading.Event()
        """The stand-in ends."""
        self._folder = tempfile.TemporaryDirectory(prefix="cloudgpu-gcp-")
        self.accounts: set[str] = {SUBMITTER, LOOKER, MACHINE}
        """Service accounts that there are."""

    @property
    def folder(self) -> Path:
        """For disks and the like: it is deleted at the end."""
        return Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()
