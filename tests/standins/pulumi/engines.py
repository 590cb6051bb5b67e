"""Pulumi engines for tests: the double, and the real one where `pulumi` is on PATH.

A test of stacks runs with each: `engine_kind` of tests/conftest.py selects the engine, and skips the test with a
visible reason where the real one is not installed.

    from cloudgpu.tests.standins.pulumi.engines import Engine, engine      # the fixture

    def test_it(engine: Engine) -> None:
        provider = aws.provider()
        engine.attach(provider)
        stack = automation.create_or_select_stack("dev", "project", program=program)     # in engine.environ
        if engine.is_double: ...                                                         # what only a double can show

Both use the same provider stand-ins. os.environ has the engine's settings: a separate state, home and passphrase for
the test, which its child processes inherit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import double
from .provider import Provider
from .serving import attached


@dataclass
class Engine:
    """An engine as seen by a test."""

    is_double: bool
    state: Path
    """Folder of the backend."""
    url: str
    """URL of the backend."""
    _stack: contextlib.ExitStack
    _patch: pytest.MonkeyPatch

    def attach(self, *providers: Provider) -> None:
        """Serve these providers until the test ends. All must be passed in one call, since the engine reads them at
        once."""
        for name, value in self._stack.enter_context(attached(*providers)).items():
            self._patch.setenv(name, value)


@pytest.fixture
def engine(engine_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Provide an engine with a separate state, and its `pulumi` first on PATH."""
    state = tmp_path / "pulumi-state"
    state.mkdir()
    put_on_path(engine_kind, tmp_path / "pulumi-bin", monkeypatch)
    for name, value in environ(tmp_path, state).items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        yield Engine(engine_kind == "double", state, f"file://{state}", stack, monkeypatch)


def put_on_path(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make this kind of engine the `pulumi` on PATH; the double is installed in this folder."""
    if kind == "double":
        double.install(folder)
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def environ(folder: Path, state: Path) -> dict[str, str]:
    """Return the variables that isolate an engine from the user's settings."""
    return {
        "PULUMI_HOME": str(folder / "pulumi-home"),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": "a passphrase of a test",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_CREDENTIAL_STORE": "plaintext",
    }
