"""Atomic writes of files: what readers see, and what remains after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.storage import durable

WRITES: dict[str, Callable[[Path, bytes], object]] = {
    "write": durable.write,
    "create": lambda path, data: durable.create(path, data, replace=True),
}


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Callable[[Path, bytes], object]:
    return WRITES[request.param]


def test_readers_see_the_old_or_the_new_content(tmp_path: Path, write: Callable[[Path, bytes], object]) -> None:
    path, versions = tmp_path / "file", [bytes([letter]) * 100_000 for letter in b"ab"]
    write(path, versions[0])
    over, seen = threading.Event(), set[bytes]()

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        write(path, versions[number % 2])
    over.set()
    reader.join()
    assert seen <= set(versions)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path, write: Callable[[Path, bytes], object]) -> None:
    (tmp_path / "file/inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"Is a directory|Directory not empty"):
        write(tmp_path / "file", b"1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_permissions_are_those_that_are_asked_for(tmp_path: Path) -> None:
    durable.write(tmp_path / "private", b"", mode=0o600)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_what_is_there_is_not_replaced_unless_it_may_be(tmp_path: Path) -> None:
    assert durable.create(tmp_path / "file", b"1", replace=False)
    assert not durable.create(tmp_path / "file", b"2", replace=False)
    assert (tmp_path / "file").read_bytes() == b"1"
