"""What is said of access to any object store."""

from __future__ import annotations

import re

CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""A store's own word of what is wrong, in its XML or as obstore repeats it."""
_UNREACHABLE = re.compile(r"[A-Z]+ (https?://[^/\s]+)\S* .*error sending request", re.DOTALL)


class CredentialsError(Exception):
    """No credentials can be had; the message says what to do."""


def code_of(message: str) -> str:
    """The store's word of what is wrong; "": it says none, as in answers to HEAD."""
    return next((word for found in CODE.finditer(message) for word in found.groups() if word), "")


def unreachable(message: str) -> str:
    """The address that could not be reached; "": that is not what is wrong."""
    found = _UNREACHABLE.search(message)
    return found[1] if found else ""


def is_lost(message: str) -> bool:
    """Return whether a request was sent and no answer came: obstore does not repeat a create-only write then."""
    return bool(unreachable(message)) and "kind: Connect" not in message
