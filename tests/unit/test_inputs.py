"""Inputs of a job: downloaded in parts, resumed after any interruption, and never used before they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, local_url
from cloudgpu.runtime.agent.inputs import PART, InputsError, fetch_inputs

from ..standins import s3

DATA = "s3://bucket/data/digits"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


class Machine:
    """Disk that outlives the process that downloads to it."""

    def __init__(self, folder: Path) -> None:
        self.code, self.journal = folder / "code", folder / "inputs.done"
        self.code.mkdir(parents=True)
        self.said: list[str] = []

    def fetch(self, inputs: dict[str, str]) -> None:
        fetch_inputs(inputs, self.code, self.journal, lambda: None, self.said.append)

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.code.rglob("*") if path.is_file())
        return {path.relative_to(self.code).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def put(store: s3.S3, **files: bytes) -> None:
    for name, data in files.items():
        store.objects[f"data/digits/{name.replace('__', '/')}"] = data


def test_a_folder_comes_with_all_that_is_below_it(store: s3.S3, machine: Machine) -> None:
    put(store, train__a=b"1", train__deep__b=b"2", empty=b"")
    store.objects["data/digits-of-others/c"] = b"3"
    store.objects["data/digits/train/"] = b""  # a folder marker, as web consoles create it
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/train/a": b"1", "data/train/deep/b": b"2", "data/empty": b""}


def test_one_object_comes_as_a_file(store: s3.S3, machine: Machine) -> None:
    put(store, model=b"weights")
    machine.fetch({"models/first.pt": f"{DATA}/model"})
    assert machine.files() == {"models/first.pt": b"weights"}


def test_large_objects_come_in_parts_at_the_same_time(store: s3.S3, machine: Machine) -> None:
    large = os.urandom(1 << 20) * 40
    put(store, large=large)
    machine.fetch({"data": DATA})
    assert machine.files()["data/large"] == large
    assert sorted(request.headers["Range"] for request in store.requests if request.kind == "GET") == sorted(
        f"bytes={start}-{min(start + PART, len(large)) - 1}" for start in range(0, len(large), PART)
    )


def test_a_second_start_fetches_nothing(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"1", b=b"2")
    machine.fetch({"data": DATA})
    fetched = store.count("GET")
    machine.fetch({"data": DATA})
    assert store.count("GET") == fetched


def test_after_a_stop_only_what_is_missing_comes(store: s3.S3, machine: Machine) -> None:
    large = os.urandom(1 << 20) * 40
    put(store, a=b"1", large=large)
    last = f"bytes={2 * PART}-{len(large) - 1}"
    store.faults.append(s3.Fault(lambda request: request.headers.get("Range") == last, status=403, code="AccessDenied"))
    with pytest.raises(JobDirError, match="access denied"):
        machine.fetch({"data": DATA})
    assert "data/large" not in machine.files()  # it gets its name only when it is complete
    store.faults.clear()
    store.requests.clear()
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/a": b"1", "data/large": large}
    assert [request.headers["Range"] for request in store.requests if request.kind == "GET"] == [last]


def test_what_has_changed_meanwhile_comes_anew(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"old", b=b"same")
    machine.fetch({"data": DATA})
    put(store, a=b"new")
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/a": b"new", "data/b": b"same"}


def test_a_file_of_that_name_and_size_is_not_taken_for_it(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"new")
    (machine.code / "data").mkdir()
    (machine.code / "data/a").write_bytes(b"old")
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/a": b"new"}


def test_a_disk_that_was_lost_is_filled_again(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"1")
    machine.fetch({"data": DATA})
    shutil.rmtree(machine.code / "data")
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/a": b"1"}


def test_a_failing_store_is_asked_again(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"1")
    store.fail("GET", "a", status=500, times=5)
    machine.fetch({"data": DATA})
    assert machine.files() == {"data/a": b"1"}


def test_an_order_ends_it(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"1")
    store.fail("GET", "a", hang=True)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_inputs({"data": DATA}, machine.code, machine.journal, check, machine.said.append)


@pytest.mark.parametrize(
    ("url", "says"),
    [("s3://bucket/nowhere", "there is nothing at s3://bucket/nowhere"), ("s3://bucket", "there is nothing at")],
)
def test_what_is_not_there_is_said(store: s3.S3, machine: Machine, url: str, says: str) -> None:
    with pytest.raises(InputsError, match=says):
        machine.fetch({"data": url})


def test_what_does_not_fit_is_said_before_it_is_fetched(store: s3.S3, machine: Machine) -> None:
    put(store, a=b"1")
    listing = store.listing
    store.listing = lambda *wanted: (  # type: ignore[method-assign]  # a petabyte, as far as the listing says
        listing(*wanted)[0],
        listing(*wanted)[1].replace(b"<Size>1</Size>", b"<Size>1000000000000000</Size>"),
        {},
    )
    with pytest.raises(InputsError, match=r"need 1,000,000\.0 GB .* resources\.disk"):
        machine.fetch({"data": DATA})
    assert store.count("GET") == 0


def test_a_local_folder_is_copied(machine: Machine, tmp_path: Path) -> None:
    JobDir(local_url(tmp_path / "there")).put("a/b", b"1")
    machine.fetch({"data": local_url(tmp_path / "there")})
    assert machine.files() == {"data/a/b": b"1"}
