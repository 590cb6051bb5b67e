"""Blob Storage: Microsoft's emulator Azurite, over TLS, with tokens as from Microsoft Entra ID.

    with Azurite(folder) as blobs:
        blobs.environ(token)          # for obstore and Azure's SDKs
        blobs.make_container("jobs")

`npm ci` in this folder installs it (`make env` does so where npm exists); without it, tests that need it are skipped
with a reason. Azurite checks only a token's audience, issuer and times: any token has full access.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

import pytest

from ..tls import make_certificate

ACCOUNT = "jobsoftests"
KEY = b64encode(b"the account's key").decode()
_FOLDER = Path(__file__).parent
_MAIN = _FOLDER / "node_modules/azurite/dist/src/blob/main.js"
_START_S = 180.0
_ANSWER_S = 180.0
_LISTENS = re.compile(r"listens on https://127\.0\.0\.1:(\d+)\n")
_OPTIONS = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent", "--oauth", "basic")


def needed() -> None:
    """Skip the test if Azurite is not installed."""
    if not _MAIN.is_file() or shutil.which("node") is None:
        pytest.skip(f"NOT CHECKED: Azurite is not installed: `npm ci` in {_FOLDER.name}/, with Node.js")


def a_token() -> str:
    """Return a token that Azurite accepts."""
    now = int(time.time())
    claims = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/a-tenant/"}
    result = claims | {"iat": now - 60, "nbf": now - 60, "exp": now + 86_400}
    head, body = ({"alg": "none", "typ": "JWT"}, result)
    return ".".join([*(urlsafe_b64encode(dumps(part).encode()).decode().rstrip("=") for part in (head, body)), "x"])


@contextlib.contextmanager
def shared(container: str) -> Iterator[Azurite]:
    """Provide an empty container in this process's shared Azurite, since each start takes seconds."""
    blobs = _shared()
    blobs.make_container(container)
    try:
        yield blobs
    finally:
        blobs.remove_container(container)


@functools.cache
def _shared() -> Azurite:
    needed()
    ending = contextlib.ExitStack()
    folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="cloudgpu-azurite-"))
    atexit.register(ending.close)
    return ending.enter_context(Azurite(Path(folder)))


class Azurite:
    """Azurite in a separate process. Its certificate is created in `folder` unless one with its key is given."""

    def __init__(self, folder: Path, certificate: Path | None = None, account: str = ACCOUNT) -> None:
        needed()
        self.account = account
        self.certificate = certificate or make_certificate(folder)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The account's URL, as in AZURE_STORAGE_ENDPOINT."""
        return f"https://127.0.0.1:{self.port}/{self.account}"

    def environ(self, token: str | None = None) -> dict[str, str]:
        """Return the environment of clients with full access; `token` "": without credentials."""
        result = {
            "AZURE_STORAGE_ENDPOINT": self.url,
            "SSL_CERT_FILE": str(self.certificate),
            "REQUESTS_CA_BUNDLE": str(self.certificate),
        }
        given = a_token() if token is None else token
        return result | {"AZURE_STORAGE_TOKEN": given} if given else result

    def make_container(self, name: str) -> None:
        self._ask("PUT", f"{name}?restype=container")

    def remove_container(self, name: str) -> None:
        self._ask("DELETE", f"{name}?restype=container")

    def blobs(self, container: str, prefix: str = "") -> dict[str, int]:
        """Return name -> bytes, for at most 5,000 blobs."""
        tree = ElementTree.fromstring(self._ask("GET", f"{container}?restype=container&comp=list&prefix={prefix}"))
        found = {}
        for blob in tree.iter("Blob"):
            found[blob.findtext("Name", "")] = int(blob.findtext("Properties/Content-Length", "0"))
        return found

    def __enter__(self) -> Self:
        environ = {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{KEY}"}
        options = [*_OPTIONS, "--cert", str(self.certificate), "--key", str(self.certificate)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["node", str(_MAIN), "--blobHost", "127.0.0.1", "--blobPort", "0", *options],
                env=environ,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.port = self._await()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def _log(self) -> Path:
        return self._folder / "azurite.log"

    def _await(self) -> int:
        """Wait until Azurite listens; return its port."""
        assert self._process is not None
        until = time.monotonic() + _START_S
        while (found := _LISTENS.search(self._log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise AssertionError(f"Azurite has not started: {self._log.read_text(errors='replace')}")
            time.sleep(0.1)
        return int(found[1])

    def _ask(self, method: str, what: str) -> bytes:
        headers = {"Authorization": f"Bearer {a_token()}", "x-ms-version": "2023-11-03", "Content-Length": "0"}
        request = urllib.request.Request(f"{self.url}/{what}", method=method, headers=headers)
        context = ssl.create_default_context(cafile=str(self.certificate))
        https = urllib.request.HTTPSHandler(context=context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        try:
            return bytes(opener.open(request, timeout=_ANSWER_S).read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Azurite: {method} {what}: {error.read().decode(errors='replace')}") from error
