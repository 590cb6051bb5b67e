"""References to secrets in clouds' secret managers: read with the credentials that this machine has.

`SCHEME://PATH[?OPTION=VALUE][#KEY]`; KEY selects a value of a secret that is a JSON object. The job file's reference
describes the paths and options of each scheme; a machine checks only what could direct a request elsewhere, and lets
the service refuse the rest.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from .api import PATIENT, Patience, SecretError

__all__ = ["CLOUDS", "MOST_BYTES", "Reads", "Reference", "SecretError", "read_secret"]

CLOUDS = ("aws", "gcp", "azure")
"""Clouds with a module in this package that has SCHEME and read()."""
MOST_BYTES = 64 << 10
"""Maximum size of a value in UTF-8: that of the secret managers, and less than Linux allows an environment variable."""
_REFERENCE_CHARACTERS = 4_096


class Reference(NamedTuple):
    """A parsed reference."""

    scheme: str
    path: str
    options: Mapping[str, str]
    key: str
    """Key in the secret's JSON object; "": the whole secret."""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference. Raises SecretError."""
        if len(text) > _REFERENCE_CHARACTERS or not text.isprintable():
            raise SecretError("a reference to a secret is too long, or has unprintable characters")
        scheme, separator, rest = text.partition("://")
        address, mark, key = rest.partition("#")
        path, _, query = address.partition("?")
        if not separator or not path or (mark and not key):
            raise SecretError(f"{text}: no reference to a secret: expected SCHEME://PATH[#KEY]")
        return cls(scheme, path, dict(parse_qsl(query, keep_blank_values=True)), key)


def read_secret(reference: str, patience: Patience = PATIENT) -> str:
    """Return the value of a secret. Raises SecretError, whose message begins with the reference.

    An unreachable or throttling service is retried for minutes; a refusal only as long as the machine's role may not be
    known everywhere yet.
    """
    found = Reference.parse(reference)
    cloud = found.scheme.partition("-")[0]
    module = importlib.import_module(f".{cloud}", __package__) if cloud in CLOUDS else None
    if module is None or found.scheme != module.SCHEME:
        raise SecretError(f"{reference}: this machine cannot read the scheme {found.scheme}://")
    try:
        value: str = module.read(found, patience)
        return _checked(_selected(value, found.key) if found.key else value)
    except SecretError as error:
        raise SecretError(f"{reference}: {error}", passes=error.passes) from None


class Reads:
    """Concurrent reads of several secrets, in threads that do not outlive this process: a node that is to stop does not
    wait for them."""

    def __init__(self, references: Mapping[str, str], say: Callable[[str], None], patience: Patience = PATIENT) -> None:
        """Start reading. `references`: name -> reference; `say` logs a line, from any thread."""
        self._say = say
        self._values: dict[str, str] = {}
        self._failures: dict[str, Exception] = {}
        self._threads = [
            threading.Thread(target=self._read, args=(name, one, patience), name="secrets", daemon=True)
            for name, one in references.items()
        ]
        for thread in self._threads:
            thread.start()

    def values(self) -> dict[str, str] | None:
        """Return the values by name; None: not all have come yet.

        Raises SecretError, with a line for each secret that cannot be read.
        """
        if any(thread.is_alive() for thread in self._threads):
            return None
        refused = {name: one for name, one in sorted(self._failures.items()) if isinstance(one, SecretError)}
        for error in self._failures.values():
            if not isinstance(error, SecretError):
                raise error
        if refused:
            message = "\n".join(f"the secret {name}: {error}" for name, error in refused.items())
            raise SecretError(message, passes=all(error.passes for error in refused.values()))
        return self._values

    def _read(self, name: str, reference: str, patience: Patience) -> None:
        def say(reason: str) -> None:
            self._say(f"the secret {name}: {reference}: {reason}; it is read again")

        try:
            self._values[name] = read_secret(reference, patience._replace(say=say))
        except Exception as error:  # noqa: BLE001 - raised again by values()
            self._failures[name] = error


def _selected(value: str, key: str) -> str:
    """Return the value under a key of a JSON object. Numbers are returned as they are written."""
    try:
        document = json.loads(value, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise SecretError(f"the secret is no JSON object, so it has no key {key}: leave out #{key}") from None
    if key not in document:
        raise SecretError(f"the secret's JSON object has no key {key}")
    found = document[key]
    if isinstance(found, bool):
        return "true" if found else "false"
    if not isinstance(found, str):
        kind = "null" if found is None else "an object" if isinstance(found, dict) else "a list"
        raise SecretError(f"the key {key} of the secret is {kind}: only text, numbers, true and false can be used")
    return found


def _checked(value: str) -> str:
    """Return the value. Raises SecretError if no environment variable can have it."""
    if "\0" in value:
        raise SecretError("the value has a NUL character, which no environment variable can have")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SecretError("the value is no valid Unicode text") from None
    if size > MOST_BYTES:
        raise SecretError(f"the value has {size:,} bytes; the most is {MOST_BYTES:,}")
    return value
