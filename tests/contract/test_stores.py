"""Contract tests of stores, each run with its stand-in. A new store needs a function and a row of STORES."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, MissingError, RecordError, local_url
from cloudgpu.storage.downloads import Download, DownloadError, fetch
from cloudgpu.storage.stores import SCHEMES

from ..standins import s3
from ..standins.azurite import ACCOUNT, Azurite
from ..standins.azurite.front import Front
from ..standins.faults import LOSE, error
from ..standins.gcp import Gcp
from ..standins.gcs import GcsControl

pytestmark = pytest.mark.timeout(600)

BUCKET = "jobs-of-tests"
ODD_KEYS = ["with space", "ünï-☃", "per%41cent", "100%", "hash#mark?", "a&b+c=d", 'it\'s "quoted"', "semi;colon", "-rf"]
WRITERS, RACES = 8, 20
MANY = {"s3": 1_020, "gs": 1_020, "az": 270}
"""Scheme -> more objects than a listing, or a deletion in Blob Storage, may have."""


@dataclass(frozen=True)
class Place:
    """A store for a whole module of tests."""

    url: str
    environ: Mapping[str, str]
    lose_an_answer: Callable[[], object] = lambda: None
    """Make the response to the next small write get lost; a no-op for a local folder."""
    lose_a_deletion: Callable[[], object] = lambda: None
    """Make the response to the next deletion get lost; a no-op for a local folder."""
    refuse_a_deletion: Callable[[], object] = lambda: None
    """Make the next deletion fail with 503; a no-op for a local folder."""


@contextlib.contextmanager
def a_folder(scratch: Path) -> Iterator[Place]:
    yield Place(local_url(scratch), {})


@contextlib.contextmanager
def an_s3(_scratch: Path) -> Iterator[Place]:
    with s3.running() as store:
        yield Place(
            "s3://bucket",
            store.environment,
            lambda: store.fail("PUT", lose_answer=True, times=1),
            lambda: store.fail("delete", lose_answer=True, times=1),
            lambda: store.fail("delete", status=503, code="SlowDown", times=1),
        )


@contextlib.contextmanager
def a_cloud_storage(scratch: Path) -> Iterator[Place]:
    with Gcp() as gcp:
        GcsControl(gcp.url).make_bucket(BUCKET)
        yield Place(
            f"gs://{BUCKET}",
            gcp.environ(scratch / "settings"),
            lambda: gcp.control.fail("objects.insert", LOSE, times=1),
            lambda: gcp.control.fail("objects.delete", LOSE, times=1),
            lambda: gcp.control.fail("objects.delete", error("backendError", 503), times=1),
        )


@contextlib.contextmanager
def a_blob_storage(scratch: Path) -> Iterator[Place]:
    with Azurite(scratch) as blobs, Front(blobs) as front:
        blobs.make_container(BUCKET)
        environ = blobs.environ() | {"AZURE_STORAGE_ENDPOINT": front.url}
        yield Place(
            f"az://{BUCKET}@{ACCOUNT}",
            environ,
            lambda: front.fail("blob.put", LOSE),
            lambda: front.fail("blob.post", LOSE),
            lambda: front.fail("blob.post", error("ServerBusy", 503)),
        )


STORES = {"file": a_folder, "s3": an_s3, "gs": a_cloud_storage, "az": a_blob_storage}
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=STORES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with STORES[request.param](tmp_path_factory.mktemp(request.param)) as made, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
            patch.delenv(name)
        for name, value in made.environ.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def store(place: Place) -> JobDir:
    """An empty folder in the store."""
    return JobDir(f"{place.url}/jobs/{next(_numbers)}")


def test_every_scheme_is_tested() -> None:
    assert set(STORES) == set(SCHEMES)


class TestCreating:
    def test_it_is_won_once(self, store: JobDir) -> None:
        assert store.create("claim", b"first")
        assert not store.create("claim", b"second")
        assert store.create("claim", b"first"), "a repeated write whose answer was lost finds its own object"
        assert store.get("claim") == b"first"

    def test_a_write_whose_answer_was_lost_is_read_back(self, place: Place, store: JobDir) -> None:
        place.lose_an_answer()
        assert store.create("claim", b"mine")
        assert store.get("claim") == b"mine"

    def test_one_whose_answer_was_lost_does_not_win_over_another(self, place: Place, store: JobDir) -> None:
        store.put("claim", b"another's")
        place.lose_an_answer()
        assert not store.create("claim", b"mine")
        assert store.get("claim") == b"another's"

    def test_it_has_one_winner_of_many(self, store: JobDir) -> None:
        store.put("job.json", b"{}")
        writers = [JobDir(store.url) for _ in range(WRITERS)]
        for race in range(RACES):
            start = threading.Barrier(WRITERS)

            def claim(writer: int, race: int = race, start: threading.Barrier = start) -> bool:
                start.wait()
                return writers[writer].create(f"claims/{race}", str(writer).encode())

            with ThreadPoolExecutor(WRITERS) as pool:
                won = list(pool.map(claim, range(WRITERS)))
            assert sum(won) == 1
            assert store.get(f"claims/{race}") == str(won.index(True)).encode()


class TestReplacing:
    def test_the_last_write_stays(self, store: JobDir) -> None:
        store.put("x", b"first")
        store.put("x", b"2")
        assert store.get("x") == b"2"

    def test_what_has_not_changed_is_not_sent_again(self, store: JobDir) -> None:
        with pytest.raises(MissingError):
            store.get_if_changed("key", "", 100)
        store.put("key", b"first")
        found = store.get_if_changed("key", "", 100)
        assert found is not None and found[0] == b"first"
        assert store.get_if_changed("key", found[1], 100) is None
        store.put("key", b"the second")
        changed = store.get_if_changed("key", found[1], 100)
        assert changed is not None and changed[0] == b"the second" and changed[1] != found[1]
        with pytest.raises(JobDirError, match="at most 3 are expected"):
            store.get_if_changed("key", found[1], 3)

    def test_a_range_of_what_was_replaced_is_refused(self, store: JobDir) -> None:
        store.put("a", b"0123456789")
        found = store.entry("a")
        assert found is not None
        assert store.get_range("a", 2, 5, found.etag) == b"234"
        store.put("a", b"replaced, and longer")
        with pytest.raises(JobDirError) as caught:
            store.get_range("a", 2, 5, found.etag)
        assert not isinstance(caught.value, MissingError)


class TestReading:
    def test_ranges(self, store: JobDir) -> None:
        store.put("x", b"0123456789")
        assert store.get_range("x", 3, 6) == b"345"
        assert store.get_range("x", 0, 10) == b"0123456789"
        assert store.get_range("x", 4, 4) == b""
        with pytest.raises(JobDirError):
            store.get_range("x", 10, 12)

    def test_a_large_object_arrives_whole(self, store: JobDir, tmp_path: Path) -> None:
        data, key = os.urandom(20 << 20), "folder/large"
        store.upload(
            key, iter([memoryview(data)[at : at + (8 << 20)] for at in range(0, len(data), 8 << 20)]), len(data)
        )
        assert store.size(key) == len(data)
        assert store.get_range(key, 9_000_000, 9_000_010) == data[9_000_000:9_000_010]
        store.download(key, tmp_path / "there")
        assert (tmp_path / "there").read_bytes() == data
        store.put("again", tmp_path / "there")
        assert store.get("again") == data

    @pytest.mark.parametrize("key", ["plain/record.json", "odd key"])
    def test_what_is_longer_than_it_may_be_is_refused(self, store: JobDir, key: str) -> None:
        store.put(key, b"0123456789")
        assert store.get(key, 10) == b"0123456789"
        with pytest.raises(RecordError, match="has 10 bytes, 9 at most are allowed"):
            store.find(key, 9)

    def test_what_is_empty_is_there(self, store: JobDir) -> None:
        store.put("empty", b"")
        assert (store.find("empty"), store.size("empty"), store.files("")) == (b"", 0, {"empty": 0})


class TestMissing:
    @pytest.mark.parametrize("others", [(), ("other",)])
    def test_each_way_of_asking_says_so(self, store: JobDir, tmp_path: Path, others: tuple[str, ...]) -> None:
        """The same in an empty folder and in one with other objects."""
        for other in others:
            store.put(other, b"")
        asks: list[Callable[[], object]] = [
            lambda: store.get("no"),
            lambda: store.get("no", 10),
            lambda: store.get("odd no", 10),
            lambda: store.get_if_changed("no", "", 10),
            lambda: store.get_range("no", 0, 1),
            lambda: store.download("no", tmp_path / "file"),
        ]
        for ask in asks:
            with pytest.raises(MissingError):
                ask()
        assert not (tmp_path / "file").exists()
        assert (store.find("no"), store.size("no"), store.entry("no"), store.exists("no")) == (None, None, None, False)
        assert (store.list("no"), store.entries("no"), store.folders("no"), store.files("no")) == ([], [], [], {})
        store.delete("no")
        assert store.list("") == list(others)

    def test_it_cannot_be_copied(self, store: JobDir) -> None:
        store.put("other", b"")
        with pytest.raises(MissingError):
            store.copy("no", "to")

    def test_what_is_under_a_key_is_not_the_key(self, store: JobDir) -> None:
        store.put("folder/key", b"1")
        assert (store.find("folder"), store.find("folder/ke"), store.list("folder/key")) == (None, None, [])


class TestListing:
    def test_it_is_in_the_order_of_the_keys(self, store: JobDir) -> None:
        for key in ("log/00000002.gz", "log/00000010.gz", "log/00000001.gz", "logs/other", "log/deeper/x"):
            store.put(key, b"abc")
        keys = ["log/00000001.gz", "log/00000002.gz", "log/00000010.gz", "log/deeper/x"]
        assert store.list("log") == store.list("log/") == keys
        assert [entry.key for entry in store.entries("log", after=keys[1])] == keys[2:]
        assert store.entries("log", after=keys[-1]) == []
        assert {entry.size for entry in store.entries("log")} == {3}
        assert store.list("") == [*keys, "logs/other"]
        assert (store.folders("log"), store.folders("")) == (["deeper"], ["log", "logs"])
        assert (store.files("log"), store.files("")) == (dict.fromkeys([key[4:] for key in keys[:3]], 3), {})

    def test_an_entry_is_as_it_is_listed(self, store: JobDir) -> None:
        store.put("folder/key", b"abc")
        entry = store.entry("folder/key")
        assert entry is not None
        (listed,) = store.entries("folder")
        assert (listed.key, listed.size) == (entry.key, entry.size) == ("folder/key", 3)
        for etag in (listed.etag, entry.etag):  # the listing's ETag may have another format
            assert store.get_range("folder/key", 0, 2, etag) == b"ab"

    def test_folders_beside_it_are_apart(self, store: JobDir) -> None:
        beside = JobDir(f"{store.url}-2")
        for one in (store, beside):
            one.put("a/x", b"1")
        beside.put("b", b"2")
        assert (store.list(""), beside.list("")) == (["a/x"], ["a/x", "b"])
        assert store.folders("") == ["a"] and store.find("b") is None
        assert store.create("b", b"3") and not beside.create("b", b"3")


class TestKeys:
    @pytest.mark.parametrize("name", ODD_KEYS)
    def test_odd_ones(self, store: JobDir, name: str, tmp_path: Path) -> None:
        key = f"folder/{name}/{name}"
        assert store.create(key, b"1") and not store.create(key, b"2")
        store.put(key, b"123")
        assert (store.get(key), store.get(key, 3), store.get_range(key, 1, 3)) == (b"123", b"123", b"23")
        assert (store.list("folder"), store.size(key)) == ([key], 3)
        store.copy(key, f"copy/{name}")
        store.download(f"copy/{name}", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"123"
        store.delete(key)
        assert store.list("") == [f"copy/{name}"]

    @pytest.mark.parametrize("key", ["../escape", "/absolute/../..", "a/../../b"])
    def test_they_stay_inside(self, place: Place, store: JobDir, key: str) -> None:
        around = JobDir(f"{place.url}/jobs")
        before = around.list("")
        with pytest.raises(JobDirError):
            store.put(key, b"")
        assert around.list("") == before


class TestDeleting:
    def test_it_stays_gone(self, store: JobDir) -> None:
        store.put("a/x", b"1")
        store.put("a/y", b"2")
        store.delete("a/x")
        store.delete("a/x")
        assert (store.find("a/x"), store.list("")) == (None, ["a/y"])

    def test_a_name_is_free_again(self, store: JobDir) -> None:
        assert store.create("claim", b"first")
        store.delete("claim")
        assert store.create("claim", b"second")
        assert store.get("claim") == b"second"


class TestFetching:
    def test_objects_become_files_and_are_fetched_once(self, store: JobDir, tmp_path: Path) -> None:
        files = {"model.pt": os.urandom(1 << 20) * 20, "plots/a b/ünï.png": b"123", "empty": b""}
        for name, data in files.items():
            store.upload(f"outputs/{name}", iter([memoryview(data)]), len(data))
        fetched: list[int] = []
        for _ in range(2):
            wanted = [
                Download(
                    store, entry, tmp_path / entry.key, frozenset({hashlib.sha256(files[entry.key[8:]]).hexdigest()})
                )
                for entry in store.entries("outputs")
            ]
            fetch(wanted, tmp_path / "journal", lambda: None, lambda done, _total: fetched.append(done))
        assert {name: (tmp_path / "outputs" / name).read_bytes() for name in files} == files
        assert fetched.count(0) >= 1 and fetched[-1] == sum(map(len, files.values()))

    def test_an_object_that_is_replaced_meanwhile_is_an_error(self, store: JobDir, tmp_path: Path) -> None:
        store.put("a", b"old")
        (entry,) = store.entries("")
        store.put("a", b"new, and longer")
        with pytest.raises((JobDirError, DownloadError)):
            fetch([Download(store, entry, tmp_path / "a")], tmp_path / "journal", lambda: None, lambda _d, _t: None)
        assert not (tmp_path / "a").exists()


class TestDeletingAll:
    def test_only_what_is_in_the_folder_goes(self, store: JobDir) -> None:
        beside = JobDir(f"{store.url}-2")
        inside = JobDir(f"{store.url}/deeper")
        for one in (store, beside, inside):
            for name in ("job.json", "a/b/c", *ODD_KEYS):
                one.put(name, b"123")
        size = 2 * (2 + len(ODD_KEYS))
        assert store.usage() == (size, 3 * size)
        counts: list[int] = []
        store.delete_all(counts.append)
        assert (store.list(""), store.usage(), len(beside.list(""))) == ([], (0, 0), size // 2)
        store.delete_all(counts.append)
        assert counts == ([] if store.folder else [size])

    def test_it_goes_on_over_pages_and_faults(self, place: Place, store: JobDir) -> None:
        count = MANY.get(place.url.partition("://")[0], 30)
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda number: store.put(f"checkpoints/{number:05d}", b""), range(count)))
        place.lose_a_deletion()
        place.refuse_a_deletion()
        with store.retrying(60.0, lambda _text: None):
            store.delete_all(lambda _count: None)
        assert store.list("") == []

    def test_its_name_is_that_of_its_path(self, place: Place) -> None:
        names = {"": "jobs", "/digits-a": "digits-a", "/digits-a/": "digits-a"}
        assert {path: JobDir(f"{place.url}/jobs{path}").name for path in names} == names
