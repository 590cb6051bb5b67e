"""Read the values of secrets on the submitter's computer: variables of the shell, files, and dotenv files."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ...jobspecs.secrets import ENV, ENV_FILE, FILE, LEAST_CHARACTERS, MOST_BYTES
from ..errors import SourceError

PATH_KINDS = (FILE, ENV_FILE)
_ENV_FILE_BYTES = 1 << 20
_ALL_BYTES = 1 << 20
"""Maximum size of all values of a job together, in bytes."""


def absolute(secrets: Mapping[str, str], base: Path) -> dict[str, str]:
    """Return the sources with absolute paths, as a supervisor reads them in another folder. Raises SourceError."""
    found = {}
    for name, source in secrets.items():
        kind, _, rest = source.partition(":")
        found[name] = source
        if kind in PATH_KINDS:
            try:
                found[name] = f"{kind}:{(base / Path(rest).expanduser()).absolute()}"
            except RuntimeError as error:
                raise SourceError(f"the secret {name}: whose folder `~` stands for is not known here") from error
    return found


def files_of(sources: Mapping[str, str]) -> list[Path]:
    """Return the files of sources with absolute paths: they are not shipped with the code."""
    parts = (source.partition(":") for source in sources.values())
    return [Path(path) for kind, _, path in parts if kind in PATH_KINDS]


def read_values(sources: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of sources with absolute paths, name -> value. Raises SourceError with every problem."""
    found, problems = {}, []
    env_files: dict[str, dict[str, str]] = {}
    for name, source in sources.items():
        try:
            found[name] = _checked(name, _read(name, source, environ, env_files))
        except SourceError as error:
            problems.append(str(error))
    if sum(len(value.encode()) for value in found.values()) > _ALL_BYTES:
        problems.append(f"the secrets have more than {_ALL_BYTES >> 20} MiB together: put large ones into files")
    if problems:
        raise SourceError("; ".join(problems))
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a dotenv file, whose values are taken as written. Raises SourceError."""
    from dotenv.parser import parse_stream

    text = _text(path, _ENV_FILE_BYTES)
    found: dict[str, str] = {}
    for entry in parse_stream(io.StringIO(text)):
        if entry.error or (entry.key is not None and entry.value is None):
            raise SourceError(f"{path}:{entry.original.line}: expected NAME=VALUE, as in a dotenv file")
        if entry.key is not None and entry.value is not None:
            found[entry.key] = entry.value
    return found


def _read(name: str, source: str, environ: Mapping[str, str], env_files: dict[str, dict[str, str]]) -> str:
    kind, _, rest = source.partition(":")
    if kind == ENV:
        if rest not in environ:
            raise SourceError(f"the secret {name}: the variable {rest} is not set here: export it first")
        return environ[rest]
    try:
        if kind == FILE:
            return _without_line_end(_text(Path(rest), MOST_BYTES))
        if rest not in env_files:
            env_files[rest] = read_env_file(Path(rest))
    except SourceError as error:
        raise SourceError(f"the secret {name}: {error}") from error
    if name not in env_files[rest]:
        raise SourceError(f"the secret {name}: {rest} has no {name}")
    return env_files[rest][name]


def _text(path: Path, most: int) -> str:
    """Return the text of a file of limited size. Raises SourceError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO must not hang
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceError(f"{path} is not a file")
            data = file.read(most + 1)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise SourceError(f"{path} has more than {most >> 10} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SourceError(f"{path} is no text in UTF-8") from None


def _without_line_end(text: str) -> str:
    """Return a file's text without one line end at its end, which editors and `echo` add."""
    return text.removesuffix("\n").removesuffix("\r")


def _checked(name: str, value: str) -> str:
    """Return a value that a variable can hold and a log can mask. Raises SourceError."""
    if "\0" in value:
        raise SourceError(f"the secret {name} has a NUL character, which no variable can hold")
    if len(value) < LEAST_CHARACTERS:
        has = "is empty" if not value else f"has fewer than {LEAST_CHARACTERS} characters"
        raise SourceError(f"the secret {name} {has}: it could not be masked in the log; use `env:` if it is no secret")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SourceError(f"the secret {name} is no text in UTF-8") from None
    if size > MOST_BYTES:
        raise SourceError(f"the secret {name} has more than {MOST_BYTES >> 10} KiB: put it into a file")
    return value
