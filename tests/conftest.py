"""What holds for all tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Users do not have it set, and it hides what is never flushed.
os.environ.pop("PYTHONUNBUFFERED", None)
# GNU readline, which pytest imports, sets these for child processes: there is no terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
# Ignored, and that inherited, by what a shell starts in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LOCKS = pytest.StashKey[Path]()
"""The folder of the locks that the processes of one run share."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each of pytest-xdist's processes where the locks are."""
    if LOCKS not in node.config.stash:
        node.config.stash[LOCKS] = Path(tempfile.mkdtemp(prefix="cloudgpu-tests-"))
    node.workerinput["locks"] = str(node.config.stash[LOCKS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(LOCKS, None):
        shutil.rmtree(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of files that run at once, those first that may take long: else one of them is waited for at the end."""
    if not hasattr(config, "workerinput"):
        return
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), marker.args[0] if marker else 0.0)
    items.sort(key=lambda item: -limits[item.path])


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside pytest-timeout's, so that waiting is not on the test's account
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while no other one does."""
    folder = getattr(item.config, "workerinput", {}).get("locks")
    if folder is None:
        return (yield)
    with turn(Path(folder), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Many readers or one writer. Whoever comes later waits behind a writer, so that its turn comes soon."""
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # not only closed: a fork that outlives the test holds it open
