"""The engines that Pulumi programs are run with in tests: the double, and the real one where `pulumi` is on PATH.

A test of stacks is two: `engine_kind` of tests/conftest.py says which, and skips the one with the real engine, loudly,
where that is not there.

    from cloudgpu.tests.standins.pulumi.engines import Engine, engine      # the fixture

    def test_it(engine: Engine) -> None:
        provider = aws.provider()
        engine.attach(provider)
        stack = automation.create_or_select_stack("dev", "project", program=program)     # in engine.environ
        if engine.is_double: ...                                                         # what only a double can show

Both use the same stand-ins for providers. os.environ has what the engine needs: a state, a home and a passphrase of
the test's own; a process that a test starts inherits it.
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
    """What a test has of it."""

    is_double: bool
    state: Path
    """The folder of the backend."""
    url: str
    """Of the backend."""
    _stack: contextlib.ExitStack
    _patch: pytest.MonkeyPatch

    def attach(self, *providers: Provider) -> None:
        """Serve them until the test ends. In one call: the engine is told of all at once."""
        for name, value in self._stack.enter_context(attached(*providers)).items():
            self._patch.setenv(name, value)


@pytest.fixture
def engine(engine_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """In a folder of the test's own, with its `pulumi` first on PATH."""
    state = tmp_path / "pulumi-state"
    state.mkdir()
    put_on_path(engine_kind, tmp_path / "pulumi-bin", monkeypatch)
    for name, value in environ(tmp_path, state).items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        yield Engine(engine_kind == "double", state, f"file://{state}", stack, monkeypatch)


def put_on_path(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The engine of this kind is the `pulumi` that is found; a double is made in this folder."""
    if kind == "double":
        double.install(folder)
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def environ(folder: Path, state: Path) -> dict[str, str]:
    """What keeps an engine to itself."""
    return {
        "PULUMI_HOME": str(folder / "pulumi-home"),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": "a passphrase of a test",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_CREDENTIAL_STORE": "plaintext",
    }
