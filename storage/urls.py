"""URLs of local folders. Standard library only."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

_SCHEME = "file://"


def local_url(path: Path) -> str:
    """Return the file:// URL of a folder, with special characters quoted."""
    return _SCHEME + quote(str(path.resolve()))


def local_folder(url: str) -> Path | None:
    """Return the folder of a file:// URL, relative if the URL is invalid; None: another kind of URL."""
    if not url.startswith(_SCHEME):
        return None
    # A URL parser would cut the path at an unquoted `#` or `?`.
    return Path(unquote(url.removeprefix(_SCHEME).removeprefix("localhost")))
