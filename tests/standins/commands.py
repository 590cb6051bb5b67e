"""The command `cloudgpu` as a user runs it, for tests of its output and exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloudgpu.cli import main

from .pulumi.engines import put_on_path
from .pulumi.provider import Provider
from .pulumi.serving import attached

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Commands:
    """Runner of commands in this process; fails if a command ends in a traceback."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        """`folder`: directory for the files that file() creates."""
        self.folder, self._capsys = folder, capsys

    def run(self, *words: str) -> Ended:
        self._capsys.readouterr()
        code = main(words)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Ended(code, out, err)

    def well(self, *words: str) -> Ended:
        ended = self.run(*words)
        assert ended.code == 0, ended.err
        return ended

    @contextmanager
    def as_colleague(self) -> Iterator[None]:
        """Run commands as a different user, with an empty state directory."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLOUDGPU_HOME", str(self.folder / "colleague"))
            yield

    def until(self, met: Callable[[], bool], limit_s: float = 180.0) -> None:
        """Poll for an effect of a command; fails after `limit_s` seconds."""
        end = time.monotonic() + limit_s
        while not met():
            assert time.monotonic() < end, "too late"
            time.sleep(0.05)

    def file(self, name: str, text: str) -> str:
        """Create a file with this text; return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)


def in_a_process(*words: str, limit_s: float = 600.0) -> Ended:
    """Run a command in a separate process, for commands that wait for a job."""
    command = [sys.executable, "-m", "cloudgpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def stacks_can_be_made(engine_kind: str, provider: Provider, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide a Pulumi engine of this kind on PATH, this provider and a separate state directory. No Python is
    downloaded for the machines."""
    patch.setenv("CLOUDGPU_HOME", str(folder / "home"))
    patch.setenv("CLOUDGPU_AGENT_PYTHONS", OWN_PYTHON)
    put_on_path(engine_kind, folder / "bin", patch)
    with attached(provider) as environ:
        for name, value in environ.items():
            patch.setenv(name, value)
        yield
