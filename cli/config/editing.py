"""Change configuration files: keep their comments and layout, check every value first, write atomically."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ...jobspecs.configuration import keys
from ...jobspecs.configuration.effective import Value, as_override
from ...jobspecs.configuration.files import MAX_BYTES, PROJECT_FILE, ConfigError, parse, shown
from ...jobspecs.diagnostics import SpecError, quote
from ...jobspecs.home import config_file
from ..exit_codes import Exit
from ..shared.errors import CommandError

TEMPLATE = """\
# Configuration of cloudgpu; `cloudgpu config show` lists every key with its value.

[defaults]
# Values of job files that say nothing else.
# job_dir = {aws = "s3://BUCKET/FOLDER"}
# resources.region = ["us-east-1"]
# limits.price = "20 USD/h"

[settings]
# Values of environment variables that are not set.
# local_price = 1.50
"""
_LISTS = frozenset({"resources.cloud", "resources.region", "resources.market"})


def set_value(key: str, text: str, *, project_folder: Path | None) -> str:
    """Set a key in the user's file, or in the project's; return the file's name. Raises ConfigError, CommandError."""
    path = _file(project_folder)
    place = _place(key, is_project=project_folder is not None)
    value = _checked(key, text)
    document = _document(path)
    table: MutableMapping[str, Any] = document
    for step in place[:-1]:
        table = table.setdefault(step, _new_table())
        if not isinstance(table, MutableMapping):
            raise ConfigError(f"{shown(path)}: {step} is no table", "remove it, or run `cloudgpu config edit`")
    table[place[-1]] = value
    write(path, document.as_string())
    return shown(path)


def unset_value(key: str, *, project_folder: Path | None) -> tuple[str, bool]:
    """Remove a key; return the file's name, and whether the key was set. Raises ConfigError, CommandError."""
    path = _file(project_folder)
    place = _place(key, is_project=project_folder is not None)
    document = _document(path)
    tables: list[MutableMapping[str, Any]] = [document]
    for step in place[:-1]:
        inner = tables[-1].get(step)
        if not isinstance(inner, MutableMapping):
            return shown(path), False
        tables.append(inner)
    if place[-1] not in tables[-1]:
        return shown(path), False
    for table, step in zip(reversed(tables), reversed(place), strict=True):
        del table[step]
        if table or step == place[0]:
            break
    write(path, document.as_string())
    return shown(path), True


def check_file(path: Path) -> None:
    """Check a user's file: syntax, keys and every value. Raises ConfigError."""
    content = _document(path).unwrap()
    file = parse(content, path)
    for key, value in file.defaults.items():
        _check_default(Value(key, value, shown(path)))


def write(path: Path, text: str) -> None:
    """Write a file atomically; a new one and its folder are accessible by their owner only. Raises OSError."""
    from ...storage import durable

    path = path.resolve()  # a symbolic link, as dotfile managers make, stays one
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = text if text.endswith("\n") else f"{text}\n"
    durable.write(path, text.encode(), mode=path.stat().st_mode & 0o777 if path.exists() else 0o600)


def _file(project_folder: Path | None) -> Path:
    """Return the file to change: the nearest pyproject.toml from `project_folder` upwards, or the user's file."""
    if project_folder is None:
        return config_file()
    for folder in (project_folder, *project_folder.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        if (folder / ".git").exists():
            break
    raise CommandError(
        f"there is no {PROJECT_FILE} here", hint="create one, or leave out --project", exit_code=Exit.USAGE
    )


def _place(key: str, *, is_project: bool) -> list[str]:
    """Return the path of a key in its file. Raises CommandError for an unknown key."""
    default = keys.default_of(key)
    if default is not None:
        inside = [key[len(default) + 1 :]] if key != default else []  # one key: a label's name may have dots
        return [*(["tool", "cloudgpu"] if is_project else []), "defaults", *default.split("."), *inside]
    if key not in keys.settings():
        raise CommandError(f"there is no key {quote(key)}", hint=keys.suggestion(key), exit_code=Exit.USAGE)
    if is_project:
        message = f"{key} is a setting of this computer: a project's file has only defaults of job files"
        raise CommandError(message, hint="leave out --project", exit_code=Exit.USAGE)
    return ["settings", key]


def _checked(key: str, text: str) -> str | list[str]:
    """Return the value to write. Raises CommandError if it is invalid."""
    setting = keys.settings().get(key)
    if setting is not None:
        mistake = keys.setting_mistake(setting, text)
        if mistake:
            raise CommandError(f"{key}: {mistake}", exit_code=Exit.INVALID)
        return text
    value = [part.strip() for part in text.split(",")] if key in _LISTS and "," in text else text
    default = keys.default_of(key) or key
    inside = {key[len(default) + 1 :]: value} if default != key else value
    _check_default(Value(default, inside, ""))
    return value


def _check_default(value: Value) -> None:
    """Check a default as the value of a job file. Raises ConfigError."""
    from ...jobspecs.loading.loader import load_text

    try:
        load_text("name: check\nrun: 'true'\n", overrides=[as_override(value)._replace(unless=())])
    except SpecError as error:
        first = error.diagnostics[0]
        raise ConfigError(f"{first.file}: {first.message}", first.hint) from None


def _document(path: Path) -> Any:  # a tomlkit document
    """Read a file for a change; an empty document if there is none. Raises ConfigError, OSError."""
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        data = path.read_bytes() if path.is_file() else b""
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{shown(path)} has {len(data):,} bytes; the limit is {MAX_BYTES:,}")
        return tomlkit.parse(data)
    except (ParseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown(path)} is no valid TOML: {error}", "run `cloudgpu config edit`") from None


def _new_table() -> Any:  # a tomlkit table
    import tomlkit

    return tomlkit.table()
