"""Pulumi.yaml and Pulumi.<stack>.yaml in the command's working directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .backend import BackendError
from .secrets import Crypter


class Project:
    """Contents of Pulumi.yaml."""

    def __init__(self, folder: Path) -> None:
        """Read the project file in this folder. Raises BackendError."""
        found = [folder / f"Pulumi{suffix}" for suffix in (".yaml", ".yml", ".json")]
        path = next((one for one in found if one.exists()), None)
        if path is None:
            raise BackendError(
                f"no Pulumi.yaml project file found (searching upwards from {folder}). If you have not created a "
                "project yet, use `pulumi new` to do so"
            )
        self._told: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self.name = str(self._told["name"])
        self.folder = folder

    @property
    def backend(self) -> str | None:
        """URL of the backend, if the project has one."""
        return (self._told.get("backend") or {}).get("url")


class Settings:
    """Contents of Pulumi.<stack>.yaml: the stack's configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._told = self._told or {}

    @property
    def salt(self) -> str | None:
        return self._told.get("encryptionsalt")

    @salt.setter
    def salt(self, salt: str) -> None:
        self._told["encryptionsalt"] = salt

    def crypter(self, of_state: str | None) -> Crypter:
        """Return a crypter with the salt of the settings, of the state, or with a new one, which is saved."""
        known = self.salt or of_state
        crypter = Crypter(known) if known else Crypter.new()
        if self.salt is None:
            self.salt = crypter.state
            self.save()
        return crypter

    def save(self) -> None:
        self.path.write_text(yaml.safe_dump(self._told), encoding="utf-8")

    @property
    def config(self) -> dict[str, Any]:
        """Values by full key; a secret is `{"secure": …}`."""
        return dict(self._told.get("config") or {})

    @config.setter
    def config(self, config: dict[str, Any]) -> None:
        self._told["config"] = config

    def plain(self, crypter: Crypter) -> dict[str, tuple[str, bool]]:
        """Return the values as text and whether they are secret, by full key."""
        return {key: _opened(value, crypter) for key, value in self.config.items()}


def _opened(value: Any, crypter: Crypter) -> tuple[str, bool]:
    if isinstance(value, dict) and set(value) == {"secure"}:
        return str(crypter.decrypt(value["secure"])), True
    if isinstance(value, bool):
        return str(value).lower(), False
    return str(value), False
