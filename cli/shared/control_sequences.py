"""Remove terminal control sequences (ECMA-48) from the output of programs; colours can be kept."""

from __future__ import annotations

import re

_CARRIED = 64
"""Maximum characters of an unfinished sequence kept for the next part of its line; no colour sequence is longer."""

_SEQUENCE = re.compile(
    r"(?P<csi>\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]|\Z)"  # colours, cursor, screen, modes
    r"|(?P<osc>\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|\x1b?\Z|(?=\x1b))"  # titles, links, clipboard
    r"|(?P<string>\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c|\x1b?\Z|(?=\x1b))"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*(?:[0-~]|\Z)"  # two or three characters: reset, character sets, keypad
    r"|[\x0e\x0f\x1b\x80-\x9f]"  # shifts to another character set; other C1 codes
)
_STRING_ENDS = ("\x1b\\", "\x9c")
_COLOUR = re.compile(r"[0-9;:]*")


class ControlSequenceFilter:
    """Stateful filter of one text stream; a sequence may be split between the parts of a line."""

    def __init__(self, *, colours: bool) -> None:
        """Create a filter. `colours`: keep sequences that select colours and styles (SGR)."""
        self._colours = colours
        self._rest = ""
        """Beginning of an unfinished sequence; bounded."""

    def __call__(self, text: str, *, partial: bool = False) -> str:
        """Return the text without sequences. An unfinished sequence carries over to the next part only if `partial`."""
        if not self._rest and not _SEQUENCE.search(text):
            return text
        text, self._rest = self._rest + text, ""
        clean = _SEQUENCE.sub(self._replace, text)
        if not partial:
            self._rest = ""
        return clean

    def _replace(self, match: re.Match[str]) -> str:
        whole, introducer = match[0], match["csi"] or match["osc"] or match["string"]
        if match["csi"] and match["final"]:
            is_colour = self._colours and match["final"] == "m" and _COLOUR.fullmatch(whole[len(introducer) : -1])
            return f"\x1b[{match['parameters']}m" if is_colour else ""
        if match.end() < len(match.string):
            return ""
        if introducer is None:
            self._rest = whole if whole[0] == "\x1b" and not "0" <= whole[-1] <= "~" else ""
        elif match["csi"]:
            self._rest = whole if len(whole) <= _CARRIED else f"{introducer}?"  # `?` marks it as not a colour
        elif not whole.endswith(_STRING_ENDS if match["string"] else ("\x07", *_STRING_ENDS)):
            self._rest = introducer + ("\x1b" if whole.endswith("\x1b") else "")
        return ""
