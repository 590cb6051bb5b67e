"""Files that the program writes: which of them a resume would leave with lines missing or twice, and their contents.

A file that is written from its beginning while training needs nothing: the program writes it again. The others are
saved with the checkpoint and put back when it is restored:

    opened, replaced or removed before the first step    the program does it again when it runs from its top
    appended to, or changed in place                     what was written after the checkpoint would stand there twice
    held open at a step boundary                         both

What a file held before it was first appended to is noted in a journal, for a run that ends before its next checkpoint.
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
"""Bytes of a file that are saved with a checkpoint."""
_ASIDE = re.compile(r"^/(dev|proc|sys)/|\.pyc(\.\d+)?$|/__pycache__/|/torchinductor_|/\.(cache|triton|nv)/|/pymp-")
"""Files that are no output of the program."""
_STARTED = time.time()
_CHANGING = os.O_WRONLY | os.O_RDWR
_REPLACING = {"os.rename": 1, "shutil.copyfile": 1, "os.remove": 0, "os.truncate": 0, "shutil.move": 1, "os.link": 1}
"""Events after which a file is another one, and the argument that names it."""


class Files:
    """The files of one program."""

    def __init__(self, code: Code, journal: Journal) -> None:
        self._code, self.journal = code, journal
        self.on = True
        self.early = True
        """The first step has not been made."""
        self.problem: str | None = None
        self._tracked: dict[str, None] = {}
        self._cleared: dict[str, None] = {}
        """Folders that are removed before the first step."""

    def install(self) -> None:
        """Watch the files that are opened, from now on until the process ends."""
        sys.addaudithook(self._audit)

    def watch(self, module: object, name: str, argument: int) -> None:
        """Watch a function that writes files by itself, without Python's knowledge; argument: which names the file."""
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
        """Return whether it is the program that does this now, rather than this package."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._code.owns(file):
                return True
            if is_of_runtime(file) and file != __file__:
                return False
            frame = frame.f_back
        return True  # a thread of a library's

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
        """Return whether it is no output of the program."""
        return bool(_ASIDE.search(path)) or path == str(self.journal.path) or Path(path).parent.name == CUT

    def _check_name(self, name: object) -> None:
        """Note a problem if the program makes a file or folder whose name has the year and month in it."""
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
        """Return the contents of the files to be put back. Raises UnsavableError if there is too much of it."""
        handles = self._handles()
        for handle in handles:
            handle.flush()
        paths = dict.fromkeys([*self._tracked, *(_name(handle) for handle in handles), *self._in_cleared()])
        return {path: _content(path) for path in paths if _size(path) is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the contents back, also under handles that the program has opened meanwhile."""
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
        with path.open("r+b" if path.is_file() else "wb") as file:  # the same inode, which may be held open
            file.truncate(0)
            file.write(content)

    def _in_cleared(self) -> Iterator[str]:
        for folder in self._cleared:
            for root, _, names in os.walk(folder):
                yield from (str(Path(root, name)) for name in names)

    def _handles(self) -> list[Any]:
        """Return the files that the program holds open for writing."""
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
    """Return whether the handle's file is the one of this name, and it writes at its end."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), Path(path).stat())
    except (OSError, ValueError):
        return False


def _name(handle: Any) -> str:
    return _absolute(handle.name)


def _absolute(name: Any) -> str:
    return os.path.abspath(os.fsdecode(name))  # noqa: PTH100 - links are not resolved


def _is_older(path: Path) -> bool:
    """Return whether it exists since before this process."""
    try:
        return path.stat().st_ctime < _STARTED
    except OSError:
        return False


def _size(path: str) -> int | None:
    """Return the size of a file; None if there is none."""
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
