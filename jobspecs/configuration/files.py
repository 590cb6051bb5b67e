"""Find and read configuration files: the user's config.toml, and `[tool.cloudgpu]` of a project's pyproject.toml."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..diagnostics import quote, shorten
from ..home import config_file
from . import keys

MAX_BYTES = 1_000_000
PROJECT_FILE = "pyproject.toml"


class ConfigError(Exception):
    """Invalid configuration file; the message names the file and the key."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigFile(NamedTuple):
    """Values of one configuration file."""

    path: Path
    defaults: Mapping[str, Any] = {}
    """Key of keys.DEFAULTS -> texts, or lists and mappings of them, as in a job file."""
    settings: Mapping[str, str] = {}
    """Name of a setting -> value."""

    @property
    def name(self) -> str:
        """The path for messages, with `~` for the home folder."""
        return shown(self.path)


def shown(path: Path) -> str:
    """Return a path for messages, with `~` for the home folder."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises without a home folder
    text = str(path)
    return shorten("~" + text[len(home) :] if text.startswith(home + os.sep) else text, 300)


def user_file() -> ConfigFile | None:
    """Read the user's file; None if there is none. Raises ConfigError, OSError."""
    path = config_file()
    data = _read(path)
    return None if data is None else parse(_decode(data, path), path)


def project_file(folder: Path) -> ConfigFile | None:
    """Read `[tool.cloudgpu]` of the nearest pyproject.toml in `folder` or above it, up to the repository's root.

    Returns None if no file has that table. Folders above the home folder are not searched. Raises ConfigError, OSError.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises without a home folder
    for place in (folder, *folder.parents):
        path = place / PROJECT_FILE
        data = _read(path)
        if data is not None and b"cloudgpu" in data:  # else the TOML reader need not be imported
            table = _decode(data, path).get("tool")
            if isinstance(table, Mapping) and "cloudgpu" in table:
                return parse(table["cloudgpu"], path, within="tool.cloudgpu")
        if place == home or (place / ".git").exists():
            return None
    return None


def parse(content: Any, path: Path, within: str = "") -> ConfigFile:
    """Check the keys of a file's content, and flatten its tables. Raises ConfigError.

    `within`: the table of a project's file that `content` is. It has defaults only: a project that was cloned from
    elsewhere must not change where the user's own state is kept.
    """
    _require_table(content, within or "the file", path)
    known = ("defaults",) if within else ("defaults", "settings")
    for section in content:
        if section not in known:
            message = f"{shown(path)}: there is no table {quote(f'{within}.{section}'.lstrip('.'))}"
            raise ConfigError(message, f"the tables are {' and '.join(known)}")
    prefix = f"{within}." if within else ""
    defaults, settings = content.get("defaults", {}), content.get("settings", {})
    _require_table(defaults, f"{prefix}defaults", path)
    _require_table(settings, f"{prefix}settings", path)
    return ConfigFile(
        path,
        dict(_flatten(defaults, path, f"{prefix}defaults")),
        {k: _setting(k, v, path) for k, v in settings.items()},
    )


def _read(path: Path) -> bytes | None:
    """Return the bytes of a file; None if there is none. Raises ConfigError, OSError."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{shown(path)} is no regular file")
    if found.st_size > MAX_BYTES:
        raise ConfigError(f"{shown(path)} has {found.st_size:,} bytes; the limit is {MAX_BYTES:,}")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _decode(data: bytes, path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ConfigError."""
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown(path)} is not UTF-8 (byte {error.start + 1})", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{shown(path)} is no valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{shown(path)} is nested too deeply") from None


def _require_table(value: object, name: str, path: Path) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(path)}: {name} must be a table")


def _flatten(table: Mapping[str, Any], path: Path, section: str, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by their dotted keys."""
    for name, value in table.items():
        key = f"{before}{name}"
        if key in keys.DEFAULTS:
            yield key, _texts(value, f"{section}.{key}", path)
        elif isinstance(value, Mapping) and any(known.startswith(f"{key}.") for known in keys.DEFAULTS):
            yield from _flatten(value, path, section, f"{key}.")
        elif keys.default_of(key):
            raise ConfigError(f"{shown(path)}: write {section}.{key.partition('.')[0]} as a table")
        else:
            raise ConfigError(f"{shown(path)}: there is no key {quote(f'{section}.{key}')}", keys.suggestion(key))


def _texts(value: Any, name: str, path: Path) -> Any:
    """Return a TOML value as the job file's reader would: numbers and booleans as texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return [_texts(item, name, path) for item in value]
    if isinstance(value, Mapping):
        return {key: _texts(item, name, path) for key, item in value.items()}
    raise ConfigError(f"{shown(path)}: {name} must be a text, a number, a list or a table")


def _setting(name: str, value: Any, path: Path) -> str:
    setting = keys.settings().get(name)
    if setting is None:
        raise ConfigError(f"{shown(path)}: there is no setting {quote(name)}", keys.suggestion(name))
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    mistake = keys.setting_mistake(setting, text)
    if mistake:
        raise ConfigError(f"{shown(path)}: settings.{name}: {mistake}")
    return text
