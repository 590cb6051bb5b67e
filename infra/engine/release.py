"""Download of Pulumi's engine: an archive for each platform, verified against the release's checksums.

The checksums come over TLS from the same host: they detect a truncated, wrongly cached or altered download, but not a
release that was replaced together with its checksums.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from ...jobspecs.home import private
from ..errors import InfraError

RELEASES = "https://get.pulumi.com/releases/sdk"
_SYSTEMS = {"linux": "linux", "darwin": "darwin"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_SILENCE_S = 30.0
_BLOCK = 1 << 20
_LARGEST = 1 << 30
"""Limit of an archive's size in bytes."""


def fetch(version: str, root: Path, releases: str = RELEASES) -> None:
    """Download the engine and install its programs into `bin` of `root`.

    Raises InfraError for a checksum mismatch, OSError if the download fails.
    """
    name = archive_name(version)
    wanted = _checksum(_read(f"{releases}/pulumi-{version}-checksums.txt"), name)
    private(root)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        archive = Path(folder, name)
        with archive.open("wb") as file:
            found = _download(f"{releases}/{name}", file)
        if found != wanted:
            raise InfraError(
                f"{releases}/{name} has the sha256 {found}, and Pulumi says {wanted}: nothing is installed"
            )
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(folder, filter="data")
        shutil.rmtree(root / "bin", ignore_errors=True)
        Path(folder, "pulumi").rename(root / "bin")


def archive_name(version: str) -> str:
    """Return the name of this platform's archive of a release. Raises InfraError for an unsupported platform."""
    system, machine = _SYSTEMS.get(sys.platform), _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise InfraError(f"Pulumi's engine cannot be downloaded for {sys.platform} on {platform.machine()}")
    return f"pulumi-v{version}-{system}-{machine}.tar.gz"


def _checksum(listing: str, name: str) -> str:
    """Return an archive's checksum. Raises InfraError if the listing lacks it."""
    found = re.search(rf"^([0-9a-f]{{64}}) +\*?{re.escape(name)}$", listing, re.MULTILINE)
    if found is None:
        raise InfraError(f"Pulumi's checksums do not name {name}: nothing is installed")
    return found[1]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer:  # noqa: S310 - https except in tests
        return str(answer.read(_BLOCK).decode("ascii", "replace"))


def _download(url: str, file: IO[bytes]) -> str:
    """Write the response of a URL to the file; return its sha256. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer:  # noqa: S310 - https except in tests
        while block := answer.read(_BLOCK):
            digest.update(block)
            file.write(block)
            size += len(block)
            if size > _LARGEST:
                raise OSError(f"{url} has more than {_LARGEST} bytes")
    return digest.hexdigest()
