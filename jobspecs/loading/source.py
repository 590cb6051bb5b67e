"""Text of a job file: size-limited, UTF-8 only, and safe to read from a FIFO."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from ..diagnostics import Diagnostic, Severity, SpecError

MAX_BYTES = 1_000_000
"""Maximum size in bytes, far above any job file; checked before parsing."""

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
# Characters that editors do not show: control characters, YAML 1.1 line breaks, direction overrides, lone surrogates, a
# byte order mark in the middle.
INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}


class Source:
    """Text of a file with its name, which creates diagnostics for positions in the text."""

    def __init__(self, name: str, text: str) -> None:
        """Raise SpecError if the text has invisible characters."""
        self.name = name
        self.text = text.removeprefix("\ufeff")
        self._lines: list[str] | None = None
        self._masked: Mapping[int, str] | None = None
        unseen = INVISIBLE.search(self.text)
        if unseen is not None:
            raise SpecError([self._unseen(unseen)])

    def at(
        self, line: int, column: int, code: str, message: str, hint: str = "", *, warning: bool = False
    ) -> Diagnostic:
        """Return a diagnostic at this place, with the line's text; values of environment variables are masked."""
        from .masking import masked_lines

        text = self.line(line)
        if self._masked is None:
            self._masked = masked_lines(self._lines or ())
        shown = self._masked.get(line - 1, text)
        severity: Severity = "warning" if warning else "error"
        return Diagnostic(self.name, line, column, code, message, hint, severity, shown, masked=shown != text)

    def line(self, number: int) -> str:
        """Return the text of a line, counted from 1; "" beyond the end."""
        if self._lines is None:
            self._lines = _LINE_BREAK.split(self.text)
        return self._lines[number - 1] if 1 <= number <= len(self._lines) else ""

    def _unseen(self, match: re.Match[str]) -> Diagnostic:
        line, column = _line_and_column(self.text[: match.start()])
        if match[0] == "\x00":
            return Diagnostic(
                self.name, line, column, "binary-file", "there is a NUL character: this is no text file", _YAML_HINT
            )
        message = f"there is a character that cannot be seen (U+{ord(match[0]):04X})"
        return Diagnostic(self.name, line, column, "unseen-character", message, "delete it, or save the file as UTF-8")


_YAML_HINT = "a job file is YAML in UTF-8"


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a text file. Raises SpecError if that fails."""
    return decode(_read(path), os.fspath(path))


def decode(data: bytes, name: str) -> Source:
    """Decode bytes. Raises SpecError if they are too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise refused(name, "file-too-large", f"this is larger than {MAX_BYTES:,} bytes", "ship data with `code:`")
    for mark, encoding in _ENCODINGS.items():
        if data.startswith(mark):
            raise refused(name, "wrong-encoding", f"this is {encoding}, not UTF-8", "save the file as UTF-8")
    try:
        return Source(name, data.decode())
    except UnicodeDecodeError as error:
        line, column = _line_and_column(data[: error.start].decode())
        if b"\x00" in data:
            found = Diagnostic(name, line, column, "binary-file", "this is a binary file", _YAML_HINT)
        else:
            message = f"byte 0x{data[error.start]:02X} is not valid UTF-8"
            found = Diagnostic(name, line, column, "wrong-encoding", message, "save the file as UTF-8")
        raise SpecError([found]) from None


def refused(name: str, code: str, message: str, hint: str = "") -> SpecError:
    """Return an error that concerns a file as a whole."""
    return SpecError([Diagnostic(name, 1, 1, code, message, hint)])


def _read(path: str | os.PathLike[str]) -> bytes:
    name = os.fspath(path)
    try:
        # O_NONBLOCK: opening a FIFO without a writer would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing(name) from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise refused(name, "unreadable-file", f"this file cannot be read: {cause}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise refused(name, "not-a-file", "this is a folder", "name the job file in it")
        if not stat.S_ISREG(mode):
            hint = "write - to read the job file from standard input"
            raise refused(name, "not-a-file", "this is not a regular file", hint)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise refused(name, "unreadable-file", f"this file cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _missing(name: str) -> SpecError:
    from ..suggest import did_you_mean

    folder = Path(name).parent
    try:
        beside = [entry.name for entry in folder.iterdir()][:1000]
    except OSError:
        beside = []
    return refused(name, "missing-file", "there is no such file", did_you_mean(Path(name).name, beside))


def _line_and_column(before: str) -> tuple[int, int]:
    """Return line and column, counted from 1, of the position after a text."""
    lines = _LINE_BREAK.split(before)
    return len(lines), len(lines[-1]) + 1
