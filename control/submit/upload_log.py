"""Remember what this computer has uploaded to folders that others may write, to notice what they replaced."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ...protocol.jobdir import Entry
from ...storage import durable

_KEPT = 1_000
"""Uploads that are remembered, the newest; of a forgotten one the content is sent once more."""
_MOST_BYTES = 1 << 20


class Uploads:
    """A file of URL -> ETag. It is a cache: without it, or with a damaged one, everything is sent again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, url: str, found: Entry | None) -> bool:
        """Return whether the object that is at the URL is the one that this computer has uploaded."""
        return found is not None and bool(found.etag) and self._read().get(url) == found.etag

    def note(self, url: str, uploaded: Entry | None) -> None:
        """Remember an upload. Failing to is no error."""
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
