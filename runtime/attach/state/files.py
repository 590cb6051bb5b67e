"""Track, save and restore the output files that a resume would leave with missing or duplicate content.

A file that is rewritten from its beginning during training needs no saving. The following files are saved with each
checkpoint and restored with it, for these reasons:

    opened, replaced or removed before the first step    a resume runs this code again
    appended to, or changed in place                     content written after the checkpoint would be duplicated
    held open at a step boundary                         both

The size of a file before the program first appended to it is recorded in a journal. If a run ends before its first
checkpoint, the next run truncates the file to this size.
"""

from __future__ import annotations

import functools
import gc
import io
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..program.frame_inspection import Code, is_of_runtime
from .journal import CUT, Journal
from .variables import UnsavableError

MOST = 16 << 20
"""Maximum size of a file that can be saved with a checkpoint, in bytes."""
_ASIDE = re.compile(r"^/(dev|proc|sys)/|\.pyc(\.\d+)?$|/__pycache__/|/torchinductor_|/\.(cache|triton|nv)/|/pymp-")
"""Paths that are not outputs of the program, such as caches and devices."""
_STARTED = time.time()
_CHANGING = os.O_WRONLY | os.O_RDWR
_REPLACING = {"os.rename": 1, "shutil.copyfile": 1, "os.remove": 0, "os.truncate": 0, "shutil.move": 1, "os.link": 1}
"""Audit events (sys.addaudithook) that replace or remove a file, and the index of the argument with its path."""


class Files:
    """The tracked files of one program."""

    def __init__(self, code: Code, journal: Journal) -> None:
        self._code, self.journal = code, journal
        self.on = True
        self.early = True
        """True until the first optimizer step."""
        self.problem: str | None = None
        self._tracked: dict[str, None] = {}
        self._cleared: dict[str, None] = {}
        """Folders removed before the first step."""

    def install(self) -> None:
        """Install an audit hook for file operations, until the process ends."""
        sys.addaudithook(self._audit)

    def watch(self, module: object, name: str, argument: int) -> None:
        """Wrap a function that writes files without raising audit events, so that its files are tracked.

        argument  index of the argument with the path
        """
        before = getattr(module, name)

        @functools.wraps(before)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self.early and len(arguments) > argument and isinstance(arguments[argument], str | os.PathLike):
                self._track(arguments[argument])
            return before(*arguments, **options)

        setattr(module, name, watched)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            self._opened(*arguments)
        elif event in _REPLACING and self.early and self._is_programs():
            self._track(arguments[_REPLACING[event]])
        elif event == "shutil.rmtree" and self.early and self._is_programs():
            self._cleared[_absolute(arguments[0])] = None
        elif event == "os.mkdir" and self.early and self._is_programs():
            self._check_name(arguments[0])
        elif event == "sqlite3.connect" and arguments[0] != ":memory:" and self._is_programs():
            self.problem = f"it writes a database ({arguments[0]}), which a resume cannot bring back to its place"

    def _opened(self, path: object, mode: str | None, flags: int) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or not flags & _CHANGING or not self._is_programs():
            return
        if mode is None and self._code.owns(sys._getframe(2).f_code.co_filename):
            self.problem = (
                f"it writes {os.fsdecode(path)} by a file descriptor (os.open), which a resume cannot restore"
            )
        replaced = flags & os.O_TRUNC and not flags & os.O_APPEND
        if self.early or not replaced:
            self._track(path, journal=not replaced)

    def _is_programs(self) -> bool:
        """Return whether the program, not cloudgpu, has called the current file operation."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._code.owns(file):
                return True
            if is_of_runtime(file) and file != __file__:
                return False
            frame = frame.f_back
        return True  # a thread of a library, which the program uses

    def _track(self, name: object, *, journal: bool = False) -> None:
        if not isinstance(name, str | bytes | os.PathLike):
            return  # a file descriptor
        path = _absolute(name)
        if path in self._tracked or self._is_aside(path):
            return
        self._check_name(path)
        self._tracked[path] = None
        if journal:
            self._note(path)

    def _is_aside(self, path: str) -> bool:
        """Return whether a path is not an output of the program."""
        return bool(_ASIDE.search(path)) or path == str(self.journal.path) or Path(path).parent.name == CUT

    def _check_name(self, name: object) -> None:
        """Record a problem if the program creates a file or folder with the current year and month in its name."""
        path = Path(_absolute(name))
        for part in (path, *path.parents) if self.early else ():
            dated = re.search(time.strftime(r"%Y[-_.]?%m"), part.name)
            if dated and not any(dated[0] in word for word in sys.argv[1:]) and not _is_older(part):
                self.problem = (
                    f"it names its output by the clock ({path}): started again it would write elsewhere. Give it a "
                    "name that stays"
                )

    def _note(self, path: str) -> None:
        self.on = False
        try:
            self.journal.note_size(path, _size(path))
        except OSError as error:
            self.problem = f"it appends to {path}, and {self.journal.path} cannot be written: {error.strerror}"
        finally:
            self.on = True

    # Saving and restoring

    def state_dict(self) -> dict[str, Any]:
        """Return the contents of the tracked files. Raises UnsavableError if one is larger than MOST."""
        handles = self._handles()
        for handle in handles:
            handle.flush()
        paths = dict.fromkeys([*self._tracked, *(_name(handle) for handle in handles), *self._in_cleared()])
        return {path: _content(path) for path in paths if _size(path) is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the contents of files, also of those that the program has open."""
        self.on = False
        try:
            handles = self._handles()
            for handle in handles:
                handle.flush()
            for path, content in state.items():
                self._tracked[path] = None
                self._put_back(Path(path), content if isinstance(content, bytes) else content.numpy().tobytes())
            for handle in handles:
                if _name(handle) in state:
                    handle.seek(0, os.SEEK_END)
        finally:
            self.on = True

    def _put_back(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        now = path.read_bytes() if path.is_file() else b""
        if not content.startswith(now):
            self.journal.keep(path, now[len(content) :] if now.startswith(content) else now)
        with path.open("r+b" if path.is_file() else "wb") as file:  # keeps the inode, which the program may have open
            file.truncate(0)
            file.write(content)

    def _in_cleared(self) -> Iterator[str]:
        for folder in self._cleared:
            for root, _, names in os.walk(folder):
                yield from (str(Path(root, name)) for name in names)

    def _handles(self) -> list[Any]:
        """Return the file objects that the program holds open for writing, text files before binary ones."""
        kinds: tuple[Callable[..., Any], ...] = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
        found = []
        for one in gc.get_objects():
            if type(one) in kinds and not one.closed and isinstance(getattr(one, "name", None), str | bytes):
                path = _name(one)
                is_file = _size(path) is not None and not self._is_aside(path)
                if is_file and one.writable() and _is_at(one, path):
                    found.append(one)
        return sorted(found, key=lambda one: not isinstance(one, io.TextIOWrapper))


def _is_at(handle: Any, path: str) -> bool:
    """Return whether a handle's file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), Path(path).stat())
    except (OSError, ValueError):
        return False


def _name(handle: Any) -> str:
    return _absolute(handle.name)


def _absolute(name: Any) -> str:
    return os.path.abspath(os.fsdecode(name))  # noqa: PTH100 - links are not resolved


def _is_older(path: Path) -> bool:
    """Return whether a path was last changed before this process started."""
    try:
        return path.stat().st_ctime < _STARTED
    except OSError:
        return False


def _size(path: str) -> int | None:
    """Return the size of a regular file in bytes; None if there is no regular file at the path."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _content(path: str) -> Any:
    import torch

    data = Path(path).read_bytes()
    if len(data) > MOST:
        raise UnsavableError(f"{path} has more than {MOST >> 20} MiB, and the program appends to it or begins it anew")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else b""
