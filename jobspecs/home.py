"""State directory and configuration file of cloudgpu on this computer."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

HOME_VARIABLE = "CLOUDGPU_HOME"
"""Environment variable with the state directory; default: in the user's data directory."""
CONFIG_VARIABLE = "CLOUDGPU_CONFIG"
"""Environment variable with the configuration file; default: `config.toml` in the user's configuration directory."""
_NAME = "cloudgpu"
_ON_LINUX: bool = sys.platform == "linux"


def home() -> Path:
    """Return the absolute path of the state directory, which may not exist yet; private() creates it.

    Raises OSError if the user's home folder is unknown, or if the path is not UTF-8, as a database URL requires.
    """
    given = _given(HOME_VARIABLE)
    if given is not None:
        return given
    if _ON_LINUX:  # same as platformdirs (a test compares them), whose import takes a third of Python's start time
        return _xdg("XDG_DATA_HOME", "~/.local/share")
    import platformdirs

    return Path(platformdirs.user_data_dir(_NAME, appauthor=False))


def config_file() -> Path:
    """Return the path of the user's configuration file, absolute; the file may not exist.

    Raises OSError if the user's home folder is unknown, or if the path is not UTF-8.
    """
    given = _given(CONFIG_VARIABLE)
    if given is not None:
        return given
    if _ON_LINUX:
        return _xdg("XDG_CONFIG_HOME", "~/.config") / "config.toml"
    import platformdirs

    return Path(platformdirs.user_config_dir(_NAME, appauthor=False)) / "config.toml"


def _given(variable: str) -> Path | None:
    for name in (variable, "HOME"):
        _check_utf8(name)
    given = os.environ.get(variable)
    return _expanded(given, variable).absolute() if given else None


def _xdg(variable: str, default: str) -> Path:
    _check_utf8(variable)
    folder = os.environ.get(variable, "").strip()
    return (Path(folder) if os.path.isabs(folder) else _expanded(default)) / _NAME  # noqa: PTH117


def _check_utf8(name: str) -> None:
    value = os.environ.get(name, "")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OSError(f"{name} is {value!a}, which is not UTF-8: give it another folder") from None


def private(folder: Path) -> Path:
    """Create a folder that only its owner can access, with its parents; return it.

    If it is in the state directory, the state directory is created first, and made private if this user owns it. Raises
    OSError.
    """
    state = home()
    if folder.is_relative_to(state):
        _make(state)
        if (found := state.stat()).st_uid == os.getuid() and found.st_mode & 0o077:
            with suppress(OSError):  # a file system that is read-only or has no modes
                state.chmod(0o700)
    _make(folder)
    return folder


def _make(folder: Path) -> None:
    """Create the folder; unlike Path.mkdir(parents=True), give missing parents the same mode."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _expanded(path: str, variable: str = HOME_VARIABLE) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # an account without an entry, as in some containers, or a typo
        message = f"{path}: whose folder `~` stands for is not known here: set {variable} to a whole path"
        raise OSError(message) from error
