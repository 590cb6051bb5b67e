"""Mask values of environment variables, which may be secrets, in lines of a job file that are shown to the user.

It works on the text, because an invalid YAML file cannot be parsed. In case of doubt, a line is masked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from ..suggest import closest

MASK = "…"
_KEY = re.compile(r"""(?<![\w-])["']?([\w-]+)["']?\s*:""")
_ENVIRONMENT = ("env", "envs", "env_vars", "environment", "environment_variables", "secrets")
"""Names of the mapping of environment variables, in job files and other dialects."""
_ENTRY = re.compile(r"""(\s*(?:-\s+)?["']?[\w.-]+["']?\s*:)""")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^']|'')*'")


def masked_lines(lines: Sequence[str]) -> Mapping[int, str]:
    """Return the masked form, by index from 0, of the lines that contain values of environment variables."""
    found: dict[int, str] = {}
    depth, indent = 0, None  # number of open brackets of a flow mapping; indentation of the key of a block mapping
    for number, line in enumerate(lines):
        if depth > 0:
            found[number] = _indentation(line) + MASK
            depth += _depth(line)
            continue
        if indent is not None:
            if not line.strip() or _is_inside(line, indent):
                found[number] = _masked_entry(line)
                continue
            indent = None
        key = next((key for key in _KEY.finditer(line) if _means_environment(key[1])), None)
        if key is None:
            continue
        value = line[key.end() :]
        if value.strip() and not value.strip().startswith("#"):
            found[number] = f"{line[: key.end()]} {MASK}"
        depth = max(0, _depth(value))
        if depth == 0:
            indent = len(_indentation(line))
    return found


@functools.lru_cache(maxsize=1_024)
def _means_environment(key: str) -> bool:
    """Return whether a key names environment variables, possibly misspelt."""
    return bool(closest(key, _ENVIRONMENT))


def _is_inside(line: str, indent: int) -> bool:
    """Return whether a line belongs to the block below a key with this indentation.

    It does if it is indented further, a list entry with the same indentation, or a comment.
    """
    own = len(_indentation(line))
    return own > indent or (own == indent and line.lstrip().startswith("- ")) or line.lstrip().startswith("#")


def _masked_entry(line: str) -> str:
    if not line.strip():
        return line
    entry = _ENTRY.match(line)
    return f"{entry[1]} {MASK}" if entry else _indentation(line) + MASK


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _depth(text: str) -> int:
    """Return the number of brackets that the line opens minus those it closes, outside of quotes."""
    plain = _QUOTED.sub("", text)
    return sum(plain.count(one) for one in "{[") - sum(plain.count(one) for one in "}]")
