"""A test's hold on the stand-in for Google Cloud, wherever it runs: the verbs of every stand-in, and Google's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..faults import Control
from .project import PROJECT, SUBMITTER


class GcpControl(Control):
    """Verbs of one service only are in that service's own control, made of this one's URL."""

    def key_file(self, email: str, path: Path) -> Path:
        """Write a key of a service account."""
        path.write_text(json.dumps(self.do("key", email=email)))
        return path

    def enforce(self, bindings: Mapping[str, Sequence[Mapping[str, Any]]] | None) -> None:
        """From now on a call needs its permissions (permissions.csv): account -> [{"permissions": […], "where": glob}],
        where `where` is of names of resources, and omitted for all. None: everybody may do everything again."""
        self.do("enforce", bindings=bindings)

    def used(self) -> set[tuple[str, str]]:
        """(account, permission) that calls have needed since enforce()."""
        return {(email, permission) for email, permission in self.do("used")}

    def revoke(self, email: str) -> None:
        """Tokens that this account holds are not valid any more."""
        self.do("revoke", email=email)


def environ(url: str, folder: Path, email: str = SUBMITTER) -> dict[str, str]:
    """What points any client of Google's to the stand-in at this URL, as this account. Its key is kept in `folder`."""
    control = GcpControl(url)
    folder.mkdir(parents=True, exist_ok=True)
    own: dict[str, str] = control.do("environ")
    return {
        "CLOUDGPU_GCP_ENDPOINT": url,
        "STORAGE_EMULATOR_HOST": url,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GOOGLE_APPLICATION_CREDENTIALS": str(control.key_file(email, folder / f"{email.partition('@')[0]}.json")),
        # The tester's own settings must not reach the stand-in, nor this get mixed with them.
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "NO_GCE_CHECK": "true",
        # google-auth asks iamcredentials.googleapis.com by itself where an account's requests may go: not from here.
        "https_proxy": "http://127.0.0.1:9",
        **own,
    }
