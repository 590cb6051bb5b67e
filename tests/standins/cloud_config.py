"""Parser for cloud-init user data (`#cloud-config`) that accepts only the keys used by cloudgpu.

It follows cloud-init's module reference (write_files, runcmd, bootcmd) and its schema. An unknown key or a value of the
wrong type is an error here, while cloud-init would only warn and ignore it.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

HEAD = "#cloud-config\n"
Command = str | list[str]

_DECODERS: dict[str, Callable[[str], bytes]] = {
    "text/plain": str.encode,
    "b64": lambda text: base64.b64decode(text, validate=True),
    "base64": lambda text: base64.b64decode(text, validate=True),
    "gz+b64": lambda text: gzip.decompress(base64.b64decode(text, validate=True)),
    "gzip+base64": lambda text: gzip.decompress(base64.b64decode(text, validate=True)),
}
_FILE_KEYS = {"path", "content", "encoding", "owner", "permissions"}


class UserDataError(ValueError):
    """User data that cloud-init would ignore or misinterpret."""


@dataclass(frozen=True)
class File:
    """One entry of write_files."""

    path: str
    content: bytes
    mode: int


@dataclass(frozen=True)
class CloudConfig:
    """Actions of the first boot; `bootcmd` runs on every boot."""

    files: tuple[File, ...]
    runcmd: tuple[Command, ...]
    bootcmd: tuple[Command, ...]


def read(text: str) -> CloudConfig:
    """Parse user data. Raises UserDataError."""
    if not text.startswith(HEAD):
        raise UserDataError(f"user data begins with {text[:20]!r}, not with {HEAD!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserDataError(f"user data is no YAML: {error}") from error
    if not isinstance(value, dict):
        raise UserDataError("user data is no mapping")
    _check_keys("cloud-config", value, {"write_files", "runcmd", "bootcmd"})
    files = tuple(_file(item) for item in _items(value, "write_files"))
    return CloudConfig(files, _commands(value, "runcmd"), _commands(value, "bootcmd"))


def _file(item: Any) -> File:
    if not isinstance(item, dict):
        raise UserDataError(f"write_files: {item!r} is no mapping")
    _check_keys("write_files", item, _FILE_KEYS)
    texts = {key: item.get(key, default) for key, default in (("path", ""), ("content", ""), ("permissions", "0644"))}
    if not all(isinstance(text, str) for text in (*texts.values(), item.get("owner", ""))):
        raise UserDataError(f"write_files: {item.get('path')}: every value must be text")
    if not texts["path"].startswith("/"):
        raise UserDataError(f"write_files: {texts['path']!r} is no absolute path")
    encoding = item.get("encoding", "text/plain")
    if encoding not in _DECODERS:
        raise UserDataError(f"write_files: {texts['path']}: unknown encoding {encoding!r}")
    try:
        return File(texts["path"], _DECODERS[encoding](texts["content"]), int(texts["permissions"], 8))
    except (ValueError, OSError, EOFError) as error:
        raise UserDataError(f"write_files: {texts['path']}: {error}") from error


def _commands(value: dict[str, Any], key: str) -> tuple[Command, ...]:
    commands = _items(value, key)
    for command in commands:
        words = command if isinstance(command, list) else [command]
        if not words or not all(isinstance(word, str) for word in words):
            raise UserDataError(f"{key}: {command!r} is neither text nor a list of texts")
    return tuple(commands)


def _items(value: dict[str, Any], key: str) -> list[Any]:
    items = value.get(key, [])
    if not isinstance(items, list):
        raise UserDataError(f"{key} is no list")
    return items


def _check_keys(where: str, value: dict[str, Any], known: set[str]) -> None:
    if unknown := set(value) - known:
        raise UserDataError(f"{where}: unknown keys {', '.join(map(str, sorted(unknown)))}")
