"""References to secrets in clouds' secret managers, which machines read with their own roles. Pure.

`SCHEME://PATH[?OPTION=VALUE][#KEY]`. tables/secret_schemes.csv has the schemes; KEY selects a value of a secret that is
a JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from .catalog import csv_tables
from .suggest import did_you_mean, one_of

_OPTION = re.compile(r"[A-Za-z0-9_+=.@:/-]{1,256}")
_KEY_CHARACTERS = 256


class SecretScheme(NamedTuple):
    """A scheme: a row of tables/secret_schemes.csv."""

    name: str
    form: str
    """Form of its paths, for messages."""
    pattern: str
    """Regular expression of its paths."""
    options: tuple[str, ...]
    secret: str
    """Regular expression of a valid path whose only group is the secret without its version."""
    granted: tuple[str, ...]
    """Those of the options that need access of their own, such as to a key for decryption."""


class SecretReference(NamedTuple):
    """A valid reference."""

    scheme: str
    path: str
    options: Mapping[str, str]
    key: str
    """Key in the secret's JSON object; "": the whole secret."""


@cache
def schemes() -> Mapping[str, SecretScheme]:
    """Return the schemes by name."""
    rows = csv_tables.rows("secret_schemes", "scheme", "form", "pattern", "options", "secret", "granted")
    return {
        name: SecretScheme(name, form, pattern, tuple(options.split()), secret, tuple(granted.split()))
        for name, form, pattern, options, secret, granted in rows
    }


def scheme_of(source: str) -> str:
    """Return the scheme of a secret's source; "": it is no reference."""
    scheme, separator, _ = source.partition("://")
    return scheme if separator else ""


def parse(text: str) -> SecretReference:
    """Parse a reference. Raises ValueError, whose message says what is expected and never repeats the text: a value
    may have been written instead."""
    known = schemes()
    scheme = known.get(scheme_of(text))
    if scheme is None:
        suggestion = did_you_mean(scheme_of(text), known, 1)
        names = one_of([f"{name}://" for name in known])
        raise ValueError(f"expected a reference that begins with {names}" + (f"; {suggestion}" if suggestion else ""))
    address, mark, key = text.partition("://")[2].partition("#")
    path, question, query = address.partition("?")
    if not re.fullmatch(scheme.pattern, path):
        raise ValueError(f"expected {scheme.name}://{scheme.form}")
    if mark and not (key and key.isprintable() and len(key) <= _KEY_CHARACTERS):
        raise ValueError("expected a key of the secret's JSON object after #, as in #password")
    return SecretReference(scheme.name, path, _options(scheme, query.split("&") if question else ()), key)


def granted_by(text: str) -> str:
    """Return a valid reference to the secret itself, for which access is granted: without version and key, but with
    the options that need access of their own."""
    found = parse(text)
    scheme = schemes()[found.scheme]
    path = re.fullmatch(scheme.secret, found.path)
    options = "&".join(f"{name}={found.options[name]}" for name in scheme.granted if name in found.options)
    return f"{found.scheme}://{path[1] if path else found.path}" + (f"?{options}" if options else "")


def grants(references: Iterable[str]) -> list[str]:
    """Return granted_by() of valid references, each once, and without those that another one includes."""
    found = list(dict.fromkeys(map(granted_by, references)))
    return [one for one in found if not any(other.startswith(f"{one}?") for other in found)]


def is_granted(text: str, granted: Iterable[str]) -> bool:
    """Return True if one of `granted`, which are granted_by() of references, includes access to this valid one."""
    wanted = granted_by(text)
    return any(one == wanted or one.startswith(f"{wanted}?") for one in granted)


def _options(scheme: SecretScheme, pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in scheme.options or name in found or not _OPTION.fullmatch(value):
            allowed = one_of([f"{option}=VALUE" for option in scheme.options])
            raise ValueError(f"expected {allowed} after ?" if allowed else f"{scheme.name}:// takes no options after ?")
        found[name] = value
    return found
