"""Where stacks are remembered: a folder of this computer, or a bucket that a team shares; and what opens it.

Pulumi encrypts with a passphrase what providers call secret. Nothing that cloudgpu puts into a stack is; but without
the passphrase a stack cannot be read, so it is kept where it is not lost: beside the states of this computer, or by the
team that shares a backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ...jobspecs.home import home, private
from ..errors import BadRequestError, InfraError

VARIABLE = "CLOUDGPU_INFRA_BACKEND"
_SCHEMES = ("file", "s3", "gs", "azblob")
_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
_HOME = "PULUMI_HOME"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_AZURE_ACCOUNT = "AZURE_STORAGE_ACCOUNT"
_AZURE_NAMES = {
    _AZURE_ACCOUNT: (_AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_NAME"),
    "AZURE_STORAGE_KEY": (
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
    ),
    "AZURE_STORAGE_SAS_TOKEN": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
}
"""Variable that the engine reads -> variables that job dirs on Azure are opened with, the first that is set."""

_OPENING = re.compile(r"blob \(code=|unable to open bucket|DefaultAzureCredential|unable to find gcp credentials")
_ANOTHER = f"correct it, or name another backend with --backend or {VARIABLE}"
_LOG_IN = "log in as for the cloud's own tools (docs/guides/infra.md, Backends), then run the command again"
_FAULTS = (
    (
        re.compile(r"code=NotFound"),
        "is not there: its bucket does not exist, or these credentials may not see it",
        f"create the bucket, or name another backend with --backend or {VARIABLE}",
    ),
    (
        re.compile(r"DefaultAzureCredential|credentials|code=Unauthenticated", re.I),
        "cannot be opened: Pulumi's engine finds no credentials for it",
        _LOG_IN,
    ),
    (
        re.compile(r"code=PermissionDenied"),
        "cannot be opened: these credentials may not read and write there",
        "use others, or have their owner allow it, then run the command again",
    ),
)
"""Pattern of the engine's message on a bucket, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Where states, histories and locks of stacks are."""

    url: str
    """As Pulumi takes it, e.g. `s3://bucket/folder?region=eu-west-1`."""

    @property
    def shared(self) -> bool:
        """Other computers may reach it."""
        return not self.url.startswith("file:")

    def folder(self, stack: str) -> Path:
        """Of this computer's own files for a stack: made if need be, for nobody else to look into. Raises InfraError.

        One for each backend: stacks of the same name in two of them have nothing to do with each other.
        """
        key = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return _private(home() / "infra" / "stacks" / key / stack)


def backend_of(given: str | None, environ: Mapping[str, str]) -> Backend:
    """The backend of an option, else of CLOUDGPU_INFRA_BACKEND, else a folder in the state directory.

    Raises BadRequestError for a URL that is none of ours, InfraError if the folder cannot be made.
    """
    url = given or environ.get(VARIABLE) or f"file://{home() / 'infra' / 'state'}"
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        hint = "write file:///FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or azblob://CONTAINER/FOLDER"
        raise BadRequestError(f"{url} is no backend that cloudgpu keeps stacks in", hint)
    if parts.username is not None or parts.password is not None:
        # Not shown: it may be a password.
        raise BadRequestError(
            "a backend's URL names no user and no password", "give them as the cloud's tools take them"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "~") or not parts.path.strip("/"):
            raise BadRequestError(f"{url} names no folder", "write file:///FOLDER, with three slashes")
        folder = Path(f"~{parts.path}").expanduser() if parts.netloc else Path(parts.path)
        return Backend(f"file://{_private(folder)}")
    if not parts.netloc:
        raise BadRequestError(f"{url} names no bucket", f"write {parts.scheme}://BUCKET/FOLDER")
    return Backend(url)


def environment(backend: Backend, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for every process of the engine: the backend, the passphrase's file, a home apart from the user's own.

    Raises BadRequestError for a shared backend without a passphrase, InfraError.
    """
    found = {
        "PULUMI_BACKEND_URL": backend.url,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Providers' plugins are kept there, and nothing else of worth: no login, no token.
        _HOME: environ.get(_HOME) or str(_private(home() / "infra" / "pulumi")),
        **_as_the_engine_reads_it(backend.url, environ),
    }
    if any(name in environ for name in _PASSPHRASES):  # it may be empty on purpose
        return found
    if backend.shared:
        hint = (
            f"set {_PASSPHRASES[1]} to a file all of you have the same of, or {_PASSPHRASES[0]}= (empty): "
            "cloudgpu keeps no secret in its stacks"
        )
        raise BadRequestError(
            f"{backend.url} is shared, and its stacks need the passphrase of those who share it", hint
        )
    return {**found, _PASSPHRASES[1]: str(_own_passphrase())}


def _as_the_engine_reads_it(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that other clients of a cloud's buckets take otherwise than the engine (gocloud.dev/blob)."""
    parts = urlsplit(url)
    if parts.scheme == "gs":
        emulator = environ.get(_EMULATOR, "")  # a URL; the engine puts the scheme before it
        return {_EMULATOR: emulator.removeprefix("http://")} if emulator else {}
    if parts.scheme != "azblob":
        return {}
    account = dict(parse_qsl(parts.query)).get("storage_account")
    found = {
        name: next((environ[one] for one in names if environ.get(one)), "") for name, names in _AZURE_NAMES.items()
    }
    if account and not found[_AZURE_ACCOUNT]:  # without it the engine takes no key
        found[_AZURE_ACCOUNT] = account
    return {name: value.removeprefix("?") for name, value in found.items() if value}


def explained(url: str, said: str) -> InfraError | None:
    """Return what the engine said of the bucket that it could not open, as users need it; None: it is of another thing.

    The engine's own text has request ids, and not the bucket's name.
    """
    if not _OPENING.search(said):
        return None
    for pattern, message, hint in _FAULTS:
        if pattern.search(said):
            return InfraError(f"{url} {message}", hint)
    return InfraError(f"{url} cannot be opened: {said}", _ANOTHER)


def _own_passphrase() -> Path:
    """The file with this computer's passphrase, made on first use. Raises InfraError."""
    path = _private(home() / "infra") / "passphrase"
    with contextlib.suppress(FileExistsError), _told(path):
        _write_once(path, secrets.token_urlsafe(32))
    return path


def _write_once(path: Path, text: str) -> None:
    """All of it or nothing, and never over what is there. Raises FileExistsError, OSError."""
    if path.exists():
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, path)
    finally:
        new.unlink()


def _private(folder: Path) -> Path:
    with _told(folder):
        return private(folder)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise InfraError(f"{path} cannot be used: {error.strerror or error}") from error
