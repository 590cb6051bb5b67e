"""What a program does outside of its own memory while it goes through epochs that are done: nothing, as far as can be.

Lines that it prints, files that it opens for writing and torch.save() have happened before: printed again they would
show values that mean nothing, and a "best" model saved again would be a worse one.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from typing import Any

from .frames import Code

_WRITING = frozenset("wax")


class Silence:
    """Between begin() and end()."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._stdout: Any = None
        self._open: Any = None
        self._save: Any = None
        self.left_out: dict[str, int] = {}
        """How often what was not done, for the report."""

    @property
    def on(self) -> bool:
        return self._open is not None

    def begin(self) -> None:
        if self.on:
            return
        self._stdout, self._open = sys.stdout, builtins.open
        sys.stdout = _Nowhere(self._stdout)
        builtins.open = self._opening
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            self._save, torch.save = torch.save, self._saving

    def end(self) -> None:
        if not self.on:
            return
        sys.stdout, builtins.open = self._stdout, self._open
        if self._save is not None:
            sys.modules["torch"].save = self._save  # type: ignore[attr-defined]
        self._stdout = self._open = self._save = None

    def _opening(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        caller = sys._getframe(1).f_code.co_filename
        if isinstance(mode, str) and _WRITING & set(mode) and self._code.owns(caller):
            self._count(f"open({os.fspath(file) if not isinstance(file, int) else file!r}, {mode!r})")
            return self._open(os.devnull, mode.replace("x", "w"), *arguments, **options)
        return self._open(file, mode, *arguments, **options)

    def _saving(self, _what: Any, f: Any, *_arguments: Any, **_options: Any) -> None:  # noqa: ANN401
        self._count(f"torch.save({f if isinstance(f, str | os.PathLike) else type(f).__name__})")

    def _count(self, what: str) -> None:
        self.left_out[what] = self.left_out.get(what, 0) + 1


class _Nowhere(io.TextIOBase):
    """Takes the place of stdout; what is asked of it but writing goes to the real one."""

    def __init__(self, real: Any) -> None:  # noqa: ANN401
        self._real = real

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def fileno(self) -> int:
        number: int = self._real.fileno()
        return number

    def isatty(self) -> bool:
        return bool(self._real.isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._real.encoding)
