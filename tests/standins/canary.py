"""Search for a canary: a value that must lie in clear in no file, object, command line, log or database.

A canary is looked for as it is and as usual encodings make it, in files and objects, also packed and nested ones.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import tarfile
import threading
import urllib.parse
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST_DEPTH = 4


def new_canary() -> str:
    """Return a value that occurs nowhere by chance, and is changed by the usual encodings."""
    return f"canary/{secrets.token_hex(12)}+é="


def forms(canary: str) -> list[bytes]:
    """Return the encodings of a canary that count as in clear."""
    data = canary.encode()
    whole = data[: len(data) // 3 * 3]
    texts = {
        canary,
        ascii(canary)[1:-1],
        json.dumps(canary)[1:-1],
        urllib.parse.quote(canary),
        urllib.parse.quote(canary, safe=""),
        base64.b64encode(whole).decode(),
        base64.urlsafe_b64encode(whole).decode(),
        data.hex(),
    }
    return [data, canary.encode("utf-16-le"), data[::-1], *(text.encode() for text in texts)]


def places(canary: str, objects: Mapping[str, bytes]) -> list[str]:
    """Return the names of the objects that have a canary, whatever they are packed in."""
    wanted = forms(canary)
    return sorted({name for name, data in objects.items() if _has(data, wanted, 0)})


def places_in_folder(canary: str, *folders: Path, but: Collection[Path] = ()) -> list[str]:
    """Return the files below folders that have a canary in their content, their name or their link's target."""
    found, wanted, spared = [], forms(canary), {path.resolve() for path in but}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.resolve() in spared:
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                link = str(path.readlink()).encode() if path.is_symlink() else b""
                data = path.read_bytes() if path.is_file() else b""
                if _has(path.name.encode("utf-8", "surrogateescape") + b"\0" + link, wanted, 0) or _has(
                    data, wanted, 0
                ):
                    found.append(str(path))
    return sorted(found)


@contextmanager
def watched_command_lines(canary: str, pause_s: float = 0.005) -> Iterator[list[str]]:
    """Yield a list to which a thread adds every command line of any process that has a canary, while the block runs."""
    found: list[str] = []
    wanted, over = forms(canary), threading.Event()

    def look() -> None:
        while not over.wait(pause_s):
            for process in Path("/proc").iterdir():
                if process.name.isdecimal():
                    with suppress(OSError):
                        line = (process / "cmdline").read_bytes()
                        if _has(line, wanted, _MOST_DEPTH):
                            found.append(line.replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look, name="canary", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _has(data: bytes, wanted: list[bytes], depth: int) -> bool:
    return any(form in data for form in wanted) or (
        depth < _MOST_DEPTH and any(_has(one, wanted, depth + 1) for one in _unpacked(data))
    )


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield what a compressed file or an archive contains."""
    if data[:2] == b"\x1f\x8b":
        yield _gunzipped(data)
    elif data[:4] == b"PK\x03\x04":
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as packed:
            yield from (packed.read(name) for name in packed.namelist())
    elif data[257:262] == b"ustar":
        with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(data)) as packed:
            yield from (file.read() for one in packed if (file := packed.extractfile(one)) is not None)


def _gunzipped(data: bytes) -> bytes:
    """Return the content of a file of gzip members, as far as it is complete."""
    content = b""
    while data[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        with suppress(zlib.error):
            content += member.decompress(data)
        data = member.unused_data
    return content
