"""Where in the program's own code it is: the frames of its functions, what they are called by, what they loop over."""

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
    """The program's own code: what lies in the folder of its script, but is not installed there."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: dict[str, bool] = {}

    def owns(self, file: str | None) -> bool:
        if not file or not file.startswith("/"):  # torch.ops says that it is "_ops.py"
            return False
        if file not in self._known:
            path = str(Path(file).resolve())
            own = path.startswith(self._folder.rstrip("/") + "/") and not any(part in path for part in _FOREIGN)
            library = path.startswith((*_RUNTIME, str(Path(linecache.__file__).parent) + "/"))
            self._known[file] = own and not library
        return self._known[file]

    def owns_module(self, name: str) -> bool:
        """Return whether a module of this name is the program's own."""
        return name == "__main__" or self.owns(getattr(sys.modules.get(name), "__file__", None))

    def frames(self) -> list[FrameType]:
        """The program's frames, the innermost first."""
        return [frame for frame in _stack() if self.owns(frame.f_code.co_filename)]

    def modules(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and globals of each of the program's modules."""
        main = sys.modules["__main__"]
        yield "__main__", vars(main)
        for name, module in list(sys.modules.items()):
            if module is not None and module is not main and self.owns(getattr(module, "__file__", None)):
                yield name, vars(module)


def is_of_runtime(file: str) -> bool:
    """Return whether a file is part of this package's runtime, but for what every program under `run` is called by."""
    return file.startswith(_RUNTIME) and not file.endswith(("/attach/program/execute.py", "/attach/program/loops.py"))


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def site_of(frame: FrameType) -> str:
    """Return a place in the program: file, function and the line's text, so that edits elsewhere do not move it."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip() or f"line {frame.f_lineno}"
    return f"{Path(code.co_filename).name}: {code.co_qualname}: {text}"


def set_local(frame: FrameType, name: str, value: object) -> None:
    """Assign a local variable of a frame that waits for a call to return."""
    variables = frame.f_locals  # once: until Python 3.12 asking again would fill it anew
    variables[name] = value
    if sys.version_info < (3, 13) and variables is not frame.f_globals:  # since then (PEP 667) that is all
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
