"""Pulumi's engine, the program `pulumi`: find it, install it, and run it isolated from the terminal's Ctrl-C.

It runs in a separate session, because a terminal's Ctrl-C reaches every process of the foreground group: it would stop
the engine and also the plugins that the engine needs to finish running operations.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO

from pulumi.automation import PulumiCommand
from pulumi.automation._cmd import CommandResult
from pulumi.automation.errors import InvalidVersionError, create_command_error
from semver import VersionInfo

from ...jobspecs.home import home
from ..errors import InfraError
from . import release
from .locks import EngineRegistry

OnText = Callable[[str], object]

_PROGRAM = "pulumi"
_OLDEST = VersionInfo(3, 205, 0)
"""Oldest supported version: the first that streams events during a run."""
_LOCKING = (("up",), ("refresh",), ("destroy",), ("stack", "init"), ("stack", "rm"))
"""Prefixes of the commands that take a stack's lock."""
_HOW_TO_GET = (
    "install it (https://www.pulumi.com/docs/install/), or add --install-pulumi: cloudgpu then keeps one of its own"
)


class Engine(PulumiCommand):
    """The `pulumi` executable. Only one thread may call run() at a time; cancel() is safe from threads and signal
    handlers."""

    def __init__(self, root: Path | None = None) -> None:
        """Check that the executable can be used. Raises InfraError.

        root: folder into which install() has put the engine; None: search PATH
        """
        try:
            super().__init__(str(root) if root else None, version=_OLDEST)
        except InvalidVersionError as error:
            raise InfraError(f"{_place(root)} cannot be used: {error}", _HOW_TO_GET) from error
        except (OSError, subprocess.CalledProcessError, UnicodeDecodeError) as error:
            raise InfraError(f"{_place(root)} cannot be run: {error}", _HOW_TO_GET) from error
        self.engines: EngineRegistry | None = None
        """Registry of engine processes that may hold a lock; None: do not register."""
        self.failed: CommandResult | None = None
        """Output of the last failed run."""
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        args: list[str],
        cwd: str,
        additional_env: Mapping[str, str],
        on_output: OnText | None = None,
        on_error: OnText | None = None,
    ) -> CommandResult:
        """Run a command; overrides PulumiCommand.run(), which the Automation API calls."""
        words = [self.command, "--non-interactive", *args]
        env = {**os.environ, **additional_env, "PULUMI_AUTOMATION_API": "true"}
        if Path(self.command).is_absolute():  # the engine finds its bundled plugins on PATH
            env["PATH"] = os.pathsep.join((str(Path(self.command).parent), env.get("PATH", os.defpath)))
        self.failed = None
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            self._process = process
            try:
                with self._registered(process, args):
                    stdout, stderr = _read_both(process, on_output, on_error)
                    process.wait()
            finally:
                self._process = None
        result = CommandResult(stdout, stderr, process.returncode)
        if process.returncode != 0:
            self.failed = result
            raise create_command_error(result)
        return result

    @property
    def running(self) -> bool:
        return self._process is not None

    def cancel(self) -> None:
        """Ask the running engine to start no further operations and exit when the running ones end."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the engine and its plugins. Running operations remain in the stack as pending."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def _registered(self, process: subprocess.Popen[str], args: Sequence[str]) -> Iterator[None]:
        """Register the process while it may hold the stack's lock: a killed engine leaves its lock behind."""
        if self.engines is None or not any(tuple(args[: len(one)]) == one for one in _LOCKING):
            yield
            return
        self.engines.started(process.pid)
        yield
        if process.returncode is not None and process.returncode >= 0:
            self.engines.ended(process.pid)


def find() -> Engine | None:
    """Return the `pulumi` on PATH, otherwise one that cloudgpu installed; None: not found.

    Raises InfraError if it is unusable.
    """
    if shutil.which(_PROGRAM):
        return Engine()
    root = _own_root()
    return Engine(root) if (root / "bin" / _PROGRAM).exists() else None


def missing_engine_error() -> InfraError:
    """Return the error for a missing engine that cloudgpu has no consent to install."""
    return InfraError("stacks need Pulumi's engine, and there is no `pulumi` on PATH", _HOW_TO_GET)


def install() -> Engine:
    """Download the engine version that matches the SDK from get.pulumi.com into the state directory.

    Raises InfraError.
    """
    root = _own_root()
    try:
        release.fetch(importlib.metadata.version("pulumi"), root)
    except (OSError, HTTPException, tarfile.TarError) as error:
        raise InfraError(f"Pulumi could not be downloaded from get.pulumi.com: {error}", _HOW_TO_GET) from error
    return Engine(root)


def _own_root() -> Path:
    return home() / "infra" / "engine"


def _place(root: Path | None) -> str:
    return str(root / "bin" / _PROGRAM) if root else shutil.which(_PROGRAM) or _PROGRAM


def _read_both(process: subprocess.Popen[str], on_output: OnText | None, on_error: OnText | None) -> tuple[str, str]:
    texts: tuple[list[str], list[str]] = [], []

    def read(stream: IO[str] | None, lines: list[str], on_line: OnText | None) -> None:
        for line in stream or ():
            lines.append(line.rstrip())
            if on_line:
                on_line(line.rstrip())

    streams = zip((process.stdout, process.stderr), texts, (on_output, on_error), strict=True)
    threads = [threading.Thread(target=read, args=one) for one in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "\n".join(texts[0]), "\n".join(texts[1])
