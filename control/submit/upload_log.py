"""Log of this computer's uploads to folders that others may write, which detects replaced objects."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ...protocol.jobdir import Entry
from ...storage import durable

_KEPT = 1_000
"""Maximum number of remembered uploads, the newest ones. Forgotten uploads are repeated."""
_MOST_BYTES = 1 << 20


class Uploads:
    """A file of URL -> ETag. It is a cache: if it is missing or damaged, everything is uploaded again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, url: str, found: Entry | None) -> bool:
        """Return whether the object at the URL is the one that this computer uploaded."""
        return found is not None and bool(found.etag) and self._read().get(url) == found.etag

    def note(self, url: str, uploaded: Entry | None) -> None:
        """Remember an upload. Errors are ignored."""
        if uploaded is None or not uploaded.etag:
            return
        known = self._read()
        known.pop(url, None)
        kept = dict([*known.items(), (url, uploaded.etag)][-_KEPT:])
        with contextlib.suppress(OSError):
            durable.write(self._path, json.dumps(kept).encode(), mode=0o600)

    def _read(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                value = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}
