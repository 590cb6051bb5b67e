"""A job's virtual environment on the submitter's machine, on top of the submitter's packages (docs/guides/local.md).

    <state dir>/local/environments/<key>/<nonce>/    an environment, see create()
    <state dir>/local/environments/<key>/ready       name of the complete environment; written last, atomically
    <state dir>/local/environments/<key>/lock        held exclusively by a build or removal, shared by users

The environment of a setup that only installs packages is cached, under a hash of the packages. Any other setup may have
effects that cannot be cached: it runs in an environment in the machine's folder, which is removed with that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage import durable

if TYPE_CHECKING:
    from ..launchers import ProgramContext

KEPT_S = 7 * 86_400.0
"""Seconds without use after which a cached environment is removed."""
_TOOL_S = 300.0
_INSTALLERS = (("pip", "install"), ("pip3", "install"), ("uv", "pip", "install"))
_INDEXES = ("-i", "--index-url", "--extra-index-url", "--index", "--default-index")
_CHANGING = frozenset({"-e", "--editable", "-U", "--upgrade", "--target", "-t", "--prefix", "--user", "--root"})
"""Arguments with which the same command may install other packages next time, or install outside the environment."""
_CHANGING_LINE = re.compile(r"\s*(-e\b|--editable\b|file:|\.|/|~)|.*(://|@ )")
"""Lines of a requirements file whose text does not determine what is installed, such as local paths and URLs."""


class JobEnvironmentError(Exception):
    """An environment cannot be created; the message says why."""


# --- what a setup installs --------------------------------------------------------------------------------------------


def content_of(setup: str | Sequence[str], code: Path) -> str | None:
    """Return a hash of a setup's commands and of the requirements files that they name; None: do not cache the setup.

    It is None if the setup does more than install packages, or if the packages may differ the next time.

    setup: as in JobRecord
    code: the folder in which it runs
    """
    commands = _commands(setup)
    if not commands or not all(_is_install(words) for words in commands):
        return None
    digest = hashlib.sha256(json.dumps(commands).encode())
    for words in commands:
        for before, word in pairwise(["", *words]):
            if before in _INDEXES or word.startswith(tuple(f"{name}=" for name in _INDEXES)):
                continue
            path = code / word.rpartition("=")[2]
            if word in _CHANGING or "://" in word or word.startswith(("/", "~", "file:")) or path.is_dir():
                return None
            if path.is_file() and not _add_file(path, digest, set()):
                return None
    return digest.hexdigest()


def _commands(setup: str | Sequence[str]) -> list[list[str]] | None:
    """Split a setup into its commands; None if it uses shell syntax."""
    if not isinstance(setup, str):
        return [list(setup)]
    if re.search(r"[$`|<>(){}*?#&\\]", setup.replace("&&", "")):
        return None
    try:
        return [shlex.split(part) for part in re.split(r"&&|;|\n", setup) if part.strip()]
    except ValueError:
        return None


def _is_install(words: Sequence[str]) -> bool:
    if len(words) > 3 and words[0].startswith("python") and words[1] == "-m":
        words = words[2:]
    return any(tuple(words[: len(installer)]) == installer for installer in _INSTALLERS)


def _add_file(path: Path, digest: hashlib._Hash, seen: set[Path]) -> bool:
    """Hash a file and the requirements files that it includes.

    Return False if they do not determine the packages, such as with a local path or a URL.
    """
    if path in seen:
        return True
    seen.add(path)
    try:
        content = path.read_bytes()
    except OSError:
        return False
    digest.update(b"%d\n" % len(content) + content)
    if path.suffix not in (".txt", ".in"):
        return True
    for line in content.decode(errors="replace").splitlines():
        if line.strip().startswith(_INDEXES):
            continue
        if _CHANGING_LINE.match(line):
            return False
        found = re.match(r"\s*(?:-r|-c|--requirement|--constraint)[ =]*(\S+)", line)
        if found and not _add_file(path.parent / found[1], digest, seen):
            return False
    return True


# --- environments -----------------------------------------------------------------------------------------------------

_INSPECT = """
import json, os, sys
folders = [path for path in sys.path if path.rstrip('/').endswith(('site-packages', 'dist-packages'))]
installed = sorted(name for path in folders if os.path.isdir(path) for name in os.listdir(path) if '-info' in name)
print(json.dumps([sys.executable, sys.version, folders, installed]))
"""


def create(folder: Path, env: Mapping[str, str]) -> None:
    """Create a virtual environment that can import the packages of the `python` on PATH and leaves them unchanged.

    folder: must not exist yet
    env: the job's variables
    Raises JobEnvironmentError, OSError.
    """
    executable, _, packages, _ = _inspect(env)
    _run([executable, "-m", "venv", "--without-pip", str(folder)], env)
    python = folder / "bin" / "python"
    (own,) = (folder / "lib").glob("python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in packages]
    (own / "cloudgpu_submitter.pth").write_text("\n".join(lines) + "\n")
    _copy_scripts(Path(executable).parent, python)
    if not (folder / "bin" / "pip").exists():
        with contextlib.suppress(JobEnvironmentError):  # Debian's Python has no ensurepip; setup may not need pip
            _run([str(python), "-m", "ensurepip", "--default-pip"], env)


def inside(place: ProgramContext, folder: Path) -> ProgramContext:
    """Return a copy of the context in which the environment is activated: first on PATH, with VIRTUAL_ENV set."""
    job = place.job
    search_path = f"{folder / 'bin'}{os.pathsep}{job.search_path or os.defpath}"
    submitter_env = {**(job.submitter_env or {}), "VIRTUAL_ENV": str(folder)}
    return replace(place, job=replace(job, search_path=search_path, submitter_env=submitter_env))


def key(content: str, env: Mapping[str, str]) -> str:
    """Return the cache key for a setup's packages, the submitter's Python and its installed packages.

    content: from content_of()
    Raises JobEnvironmentError.
    """
    return hashlib.sha256(json.dumps([content, *_inspect(env)]).encode()).hexdigest()[:32]


def _inspect(env: Mapping[str, str]) -> tuple[str, str, list[str], list[str]]:
    """Return the submitter's Python, its version, its site-packages folders, and the packages installed there."""
    found = shutil.which("python", path=env.get("PATH")) or shutil.which("python3", path=env.get("PATH"))
    if found is None:
        raise JobEnvironmentError("there is no `python` on the PATH of the shell that submitted the job")
    executable, version, folders, installed = json.loads(_run([found, "-c", _INSPECT], env))
    return executable, version, folders, installed


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Run a command and return its output. Raises JobEnvironmentError."""
    try:
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=_TOOL_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobEnvironmentError(f"{shlex.join(command)}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise JobEnvironmentError(f"{shlex.join(command)} failed: {last}")
    return done.stdout


def _copy_scripts(source: Path, python: Path) -> None:
    """Copy the submitter's console scripts (pip, accelerate ...), with this environment's Python as interpreter."""
    for path in source.iterdir():
        target = python.with_name(path.name)
        if target.exists() or not path.is_file():
            continue
        with path.open("rb") as file:
            first = file.readline(1_000)
            if not re.fullmatch(rb"#!.*/python[\d.]*\s*", first):
                continue
            target.write_bytes(b"#!%s\n" % os.fsencode(python) + file.read())
        target.chmod(0o700)


# --- the cache --------------------------------------------------------------------------------------------------------


class Cached:
    """A cached environment. After use() or finish(), a shared lock prevents its removal until this process ends."""

    def __init__(self, parent: Path, key: str) -> None:
        self._folder = parent / key
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def use(self) -> Path | None:
        """Lock the environment (shared) and return its folder; None if it is not built yet, or is being built."""
        if not self._try(fcntl.LOCK_SH):
            return None
        found = self._ready()
        if found is None:
            self._unlock()
            return None
        with contextlib.suppress(OSError):
            (self._folder / "ready").touch()  # remove_unused() reads this time
        return found

    def begin(self) -> Path | None:
        """Lock the environment (exclusive), remove interrupted builds, and return a new folder to build in.

        Return None if another job is building the environment or has built it.
        """
        if not self._try(fcntl.LOCK_EX):
            return None
        if self._ready() is not None:  # built since use() was called
            self._unlock()
            return None
        for left in self._folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        return self._folder / uuid.uuid4().hex

    def finish(self, built: Path) -> None:
        """Publish a complete build, and replace the exclusive lock by a shared one."""
        durable.write(self._folder / "ready", built.name.encode())
        self._try(fcntl.LOCK_SH)

    def _ready(self) -> Path | None:
        with contextlib.suppress(OSError):
            found = self._folder / (self._folder / "ready").read_text()
            return found if found.is_dir() else None
        return None

    def _unlock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Prepared:
    """An environment for a job, complete or still to be set up."""

    folder: Path
    is_complete: bool
    """True if it came from the cache: its setup has been run."""
    finish: Callable[[], None]
    """Function to call when the setup has succeeded; it adds the environment to the cache."""


def prepare(
    setup: str | Sequence[str], code: Path, home: Path, env: Mapping[str, str], *, wait: Callable[[], None]
) -> Prepared:
    """Return the environment for a setup: from the cache, or a new one in which the setup must still run.

    code: the folder in which it runs
    home: the machine's folder, `<state dir>/local/<token>/<node>`
    env: the job's variables
    wait: called repeatedly while another job builds the same environment; sleeps for one poll interval
    Raises JobEnvironmentError, OSError, and what `wait` raises.
    """
    content = content_of(setup, code)
    if content is None:
        folder = home / "environment"
        create(folder, env)
        return Prepared(folder, is_complete=False, finish=lambda: None)
    parent = home.parents[1] / "environments"
    remove_unused(parent, time.time())
    cached = Cached(parent, key(content, env))
    while True:
        if (found := cached.use()) is not None:
            return Prepared(found, is_complete=True, finish=lambda: None)
        if (fresh := cached.begin()) is not None:
            create(fresh, env)
            return Prepared(fresh, is_complete=False, finish=lambda: cached.finish(fresh))
        wait()


def remove_unused(parent: Path, now: float) -> None:
    """Remove environments that are not in use and were last used more than KEPT_S seconds ago."""
    for folder in _folders(parent):
        with contextlib.suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ready = folder / "ready"
                if now - (ready if ready.exists() else folder).stat().st_mtime > KEPT_S:
                    ready.unlink(missing_ok=True)
                    for left in folder.iterdir():
                        if left.is_dir():
                            shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from parent.iterdir()
