"""Search for a secret value wherever it could have been left: files, objects, databases, calls, command lines."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

VALUE = "canary/7f3a+Q9w=s3cr3t-of-tests"
"""Value without a hash in it, so that it is found in any of its encodings."""


def forms(value: str = VALUE) -> frozenset[bytes]:
    """Return a value as it is and as programs encode it: URL, hexadecimal, base64 at each of its three offsets."""
    data = value.encode()
    found = {data, quote(value, safe="").encode(), data.hex().encode(), data.hex().upper().encode()}
    for before in range(3):
        # Without the characters at both ends that depend on the neighbours.
        encoded = base64.b64encode(b"\0" * before + data)
        whole = encoded[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        found |= {whole, whole.replace(b"+", b"-").replace(b"/", b"_")}
    return frozenset(found)


def is_in(data: bytes, value: str = VALUE) -> bool:
    return any(form in data for form in forms(value))


def files_with(folders: Iterable[Path], value: str = VALUE) -> Iterator[Path]:
    """Yield the files below the folders that contain the value, without following links."""
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # a file that was removed meanwhile, or a socket
                if path.is_file() and not path.is_symlink() and is_in(path.read_bytes(), value):
                    yield path


def command_lines_with(value: str = VALUE) -> list[str]:
    """Return the command lines of all processes of this computer that contain the value."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if is_in(line.encode(errors="surrogateescape"), value)]


def calls_with(calls: Iterable[Any], value: str = VALUE) -> list[str]:
    """Return the actions of recorded calls of a stand-in whose parameters contain the value."""
    return [call.action for call in calls if is_in(repr(call.params).encode(), value)]
