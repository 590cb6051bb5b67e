"""References to secrets in clouds' secret managers: read with the credentials that this machine has.

`SCHEME://PATH[?OPTION=VALUE][#KEY]`; KEY selects a value of a secret that is a JSON object. The job file's reference
describes the paths and options of each scheme; a machine checks only what could direct a request elsewhere, and lets
the service refuse the rest.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import parse_qsl

from .api import PATIENT, Patience, SecretError

__all__ = ["CLOUDS", "MOST_BYTES", "Reference", "SecretError", "is_reference", "read_secret", "read_secrets"]

CLOUDS = ("aws", "gcp", "azure")
"""Clouds with a module in this package that has SCHEME and read()."""
MOST_BYTES = 64 << 10
"""Maximum size of a value in UTF-8: that of the secret managers, and less than Linux allows an environment variable."""
_REFERENCE_CHARACTERS = 4_096
_READERS = 16
"""Maximum number of secrets that are read concurrently."""


class Reference(NamedTuple):
    """A parsed reference."""

    text: str
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
        return cls(text, scheme, path, dict(parse_qsl(query, keep_blank_values=True)), key)


def is_reference(source: str) -> bool:
    """Return whether the source of a secret's value is a reference that read_secret() may read."""
    scheme, separator, _ = source.partition("://")
    return bool(separator) and scheme.partition("-")[0] in CLOUDS


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
        raise SecretError(f"{reference}: {error}") from None


def read_secrets(references: Mapping[str, str], patience: Patience = PATIENT) -> dict[str, str]:
    """Return the values of secrets by name, all read concurrently. Raises SecretError, with a line for each failure."""
    if not references:
        return {}
    with ThreadPoolExecutor(min(len(references), _READERS), "secrets") as readers:
        pending = {name: readers.submit(read_secret, one, patience) for name, one in references.items()}
    failures = {name: error for name, one in pending.items() if (error := one.exception()) is not None}
    if unexpected := [error for error in failures.values() if not isinstance(error, SecretError)]:
        raise unexpected[0]
    if failures:
        raise SecretError("\n".join(f"{name}: {error}" for name, error in failures.items()))
    return {name: one.result() for name, one in pending.items()}


def _selected(value: str, key: str) -> str:
    """Return the value under a key of a JSON object. Numbers are returned as they are written."""
    try:
        document = json.loads(value, parse_int=str, parse_float=str)
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
        kind = {dict: "an object", list: "a list"}.get(type(found), "null")
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
