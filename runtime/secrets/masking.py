"""Mask the values of secrets in lines of a log, also where a line comes in pieces or a value is encoded."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ...protocol.logs import Stream

MASK = "***"
LEAST_CHARACTERS = 4
"""Minimum length of what is masked: shorter texts are part of ordinary words."""


class LineMasker:
    """Masks values in the lines of a node's log. Values are added before a program can print them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pattern: re.Pattern[str] | None = None
        self._starts: frozenset[str] = frozenset()
        """All proper prefixes of what is masked."""
        self._most = 0
        """Length of the longest of them."""
        self._held: dict[tuple[Stream, int | None], str] = {}
        """Stream and rank -> end of the last piece of an unfinished line, which may be the beginning of a value."""

    def add_values(self, values: Iterable[str]) -> None:
        """Mask these values from now on, each of their lines, and their usual encodings."""
        texts = {form for value in values for form in _forms(value) if len(form) >= LEAST_CHARACTERS}
        if not texts:
            return
        with self._lock:
            longest_first = sorted(texts, key=lambda text: (-len(text), text))
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            self._starts = frozenset(text[:length] for text in texts for length in range(1, len(text)))
            self._most = max(map(len, texts)) - 1

    def mask(self, text: str) -> str:
        """Return a whole text with the values masked."""
        pattern = self._pattern
        return text if pattern is None else pattern.sub(MASK, text)

    def mask_piece(self, stream: Stream, rank: int | None, text: str, *, partial: bool) -> str | None:
        """Return a line, or a piece of one, with the values masked; None: nothing of it can be written yet.

        partial: the line goes on. Its end is held back while it may be the beginning of a value.
        """
        if self._pattern is None:
            return text
        key = (stream, rank)
        with self._lock:
            text = self.mask(self._held.pop(key, "") + text)
            if not partial:
                return text
            held = self._beginning_at_end(text)
            if held:
                self._held[key] = text[-held:]
                text = text[:-held]
            return text or None

    def rest(self) -> list[tuple[Stream, int | None, str]]:
        """Return stream, rank and text of all that is still held back, and forget it."""
        with self._lock:
            held, self._held = self._held, {}
        return [(stream, rank, text) for (stream, rank), text in held.items()]

    def _beginning_at_end(self, text: str) -> int:
        """Return the length of the longest end of a text with which a value may begin; 0: there is none."""
        lengths = range(min(self._most, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._starts), 0)


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
