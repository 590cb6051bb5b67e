"""Journal of the files that a program appends to: their original sizes, and copies of the bytes that a resume cuts off.

A restarted program writes the lines since its checkpoint again, so the old lines are cut off first. Other programs may
have written some of them. Therefore a copy of the bytes is kept, in the folder CUT beside the journal, until the
program has ended and the file contains the bytes again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...checkpoint.errors import logger

PREFIX = ".cloudgpu-"
"""Prefix of the names of the journal and the folder CUT, which are not tracked as outputs of the program."""
CUT = f"{PREFIX}cut"
"""Folder of the copies of bytes that were cut off."""


class Journal:
    """File of JSON lines to which all runs of one program append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_program(cls, program: str, folder: str | None) -> Journal:
        """Return the journal of a program in the working directory. `folder`: the folder of its checkpoints."""
        key = f"{program}\n{folder or os.environ.get('CLOUDGPU_CHECKPOINTS') or 'checkpoints'}"
        name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:8]
        return cls(Path.cwd() / f"{PREFIX}appended-{name}-{os.environ.get('RANK') or 0}")

    def note_size(self, path: str, size: int | None) -> None:
        """Record the size of a file in bytes before the program appends to it; None: no such file. Raises OSError."""
        self._add({"path": path, "size": size})

    def cut_back(self) -> None:
        """Truncate each file to its size before the program's first append; remove a file that did not exist then.

        Restoring a checkpoint afterwards adds the lines that had been written until its save.
        """
        first: dict[str, int | None] = {}
        for entry in self._entries():
            if "size" in entry:
                first.setdefault(entry["path"], entry["size"])
        for path, size in first.items():
            try:
                self._cut(Path(path), size)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger().warning(f"run: {path} cannot be cut back, so lines may stand in it twice: {error.strerror}")

    def keep(self, path: Path, data: bytes) -> None:
        """Save a copy of bytes that are about to be removed from a file. Raises OSError."""
        folder = self.path.parent / CUT
        folder.mkdir(exist_ok=True)
        name = hashlib.sha256(os.fsencode(path) + b"\0" + data).hexdigest()[:16]
        (folder / name).write_bytes(data)
        self._add({"path": str(path), "kept": name})
        logger().info(f"run: {len(data):,} bytes of {path} will be written again; a copy is in {folder / name}")

    def forget(self) -> None:
        """Remove the journal after the program's end, and the copies of bytes that their file contains again."""
        folder = self.path.parent / CUT
        for entry in self._entries():
            kept = folder / str(entry.get("kept") or "")
            if kept.parent == folder and kept.is_file() and _contains(Path(entry["path"]), kept.read_bytes()):
                kept.unlink()
        self.path.unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def _cut(self, path: Path, size: int | None) -> None:
        data = path.read_bytes()
        if data[size or 0 :]:
            self.keep(path, data[size or 0 :])
        if size is None:
            path.unlink()
        elif len(data) > size:
            os.truncate(path, size)

    def _add(self, entry: dict[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(
                f"\n{json.dumps(entry)}\n"
            )  # the leading newline ends a line that a killed process left incomplete

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the valid entries."""
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
                known = isinstance(entry["path"], str) and isinstance(entry.get("size", 0), int | None)
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if known:
                yield entry


def _contains(path: Path, data: bytes) -> bool:
    try:
        return data in path.read_bytes()
    except OSError:
        return False
