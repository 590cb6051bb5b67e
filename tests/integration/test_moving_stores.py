"""Migration of checkpoints between the stores of two clouds, over the wire: they arrive complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.checkpoint_names import Name
from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord
from cloudgpu.runtime.checkpoint.errors import AllDamagedError
from cloudgpu.runtime.checkpoint.format.manifest import RankManifest, data_file
from cloudgpu.runtime.checkpoint_copy import copy_checkpoints
from cloudgpu.runtime.migration import Moved, move
from cloudgpu.storage.copying import InterruptedCopyError
from cloudgpu.storage.objects import PART

from ..standins import s3 as s3_standin
from ..standins.azurite import ACCOUNT, Azurite, shared
from ..standins.gcp import Gcp
from ..standins.gcs import GcsControl
from ..standins.s3 import S3
from ..standins.staging import content, open_store, verify

pytestmark = pytest.mark.timeout(600)

BUCKET = "jobs-of-tests"
SIZE = 2 * PART + 3
RANKS = 2
PLACES = {"s3": S3.url, "gs": f"gs://{BUCKET}/jobs/a-1", "az": f"az://{BUCKET}@{ACCOUNT}/jobs/a-1"}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with s3_standin.running() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsControl]:
    with Gcp() as made:
        for name, value in made.environ(tmp_path / "settings").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
        control = GcsControl(made.url)
        control.make_bucket(BUCKET)
        yield control


@pytest.fixture
def azurite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Azurite]:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with shared(BUCKET) as blobs:
        for name, value in blobs.environ().items():
            monkeypatch.setenv(name, value)
        yield blobs


def save(url: str, step: int) -> Name:
    store, name = open_store(url), Name.new(step, 1, step)
    for rank in range(RANKS):
        manifest = RankManifest(str(name), rank, RANKS, step, SIZE, [], {"step": step})
        store.write_rank(manifest, memoryview(content(step, rank, SIZE)))
    store.commit(name, store.digests(name, RANKS), finished=False, time=0.0)
    return name


def moved(source: str, target: str, keep_going: Callable[[], bool] = lambda: True) -> Moved:
    there = JobDir(target)
    return move([JobDir(source)], there, 2, keep_going=keep_going, on_begin=lambda _one: None, on_copied=lambda: None)


def test_from_each_to_the_next(s3: S3, gcs: GcsControl, azurite: Azurite) -> None:
    """Copy around all stores and back: shards of two ranks in several parts, and an output of the same size."""
    JobDir(S3.url).put(JOB_KEY, b'{"job_id": "a-1"}')
    JobDir(S3.url).put("outputs/model.bin", content(0, 9, SIZE))
    names = [save(S3.url, step) for step in (10, 20)]
    for source, target in (("s3", "gs"), ("gs", "az")):
        found = moved(PLACES[source], PLACES[target])
        assert [one.step for one in found.checkpoints] == [20]
        assert open_store(PLACES[target]).names() == names[1:]
        verify(open_store(PLACES[target]), names[1])
        assert JobDir(PLACES[target]).get("outputs/model.bin") == content(0, 9, SIZE)
    newest = save(PLACES["az"], 30)
    assert [one.step for one in moved(PLACES["az"], S3.url).checkpoints] == [30]
    verify(open_store(S3.url), newest)
    assert s3.uploads == {} and gcs.uploads() == 0


@pytest.mark.parametrize("to", ["gs", "az"])
def test_an_interrupted_copy_commits_nothing_and_resumes_without_copying_shards_again(
    s3: S3, gcs: GcsControl, azurite: Azurite, to: str
) -> None:
    JobDir(S3.url).put(JOB_KEY, b'{"job_id": "a-1"}')
    name = save(S3.url, 10)
    broken = s3.fail("GET", f"{data_file(1)}", status=503, code="SlowDown")
    with pytest.raises(JobDirError, match=r"checkpoint .* cannot be copied: .*SlowDown"):
        moved(S3.url, PLACES[to])
    target = open_store(PLACES[to])
    assert target.committed() == [] and target.ranks_written(name) == {0}
    assert gcs.uploads() == 0
    broken.times, read = 0, s3.count("GET", data_file(0))
    left = [True] * 3 + [False]
    with pytest.raises(InterruptedCopyError):
        moved(S3.url, PLACES[to], lambda: left.pop(0))
    assert target.committed() == [] and target.ranks_written(name) == {0}
    assert [one.step for one in moved(S3.url, PLACES[to]).checkpoints] == [10]
    assert s3.count("GET", data_file(0)) == read, "the first rank's shard was there"
    verify(target, name)
    assert gcs.uploads() == 0


def test_data_garbled_in_transit_is_read_again(s3: S3, gcs: GcsControl) -> None:
    JobDir(S3.url).put(JOB_KEY, b'{"job_id": "a-1"}')
    name = save(S3.url, 10)
    s3.fail("GET", data_file(1), garble=True, times=1)
    assert moved(S3.url, PLACES["gs"]).damaged == ()
    verify(open_store(PLACES["gs"]), name)


def test_a_damaged_checkpoint_is_not_copied(s3: S3, gcs: GcsControl) -> None:
    JobDir(S3.url).put(JOB_KEY, b'{"job_id": "a-1"}')
    older, newest = save(S3.url, 10), save(S3.url, 20)
    s3.fail("GET", f"{newest}/{data_file(1)}", garble=True)
    found = moved(S3.url, PLACES["gs"])
    assert [one.step for one in found.checkpoints] == [10]
    assert [text.partition(":")[0] for text in found.damaged] == [str(newest)]
    assert open_store(PLACES["gs"]).committed() == [older]


def test_it_is_an_error_if_all_checkpoints_are_damaged(s3: S3, gcs: GcsControl) -> None:
    JobDir(S3.url).put(JOB_KEY, JobRecord(job_id="a-1", name="a", run="true").to_bytes())
    names = save(S3.url, 10), save(S3.url, 20)
    s3.fail("GET", data_file(1), garble=True)
    for _ in range(2):  # found damaged first, then already marked as damaged
        with pytest.raises(AllDamagedError) as caught:
            moved(S3.url, PLACES["gs"])
    assert all(f"{name}: {data_file(1)} differs" in str(caught.value) for name in names)
    assert open_store(PLACES["gs"]).committed() == []


def test_a_new_job_starts_from_a_copy_in_another_store(s3: S3, gcs: GcsControl, tmp_path: Path) -> None:
    name = save(S3.url, 10)
    first = Name(10, 0, name.nonce)
    for url in (PLACES["gs"], (tmp_path / "job").as_uri()):
        broken = s3.fail("GET", data_file(1), status=503, code="SlowDown")
        with pytest.raises(JobDirError, match="SlowDown"):
            copy_checkpoints(JobDir(S3.url), JobDir(url), step=None, since=0, on_bytes=lambda _done, _total: None)
        assert open_store(url).committed() == []
        broken.times = 0
        s3.fail("GET", data_file(0), garble=True, times=1)
        copied = copy_checkpoints(JobDir(S3.url), JobDir(url), step=None, since=0, on_bytes=lambda _done, _total: None)
        assert copied is not None and copied.step == 10
        assert open_store(url).names() == [first]
        verify(open_store(url), first)
