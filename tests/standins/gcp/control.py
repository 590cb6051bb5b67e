"""Test client of the stand-in for Google Cloud: the common control verbs and Google's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..faults import Control
from .project import PROJECT, SUBMITTER


class GcpControl(Control):
    """Control of the whole stand-in. Verbs of a single service are in that service's control, created with the same
    URL."""

    def key_file(self, email: str, path: Path) -> Path:
        """Write a service account's key file."""
        path.write_text(json.dumps(self.do("key", email=email)))
        return path

    def enforce(self, bindings: Mapping[str, Sequence[Mapping[str, Any]]] | None) -> None:
        """Enforce permissions (permissions.csv): account -> [{"permissions": […], "where": glob}], where `where`
        matches resource names, default all. None: allow everything again."""
        self.do("enforce", bindings=bindings)

    def used(self) -> set[tuple[str, str]]:
        """Return the (account, permission) pairs that calls have used since enforce()."""
        return {(email, permission) for email, permission in self.do("used")}

    def revoke(self, email: str) -> None:
        """Invalidate the account's tokens."""
        self.do("revoke", email=email)


def environ(url: str, folder: Path, email: str = SUBMITTER) -> dict[str, str]:
    """Return the environment that points Google's clients to the stand-in at this URL, as this account. Its key is kept
    in `folder`."""
    control = GcpControl(url)
    folder.mkdir(parents=True, exist_ok=True)
    own: dict[str, str] = control.do("environ")
    return {
        "CLOUDGPU_GCP_ENDPOINT": url,
        "STORAGE_EMULATOR_HOST": url,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GOOGLE_APPLICATION_CREDENTIALS": str(control.key_file(email, folder / f"{email.partition('@')[0]}.json")),
        # Keeps the tester's own settings away from the stand-in.
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "NO_GCE_CHECK": "true",
        # Blocks google-auth's own calls to iamcredentials.googleapis.com, which ask where an account's requests may go.
        "https_proxy": "http://127.0.0.1:9",
        **own,
    }
