"""Where in the program's own code it is: the frames of its functions, what they are called by, what they loop over."""

from __future__ import annotations

import ctypes
import dis
import inspect
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_FOREIGN = ("site-packages", "dist-packages")
_RUNTIME = str(Path(__file__).parents[1])


class Code:
    """The program's own code: what lies in the folder of its script, but is not installed there."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: dict[str, bool] = {}

    def owns(self, file: str | None) -> bool:
        if not file or file.startswith("<"):
            return False
        if file not in self._known:
            path = str(Path(file).resolve())
            own = path.startswith(self._folder.rstrip("/") + "/") and not any(part in path for part in _FOREIGN)
            library = path.startswith((_RUNTIME + "/", str(Path(linecache.__file__).parent) + "/"))
            self._known[file] = own and not library
        return self._known[file]

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


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def site(frame: FrameType) -> str:
    """A place in the program: file, function and the line's text, so that edits elsewhere do not move it."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip() or f"line {frame.f_lineno}"
    return f"{Path(code.co_filename).name}: {code.co_qualname}: {text}"


def is_for_loop(frames: list[FrameType]) -> bool:
    """Whether the innermost frame that is no generator, and every generator up to it, asks by a `for`."""
    for frame in frames:
        opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if not opcode.startswith("FOR_ITER"):
            return False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
    return False


def set_local(frame: FrameType, name: str, value: Any) -> None:  # noqa: ANN401
    """Assign a local variable of a frame that waits for a call to return."""
    variables = frame.f_locals  # once: until Python 3.12 asking again would fill it anew
    variables[name] = value
    if sys.version_info < (3, 13) and variables is not frame.f_globals:  # since then (PEP 667) that is all
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
