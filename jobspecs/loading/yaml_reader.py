"""Read YAML text into values with positions.

A scalar gets its type from the job file's field, not from YAML's implicit types. Every scalar is returned as the text
that was written (`no`, `1.10`, `0123`), quoted or not; only a plain empty value, `null` and `~` are None. Therefore
this module reads the parser's events and never constructs objects by tag. The parser is libyaml's; PyYAML's parser,
about fifty times slower, is used if PyYAML was built without libyaml.

YAML features that job files do not need are refused by name: tags, merge keys, keys that are not text, multiple
documents, cycles, and documents that expand to more than MAX_VALUES values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from yaml.error import Mark, YAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from ..diagnostics import MAX_PROBLEMS, Diagnostic, Loc, SpecError, quote, shorten
from .source import Source, refused

if TYPE_CHECKING:
    from yaml._yaml import CParser as _Parser
else:
    try:
        from yaml._yaml import CParser as _Parser
    except ImportError:  # PyYAML was built without libyaml
        from yaml import Loader as _Parser

MAX_VALUES = 50_000
"""Maximum number of keys and values in a document, with aliases expanded."""
MAX_DEPTH = 32

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_EXAMPLE = "a job file begins like this: name: my-job"

# libyaml's message -> hint for the user.
_SYNTAX_HINTS = {
    "mapping values are not allowed": 'put quotes around a text that contains ": "',
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "did not find expected key": "give all keys of a mapping the same indentation, and close quotes before it",
    "did not find expected '-' indicator": "give all items of a list the same indentation",
    "did not find expected ',' or ']'": "close the list with ]",
    "did not find expected ',' or '}'": "close the mapping with }",
    "found unexpected end of stream": "close the quotes",
    "found character that cannot start any token": "put quotes around a text that begins with @, ` or %",
    "found unknown escape character": "in double quotes a backslash starts an escape: use single quotes",
    "block sequence entries are not allowed": "begin the list on its own line, or write [a, b]",
}


class Document:
    """Mapping read from YAML, with the positions of its values and the recoverable mistakes."""

    def __init__(self, source: Source, value: dict[str, object], marks: _Marks, diagnostics: list[Diagnostic]) -> None:
        self.source = source
        self.value = value
        self.diagnostics = diagnostics
        self._marks = marks

    def position(self, loc: Loc, *, of_key: bool = False) -> tuple[int, int]:
        """Return line and column, from 1, of a value or of its key.

        If the value does not exist, return the position of the nearest enclosing value.
        """
        marks: _Marks = self._marks
        key_mark = mark = marks.start
        for step in loc:
            if step not in marks.children:
                break
            key_mark, mark, inside = marks.children[step]
            if inside is None:
                break
            marks = inside
        found = key_mark if of_key else mark
        return found.line + 1, found.column + 1


class _Marks:
    """Positions in one mapping or list: key or index -> (position of the key, of the value, marks inside the value)."""

    __slots__ = ("children", "start")

    def __init__(self, start: Mark) -> None:
        self.start = start
        self.children: dict[str | int, tuple[Mark, Mark, _Marks | None]] = {}


class _Frame:
    """Mapping or list whose end has not been read yet."""

    __slots__ = ("anchor", "before", "is_key", "key", "key_mark", "marks", "value")

    def __init__(self, value: dict[str, object] | list[object], start: Mark, anchor: str | None, before: int) -> None:
        self.value = value
        self.marks = _Marks(start)
        self.anchor = anchor
        self.before = before
        """Number of values read before this collection, to compute its size at its end."""
        self.is_key = False
        """True if this collection is used as a key; its content is skipped."""
        self.key: str | None = None
        self.key_mark: Mark | None = None
        """If set, the next value belongs to `key`; if `key` is None, the key was refused and the value is dropped."""


def read_yaml(source: Source, example: str = _EXAMPLE) -> Document:
    """Parse a text into a document. Raises SpecError if it is unusable.

    example  hint for a file that is empty or not a mapping
    """
    reader = _Reader(source, example)
    try:
        reader.read()
    except YAMLError as error:
        reader.diagnostics.append(_syntax_error(source, error))
        raise SpecError(reader.diagnostics) from None
    if reader.incomplete:
        raise SpecError(reader.diagnostics)
    if reader.root is None:
        raise refused(source.name, "empty-file", "this file is empty", example)
    return Document(source, reader.root.value, reader.root.marks, reader.diagnostics)


class _Reader:
    """Builder of values from the parser's events, with an explicit stack."""

    def __init__(self, source: Source, example: str) -> None:
        self.source = source
        self.example = example
        self.diagnostics: list[Diagnostic] = []
        self.root: Any = None
        self.incomplete = False
        """True after a mistake that makes the document unusable; the rest is read to find other mistakes."""
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, _Marks | None, int]] = {}
        self._count = 0

    def read(self) -> None:
        next_event: Callable[[], Any] = _Parser(self.source.text).get_event
        documents = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is ScalarEvent:
                self._scalar(event)
            elif kind is MappingStartEvent or kind is SequenceStartEvent:
                self._open(event, {} if kind is MappingStartEvent else [])
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self._close()
            elif kind is AliasEvent:
                self._alias(event)
            elif kind is DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self._stop(event.start_mark, "several-documents", "a second document begins here", "one job a file")
            elif kind is StreamEndEvent:
                return

    def _scalar(self, event: Any) -> None:  # the stubs of events allow None everywhere
        mark, text = event.start_mark, event.value
        if event.tag is not None:
            self._tag(event)
        value = None if not event.style and text in _NULLS else text
        if "\0" in text:
            self._say(mark, "nul-character", "a NUL character cannot be part of a text", "delete the \\0")
            value = text.replace("\0", "")
        if not self._stack:
            self._not_a_mapping(mark, value)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, None, 1)
        self._count += 1
        self._add(value, mark, None)

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:  # one of two event classes
        mark = event.start_mark
        if event.tag is not None:
            self._tag(event)
        if not self._stack and isinstance(value, list):
            self._not_a_mapping(mark, value)
        if len(self._stack) >= MAX_DEPTH:
            self._stop(mark, "too-deep", f"this is nested deeper than {MAX_DEPTH} levels")
        frame = _Frame(value, mark, event.anchor, self._count)
        if self._stack and isinstance(self._stack[-1].value, dict) and self._stack[-1].key_mark is None:
            frame.is_key = self.incomplete = True
            self._say(mark, "key-not-text", "a key must be a text", "put quotes around {{…}} and the like")
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)
        self._count += 1
        self._stack.append(frame)

    def _close(self) -> None:
        frame = self._stack.pop()
        if frame.anchor is not None:
            self._anchors[frame.anchor] = (frame.value, frame.marks, self._count - frame.before)
        if not self._stack:
            self.root = frame
        elif frame.is_key:
            self._stack[-1].key_mark = frame.marks.start
        else:
            self._add(frame.value, frame.marks.start, frame.marks)

    def _alias(self, event: Any) -> None:
        name, mark = event.anchor, event.start_mark
        if any(frame.anchor == name for frame in self._stack):
            self._stop(mark, "cyclic-alias", f"*{shorten(name)} stands inside the value it repeats")
        if name not in self._anchors:
            self._stop(mark, "unknown-alias", f"there is no anchor &{shorten(name)} above")
        value, marks, size = self._anchors[name]
        self._count += size
        self._add(value, mark, marks)

    def _add(self, value: object, mark: Mark, inside: _Marks | None) -> None:  # text, None, dict or list
        """Add a finished value to the open mapping (as key or value) or list."""
        if self._count > MAX_VALUES:
            self._stop(mark, "too-many-values", f"there are more than {MAX_VALUES:,} values, aliases expanded")
        frame = self._stack[-1]
        container = frame.value
        if type(container) is list:
            frame.marks.children[len(container)] = (mark, mark, inside)
            container.append(value)
        elif frame.key_mark is None:
            self._key(frame, value, mark)
        else:
            if frame.key is not None:
                frame.marks.children[frame.key] = (frame.key_mark, mark, inside)
                container[frame.key] = value  # type: ignore[call-overload]  # a dict: see above
            frame.key = frame.key_mark = None

    def _key(self, frame: _Frame, key: object, mark: Mark) -> None:  # text, None, dict or list
        frame.key_mark = mark
        frame.key = None
        if not isinstance(key, str):
            self._say(mark, "key-not-text", "a key must be a text", "write `key: value`")
        elif key == "<<":
            self._say(mark, "merge-key", "merge keys (<<) are not supported", "write the keys out")
        elif key in frame.marks.children:
            first = frame.marks.children[key][0].line + 1
            message = f"the key {quote(key)} is here twice, first in line {first}"
            self._say(mark, "duplicate-key", message, "keep one of them")
        else:
            frame.key = key

    def _tag(self, event: Any) -> None:  # one of three event classes
        shown = event.tag.replace("tag:yaml.org,2002:", "!!")
        self._say(event.start_mark, "tag", f"the tag {quote(shown)} is not allowed", "delete it: the text is enough")

    def _not_a_mapping(self, mark: Mark, value: object) -> None:
        if value is None:
            raise refused(self.source.name, "empty-file", "this file is empty", self.example)
        what = "a list" if isinstance(value, list) else "a text"
        self._stop(mark, "not-a-mapping", f"expected keys and values, not {what}", self.example)

    def _say(self, mark: Mark, code: str, message: str, hint: str = "") -> None:
        self.diagnostics.append(self.source.at(mark.line + 1, mark.column + 1, code, message, hint))
        if len(self.diagnostics) >= MAX_PROBLEMS:
            raise SpecError(self.diagnostics)

    def _stop(self, mark: Mark, code: str, message: str, hint: str = "") -> None:
        self._say(mark, code, message, hint)
        raise SpecError(self.diagnostics)


def _syntax_error(source: Source, error: YAMLError) -> Diagnostic:
    problem = getattr(error, "problem", None) or "this cannot be read"
    begin: Mark | None = getattr(error, "context_mark", None)
    mark: Mark | None = getattr(error, "problem_mark", None) or begin
    if begin is not None and problem == "found unexpected end of stream":
        mark = begin  # the position of the opening quote
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    text = source.line(line)
    if "\t" in text[: column + 1] and not text[: column - 1].strip():
        return source.at(line, column, "tab", "a tab cannot indent", "indent with spaces")
    hint = next((hint for start, hint in _SYNTAX_HINTS.items() if problem.startswith(start)), "")
    before = text[: column - 1]
    if problem.startswith("mapping values") and before[:1] == " " and ":" not in before:
        hint = "give this key the indentation of the key above"
    elif hint.startswith("close the mapping") and "${" in text[:column]:
        hint = "put quotes around a text that contains ${"
    elif hint.startswith("close the ") and begin is not None and begin.line + 1 < line:
        hint += f"; it begins in line {begin.line + 1}"
    return source.at(line, column, "yaml-syntax", f"this is not valid YAML: {problem}", hint)
