"""URLs of local folders. Standard library only."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

_SCHEME = "file://"


def local_url(path: Path) -> str:
    """Return the file:// URL of a folder, any character in its name quoted."""
    return _SCHEME + quote(str(path.resolve()))


def local_folder(url: str) -> Path | None:
    """Return the folder of a file:// URL, which is relative where the URL is wrong; None: it is no such URL."""
    if not url.startswith(_SCHEME):
        return None
    # Not by a parser of URLs, which cuts the path at a `#` or `?` that was left unquoted.
    return Path(unquote(url.removeprefix(_SCHEME).removeprefix("localhost")))
