"""Inspection of the program's stack: the frames of its own code, their call sites and their local variables."""

from __future__ import annotations

import ctypes
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_FOREIGN = ("site-packages", "dist-packages")
_PACKAGE = Path(__file__).parents[3]
_RUNTIME = tuple(f"{_PACKAGE / name}/" for name in ("runtime", "protocol", "storage"))


class Code:
    """The program's own code: files in the folder of its script, except installed packages."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: dict[str, bool] = {}

    def owns(self, file: str | None) -> bool:
        if not file or not file.startswith("/"):  # torch.ops has the relative __file__ "_ops.py"
            return False
        if file not in self._known:
            path = str(Path(file).resolve())
            own = path.startswith(self._folder.rstrip("/") + "/") and not any(part in path for part in _FOREIGN)
            library = path.startswith((*_RUNTIME, str(Path(linecache.__file__).parent) + "/"))
            self._known[file] = own and not library
        return self._known[file]

    def owns_module(self, name: str) -> bool:
        """Return whether the module with a name belongs to the program."""
        return name == "__main__" or self.owns(getattr(sys.modules.get(name), "__file__", None))

    def frames(self) -> list[FrameType]:
        """Return the program's frames, innermost first."""
        return [frame for frame in _stack() if self.owns(frame.f_code.co_filename)]

    def modules(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and globals of each of the program's modules."""
        main = sys.modules["__main__"]
        yield "__main__", vars(main)
        for name, module in list(sys.modules.items()):
            if module is not None and module is not main and self.owns(getattr(module, "__file__", None)):
                yield name, vars(module)


def is_of_runtime(file: str) -> bool:
    """Return whether a file belongs to cloudgpu's runtime; False for the two modules that call the program's code."""
    return file.startswith(_RUNTIME) and not file.endswith(("/attach/program/execute.py", "/attach/program/loops.py"))


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def site_of(frame: FrameType) -> str:
    """Return a frame's position as file, function and the line's text, which edits elsewhere do not change."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip() or f"line {frame.f_lineno}"
    return f"{Path(code.co_filename).name}: {code.co_qualname}: {text}"


def set_local(frame: FrameType, name: str, value: object) -> None:
    """Assign a local variable of a function that is running."""
    variables = frame.f_locals  # read once: until Python 3.12 each access refills the dict
    variables[name] = value
    if (
        sys.version_info < (3, 13) and variables is not frame.f_globals
    ):  # from 3.13 on (PEP 667) f_locals writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
