"""Users of the toy stack (toy_stack.py): commands in separate processes, which a test may kill."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from .faults import HANG
from .pulumi import double
from .pulumi.provider import Provider
from .toy_stack import STACK, Shelf

TIMEOUT_S = 180.0


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    value: Any
    stderr: str


class Desk:
    """Runner of commands on the stack, in separate processes."""

    def __init__(self, engine_kind: str, folder: Path, provider: Provider, environ: dict[str, str]) -> None:
        self.is_double = engine_kind == "double"
        self.provider = provider
        self.shelf: Shelf = provider.cloud
        self.home = folder / "home"
        self.said = folder / "argv"
        self._bin = folder / "bin"
        self.environ = {**environ, "CLOUDGPU_HOME": str(self.home), "PULUMI_HOME": str(folder / "pulumi")}
        self._install()
        self.environ["PATH"] = os.pathsep.join((str(self._bin), os.environ["PATH"]))

    def _install(self) -> None:
        """Install a `pulumi` that records its arguments before it runs the real program."""
        real = str(double.install(self._bin / "double")) if self.is_double else shutil.which("pulumi")
        program = self._bin / "pulumi"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$$ $*" >> {self.said}\nexec {real} "$@"\n')
        program.chmod(0o755)

    def colleague(self) -> Self:
        """Return a different user with an empty state directory and otherwise the same settings."""
        other = copy.copy(self)
        other.home = self.home.with_name("colleague")
        other.environ = {**self.environ, "CLOUDGPU_HOME": str(other.home)}
        return other

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cloudgpu.tests.standins.toy_stack", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env={**os.environ, **self.environ}, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str) -> Ended:
        return self.end(self.start(*words))

    def end(self, process: subprocess.Popen[str]) -> Ended:
        with process:
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert "Traceback" not in err
        return Ended(process.returncode, json.loads(out.splitlines()[-1]) if out.strip() else None, err)

    def up(self, *words: str) -> Any:
        ended = self.run("up", *words)
        assert ended.code == 0, ended.stderr
        return ended.value

    def kill_in_the_middle(self) -> None:
        """Kill a command and its engine while a resource is being created."""
        self.provider.control.fail("Create", HANG)
        before = len(self.provider.control.calls("Create"))
        process = self.start("up", "--count", "1")
        with killed_after(process):
            wait(lambda: len(self.provider.control.calls("Create")) > before)
            engines = engines_of(process)
            process.kill()
            for engine in engines:
                engine.kill()
            assert process.wait(TIMEOUT_S) == -signal.SIGKILL

    @property
    def sizes(self) -> list[int]:
        return sorted(int(thing["size"]) for thing in self.shelf.things.values())

    @property
    def locks(self) -> list[Path]:
        """Lock files in the local backend."""
        return sorted((self.home / "infra/state/.pulumi/locks").rglob("*.json"))

    def lock_as(self, **who: Any) -> Path:
        """Add a lock as another user's engine would."""
        folder = self.home / f"infra/state/.pulumi/locks/organization/cloudgpu/{STACK}"
        folder.mkdir(parents=True, exist_ok=True)
        held = {"pid": 4242, "username": "ann", "hostname": "elsewhere", "timestamp": "2026-11-22T06:00:00Z", **who}
        (folder / "theirs.json").write_text(json.dumps(held))
        return folder / "theirs.json"


def wait(condition: Callable[[], object]) -> None:
    """Poll until the condition holds; fails after TIMEOUT_S seconds."""
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def engines_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the engines that the process has started."""
    return psutil.Process(process.pid).children()


@contextlib.contextmanager
def killed_after(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the process and its descendants on exit, whether the test passes or not."""
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
