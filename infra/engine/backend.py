"""State backends of stacks: a local folder, or a bucket shared by a team; and their passphrase and credentials.

Pulumi encrypts secret values with a passphrase. cloudgpu stores no secrets in stacks, but a stack cannot be read
without its passphrase. A local backend keeps it next to its states; a team that shares a backend must supply it.
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
"""Variable that the engine reads -> variables used for Azure job dirs, in order of precedence."""

_OPENING = re.compile(r"blob \(code=|unable to open bucket|DefaultAzureCredential|unable to find gcp credentials")
_ANOTHER = f"correct it, or name another backend with --backend or {VARIABLE}"
_LOG_IN = "log in as for the cloud's own tools (docs/guides/infra.md, Backends), then run the command again"
_FAULTS = (
    (
        re.compile(r"code=NotFound"),
        "was not found: its bucket does not exist, or these credentials have no access to it",
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
"""Pattern of the engine's error about a bucket, message, and hint."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Storage of stacks' states, histories and locks."""

    url: str
    """URL in Pulumi's format, e.g. `s3://bucket/folder?region=eu-west-1`."""

    @property
    def shared(self) -> bool:
        """True if other computers may have access to the backend."""
        return not self.url.startswith("file:")

    def folder(self, stack: str) -> Path:
        """Return the folder for this computer's files of a stack, created with private permissions. Raises InfraError.

        The path includes a hash of the backend's URL, so stacks with the same name in two backends are independent.
        """
        key = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return _private(home() / "infra" / "stacks" / key / stack)


def backend_of(given: str | None, environ: Mapping[str, str]) -> Backend:
    """Return the backend of the option, of CLOUDGPU_INFRA_BACKEND, or a folder in the state directory.

    Raises BadRequestError for an unsupported URL, InfraError if the folder cannot be created.
    """
    url = given or environ.get(VARIABLE) or f"file://{home() / 'infra' / 'state'}"
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        hint = "write file:///FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or azblob://CONTAINER/FOLDER"
        raise BadRequestError(f"{url} is no backend that cloudgpu keeps stacks in", hint)
    if parts.username is not None or parts.password is not None:
        # The URL is not shown: it may contain a password.
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
    """Return environment variables for engine processes: backend, passphrase file, and a separate PULUMI_HOME.

    Raises BadRequestError for a shared backend without a passphrase, InfraError.
    """
    found = {
        "PULUMI_BACKEND_URL": backend.url,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Holds only provider plugins: no login, no token.
        _HOME: environ.get(_HOME) or str(_private(home() / "infra" / "pulumi")),
        **_as_the_engine_reads_it(backend.url, environ),
    }
    if any(name in environ for name in _PASSPHRASES):  # an empty passphrase is valid
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
    """Return the environment variables whose form for the engine (gocloud.dev/blob) differs from the clouds' tools."""
    parts = urlsplit(url)
    if parts.scheme == "gs":
        emulator = environ.get(_EMULATOR, "")  # a URL; the engine adds the scheme itself
        return {_EMULATOR: emulator.removeprefix("http://")} if emulator else {}
    if parts.scheme != "azblob":
        return {}
    account = dict(parse_qsl(parts.query)).get("storage_account")
    found = {
        name: next((environ[one] for one in names if environ.get(one)), "") for name, names in _AZURE_NAMES.items()
    }
    if account and not found[_AZURE_ACCOUNT]:  # the engine ignores the key without an account
        found[_AZURE_ACCOUNT] = account
    return {name: value.removeprefix("?") for name, value in found.items() if value}


def translate_bucket_error(url: str, said: str) -> InfraError | None:
    """Translate the engine's error about a bucket that it cannot open; None: the error is about something else.

    The engine's own message has request ids but not the bucket's name.
    """
    if not _OPENING.search(said):
        return None
    for pattern, message, hint in _FAULTS:
        if pattern.search(said):
            return InfraError(f"{url} {message}", hint)
    return InfraError(f"{url} cannot be opened: {said}", _ANOTHER)


def _own_passphrase() -> Path:
    """Return the file with this computer's passphrase, created on first use. Raises InfraError."""
    path = _private(home() / "infra") / "passphrase"
    with contextlib.suppress(FileExistsError), _translate_os_errors(path):
        _write_once(path, secrets.token_urlsafe(32))
    return path


def _write_once(path: Path, text: str) -> None:
    """Write a file atomically and never overwrite an existing one. Raises FileExistsError, OSError."""
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
    with _translate_os_errors(folder):
        return private(folder)


@contextlib.contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise InfraError(f"{path} cannot be used: {error.strerror or error}") from error
