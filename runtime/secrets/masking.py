"""Mask the values of secrets in lines of a log, also where a line comes in pieces or a value is encoded."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ...protocol.logs.format import Stream

MASK = "***"
LEAST_CHARACTERS = 4
"""Minimum length of what is masked: shorter texts are part of ordinary words."""
_HEAD = 8
"""Length of the beginning of a text by which its places are searched."""


class LineMasker:
    """Masks values in the lines of a node's log. Values are added before a program can print them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: tuple[str, ...] = ()
        """All that is masked."""
        self._held: dict[tuple[Stream, int | None], str] = {}
        """Stream and rank -> end of the last piece of an unfinished line, which may be the beginning of a value."""

    def add_values(self, values: Iterable[str]) -> None:
        """Mask these values from now on, each of their lines, and their usual encodings."""
        texts = {form for value in values for form in _forms(value) if len(form) >= LEAST_CHARACTERS}
        with self._lock:
            self._texts = tuple(sorted(texts))

    def mask(self, text: str) -> str:
        """Return a whole text with the values masked."""
        return _masked(text, _places(text, self._texts))

    def mask_piece(self, stream: Stream, rank: int | None, text: str, *, partial: bool) -> str | None:
        """Return a line, or a piece of one, with the values masked; None: nothing of it can be written yet.

        partial: the line goes on. Its end is held back, unmasked, while it may be the beginning of a value.
        """
        if not self._texts:
            return text
        key = (stream, rank)
        with self._lock:
            text = self._held.pop(key, "") + text
            places = _places(text, self._texts)
            if not partial:
                return _masked(text, places)
            begin = min((_beginning_at_end(text, one) for one in self._texts), default=len(text))
            begin = min([begin, *(start for start, end in places if start < begin < end)])
            if begin < len(text):
                self._held[key] = text[begin:]
            return _masked(text[:begin], [place for place in places if place[1] <= begin]) or None

    def rest(self) -> list[tuple[Stream, int | None, str]]:
        """Return stream, rank and masked text of all that is still held back, and forget it."""
        with self._lock:
            held, self._held = self._held, {}
        return [(stream, rank, self.mask(text)) for (stream, rank), text in held.items()]


def _places(text: str, wanted: Iterable[str]) -> list[tuple[int, int]]:
    """Return where any of the texts are in a text, as (start, end) in order; overlapping places are joined."""
    found = []
    for one in wanted:
        start = text.find(one)
        while start != -1:
            found.append((start, start + len(one)))
            start = text.find(one, start + 1)
    joined: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _masked(text: str, places: Iterable[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in places:
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])


def _beginning_at_end(text: str, wanted: str) -> int:
    """Return where the longest end of a text begins that is a beginning of `wanted`; the text's length: nowhere."""
    head = wanted[:_HEAD]
    start = text.find(head, max(0, len(text) - len(wanted) + 1))
    while start != -1:
        if text.endswith(wanted[: len(text) - start]):
            return start
        start = text.find(head, start + 1)
    lengths = range(min(_HEAD, len(wanted), len(text) + 1) - 1, 0, -1)
    return len(text) - next((length for length in lengths if text.endswith(wanted[:length])), 0)


def _forms(value: str) -> set[str]:
    """Return a value, its lines, and what programs make of it: JSON, URLs, base64."""
    data = value.encode("utf-8", "surrogateescape")
    whole = data[: len(data) // 3 * 3]  # the base64 of the rest depends on what follows it
    encoded = {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        base64.b64encode(whole).decode(),
        base64.urlsafe_b64encode(whole).decode(),
        quote(data),
        quote(data, safe=""),
        quote_plus(data),
    }
    lines = {line.strip() for line in value.splitlines()}
    return {value, *encoded, *lines}
