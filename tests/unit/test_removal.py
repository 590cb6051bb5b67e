"""Removal of jobs: only what is the job's own goes, never a job that runs or is needed, and a kill costs nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudgpu.cli.shared.job.removal import take_away
from cloudgpu.control.errors import RemovalError
from cloudgpu.control.removal.keeping import needed_by
from cloudgpu.control.removal.removing import find_prunable, remove
from cloudgpu.control.store.model import JobRow, Source
from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord, attempt_key, local_url

from ..standins import s3
from ..standins.control import World, make_job, make_offer, make_policy, make_template

ID = "digits-abcd2345"
OLD = 1_000.0


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    return World(tmp_path / "world", template)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


def add(world: World, url: str, job_id: str = ID, *, write: bool = True, **more: Any) -> JobRow:
    """Store a job that has ended, with a folder."""
    row = make_job(job_id, url, (make_offer(),), now=1.0, **{"state": "succeeded", "ended": OLD, **more})
    world.store.insert_job(row, "submitted")
    if write:
        for folder in {url, *row.policy.job_dirs.values()}:
            JobDir(folder).put(JOB_KEY, JobRecord(job_id=job_id, name="digits", run="true").to_bytes())
            JobDir(folder).put("outputs/model.pt", b"1")
    return row


def jobs(world: World) -> list[str]:
    return [job.id for job in world.store.list_jobs(active_only=False)]


class TestRemoving:
    def test_the_folder_and_the_row_go(self, world: World, bucket: s3.S3) -> None:
        row = add(world, f"s3://bucket/jobs/{ID}")
        add(world, f"s3://bucket/jobs/{ID}2", f"{ID}2")
        remove(world.store, world.job(ID))
        assert jobs(world) == [f"{ID}2"]
        assert set(bucket.objects) == {f"jobs/{ID}2/job.json", f"jobs/{ID}2/outputs/model.pt"}
        assert (world.store.events(ID), world.store.attempts(ID)) == ([], [])
        remove(world.store, row)  # gone already

    def test_each_clouds_folder_goes(self, world: World, bucket: s3.S3, tmp_path: Path) -> None:
        dirs = {"aws": f"s3://bucket/jobs/{ID}", "gcp": local_url(tmp_path / ID)}
        add(world, dirs["aws"], policy=make_policy(job_dirs=dirs))
        remove(world.store, world.job(ID))
        assert bucket.objects == {} and not (tmp_path / ID).exists()

    def test_the_record_can_be_kept(self, world: World, tmp_path: Path) -> None:
        add(world, local_url(tmp_path / ID))
        remove(world.store, world.job(ID), keep_record=True)
        assert jobs(world) == [ID] and not (tmp_path / ID).exists()
        assert [event.kind for event in world.store.events(ID)] == ["submitted", "removing", "removed"]
        assert find_prunable(world.store, time.time(), lambda _job: True).candidates == []
        remove(world.store, world.job(ID))
        assert jobs(world) == []

    def test_a_folder_that_is_gone_is_no_error(self, world: World, tmp_path: Path) -> None:
        add(world, local_url(tmp_path / ID), write=False)
        remove(world.store, world.job(ID))
        assert jobs(world) == []

    @pytest.mark.parametrize("state", ["queued", "running", "recovering", "stopping"])
    def test_a_job_that_has_not_ended_is_refused(self, world: World, tmp_path: Path, state: str) -> None:
        add(world, local_url(tmp_path / ID), state=state, ended=None)
        with pytest.raises(
            RemovalError, match=rf"{ID} is {state}: cancel it first, with `cloudgpu cancel {ID} --wait`"
        ):
            remove(world.store, world.job(ID))
        assert (tmp_path / ID / "outputs/model.pt").exists()

    def test_one_that_begins_again_meanwhile_keeps_its_files(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(world, local_url(tmp_path / ID))
        claim = world.store.claim_removal

        def begin_first(job: JobRow, now: float) -> bool:
            with world.store._transaction() as connection:  # as a further run would begin
                connection.execute("UPDATE jobs SET state = 'queued', ended = NULL WHERE id = :of", {"of": job.id})
            return claim(job, now)

        monkeypatch.setattr(world.store, "claim_removal", begin_first)
        with pytest.raises(RemovalError, match="was started again"):
            remove(world.store, world.job(ID))
        assert (tmp_path / ID / "outputs/model.pt").exists() and world.job(ID).goal == "run"

    def test_one_that_ran_again_since_it_was_chosen_keeps_its_files(self, world: World, tmp_path: Path) -> None:
        chosen = add(world, local_url(tmp_path / ID))
        again = dataclasses.replace(chosen, state="queued", ended=None, updated=2.0)
        world.store.resume_job(chosen, again, "run 2")
        with world.store._transaction() as connection:
            connection.execute("UPDATE jobs SET state = 'succeeded', ended = 3, updated = 3", {})
        with pytest.raises(RemovalError, match="was started again since you chose it, and is kept"):
            remove(world.store, chosen)
        assert (tmp_path / ID / "outputs/model.pt").exists() and world.job(ID).goal == "run"
        remove(world.store, world.job(ID))
        assert jobs(world) == []


class TestOwnFolders:
    @pytest.mark.parametrize(
        "url",
        [
            "s3://bucket",
            "s3://bucket/jobs",
            "s3://bucket/jobs/digits-other234",
            f"s3://bucket/jobs?/{ID}",
            f"s3://bucket/jobs#/{ID}",
        ],
    )
    def test_another_path_is_never_deleted(self, world: World, bucket: s3.S3, url: str) -> None:
        bucket.objects |= {"jobs/other/job.json": b"{}", "jobs": b"", "top": b""}
        add(world, url, write=False)
        with pytest.raises(RemovalError, match="it is no folder of this job's name"):
            remove(world.store, world.job(ID))
        assert len(bucket.objects) == 3 and jobs(world) == [ID]

    def test_a_bucket_of_that_name_is_no_folder(self, world: World, bucket: s3.S3) -> None:
        add(world, f"s3://{ID}", write=False)
        with pytest.raises(RemovalError, match="it is no folder of this job's name"):
            remove(world.store, world.job(ID))
        assert bucket.requests == []

    @pytest.mark.parametrize("job_id", ["", ".", "..", "jobs", "shared", "a/b-c"])
    def test_nor_is_that_of_an_odd_id(self, world: World, tmp_path: Path, job_id: str) -> None:
        folder = tmp_path / "keep" / job_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").touch()
        add(world, local_url(folder), job_id, write=False)
        with pytest.raises(RemovalError, match="it is no folder of this job's name"):
            remove(world.store, world.job(job_id))
        assert (folder / "file").exists()

    def test_a_link_is_not_followed(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious/file").touch()
        add(world, f"{local_url(tmp_path)}/{ID}", write=False)
        (tmp_path / ID).symlink_to(tmp_path / "precious")
        with pytest.raises(RemovalError, match="it is a link to another folder"):
            remove(world.store, world.job(ID))
        assert (tmp_path / "precious/file").exists()

    def test_links_in_it_are_removed_and_not_followed(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious/file").touch()
        add(world, local_url(tmp_path / ID))
        (tmp_path / ID / "outputs/link").symlink_to(tmp_path / "precious")
        remove(world.store, world.job(ID))
        assert (tmp_path / "precious/file").exists() and not (tmp_path / ID).exists()

    def test_a_record_of_another_job_keeps_it(self, world: World, bucket: s3.S3) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        bucket.objects[f"jobs/{ID}/job.json"] = JobRecord(job_id="other-1", name="other", run="x").to_bytes()
        with pytest.raises(RemovalError, match=r"its job\.json is that of other-1"):
            remove(world.store, world.job(ID))
        assert f"jobs/{ID}/outputs/model.pt" in bucket.objects

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"job_id": 7}'])
    def test_a_damaged_record_does_not_keep_it(self, world: World, bucket: s3.S3, data: bytes) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        bucket.objects[f"jobs/{ID}/job.json"] = data
        remove(world.store, world.job(ID))
        assert bucket.objects == {}

    @pytest.mark.parametrize("inside", ["", "/outputs/other-abcd2345"])
    def test_another_jobs_folder_in_it_keeps_it(self, world: World, bucket: s3.S3, inside: str) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        add(world, f"s3://bucket/jobs/{ID}{inside}", "other-abcd2345", write=False)
        with pytest.raises(RemovalError, match="the folder of other-abcd2345 is in it"):
            remove(world.store, world.job(ID))
        assert len(bucket.objects) == 2

    def test_what_is_not_mounted_is_not_said_to_be_removed(self, world: World, tmp_path: Path) -> None:
        add(world, local_url(tmp_path / "disk" / ID))
        (tmp_path / "disk").rename(tmp_path / "unmounted")
        with pytest.raises(RemovalError, match=r"disk is not on this computer now"):
            remove(world.store, world.job(ID))
        assert (tmp_path / "unmounted" / ID / JOB_KEY).exists() and world.job(ID).goal == "run"
        (tmp_path / "disk").mkdir()
        remove(world.store, world.job(ID))
        assert jobs(world) == []

    def test_attempts_of_another_store_keep_it(self, world: World, bucket: s3.S3) -> None:
        add(world, f"s3://bucket/jobs/{ID}", attempt=1)
        for number in (1, 2):
            JobDir(f"s3://bucket/jobs/{ID}").put(attempt_key(number), b"{}")
        with pytest.raises(RemovalError, match="it has an attempt 2, and here the job had 1"):
            remove(world.store, world.job(ID))
        assert len(bucket.objects) == 4 and world.job(ID).goal == "run"
        JobDir(f"s3://bucket/jobs/{ID}").delete(attempt_key(2))
        remove(world.store, world.job(ID))
        assert bucket.objects == {}


class TestInterruptions:
    def test_the_row_stays_until_the_files_are_gone(self, world: World, bucket: s3.S3) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        refused = bucket.fail("delete", status=403, code="AccessDenied")
        with pytest.raises(JobDirError, match="access denied"):
            remove(world.store, world.job(ID))
        assert jobs(world) == [ID] and world.job(ID).goal == "remove"
        bucket.faults.remove(refused)
        remove(world.store, world.job(ID))
        assert jobs(world) == [] and bucket.objects == {}

    def test_two_at_once_do_no_harm(self, world: World, bucket: s3.S3) -> None:
        for _ in range(5):
            row = add(world, f"s3://bucket/jobs/{ID}")
            bucket.objects |= {f"jobs/{ID}/checkpoints/{number}": b"" for number in range(1_500)}
            with ThreadPoolExecutor(2) as pool:
                for done in [pool.submit(remove, world.store, row) for _ in range(2)]:
                    done.result()
            assert jobs(world) == [] and bucket.objects == {}

    @pytest.mark.parametrize("page", [0, 1])
    def test_a_killed_one_goes_on(self, world: World, bucket: s3.S3, page: int) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        bucket.objects |= {f"jobs/{ID}/checkpoints/{number:04d}": b"" for number in range(1_500)}
        deletions = 0

        def is_late(request: s3.Request) -> bool:
            nonlocal deletions
            deletions += request.kind == "delete"
            return request.kind == "delete" and deletions > page

        bucket.faults.append(s3.Fault(is_late, hang=True))
        script = (
            "from cloudgpu.control.store.store import Store; from cloudgpu.control.removal.removing import remove\n"
        )
        script += f"store = Store.open({world.url!r}); remove(store, store.job({ID!r}))"
        process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **bucket.environment})
        until = time.monotonic() + 180
        while deletions <= page:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        bucket.faults.clear()
        assert world.job(ID).goal == "remove" and bucket.objects
        remove(world.store, world.job(ID))
        assert jobs(world) == [] and bucket.objects == {}


class TestPruning:
    def test_old_jobs_are_found_with_their_sizes_oldest_first(
        self, world: World, bucket: s3.S3, tmp_path: Path
    ) -> None:
        add(world, f"s3://bucket/jobs/{ID}", ended=OLD + 5)
        add(world, local_url(tmp_path / "b-abcd2345"), "b-abcd2345", ended=OLD)
        add(world, local_url(tmp_path / "new-abcd2345"), "new-abcd2345", ended=OLD + 100)
        add(world, local_url(tmp_path / "run-abcd2345"), "run-abcd2345", state="running", ended=None)
        found = find_prunable(world.store, OLD + 50, lambda _job: True)
        assert [(one.job.id, one.usage and one.usage.objects) for one in found.candidates] == [
            ("b-abcd2345", 2),
            (ID, 2),
        ]
        assert all(one.usage is not None and one.usage.bytes > 100 for one in found.candidates)
        only = find_prunable(world.store, OLD + 50, lambda job: job.id == ID)
        assert [one.job.id for one in only.candidates] == [ID]

    def test_an_unreadable_folder_has_an_unknown_size(self, world: World, bucket: s3.S3) -> None:
        add(world, f"s3://bucket/jobs/{ID}")
        bucket.fail("list", status=403, code="AccessDenied")
        (one,) = find_prunable(world.store, OLD + 50, lambda _job: True).candidates
        assert one.usage is None and "access denied" in one.problem

    def test_what_a_kept_job_was_started_from_is_needed(self) -> None:
        rows: Any = [
            SimpleNamespace(id="base", source=None, is_record=False),
            SimpleNamespace(id="next", source=SimpleNamespace(job="base"), is_record=False),
            SimpleNamespace(id="last", source=SimpleNamespace(job="next"), is_record=False),
        ]
        assert needed_by(rows) == {"base": ["next"], "next": ["last"]}
        assert needed_by(rows, {"last"}) == {"base": ["next"]}
        assert needed_by(rows, {"base", "next", "last"}) == {}
        rows[1].is_record = True
        assert needed_by(rows) == {"next": ["last"]}


def test_a_new_job_is_watched_although_its_event_has_a_removed_ones_number(world: World, tmp_path: Path) -> None:
    supervisor = world.supervisor()
    job_id = world.submit()
    world.drive(supervisor, until=lambda: world.job(job_id).ended is not None)
    last = world.store.last_event()
    remove(world.store, world.job(job_id))
    again = world.submit()
    assert world.store.last_event() <= last
    supervisor.tick(woken=[again])
    assert world.job(again).state != "queued" or world.attempts(again)


def test_pruning_keeps_whole_chains(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new job was started from an old one, which was started from a still older one."""
    names = ["a-abcd2345", "b-abcd2345", "c-abcd2345"]
    for number, name in enumerate(names):
        add(world, local_url(tmp_path / name), name, ended=OLD + 100 * number)
    sources = {job: Source(origin, "", 1) for job, origin in zip(names[1:], names, strict=False)}
    listed = world.store.list_jobs

    def with_sources(**which: Any) -> Any:
        return [dataclasses.replace(row, source=sources.get(row.id)) for row in listed(**which)]

    monkeypatch.setattr(world.store, "list_jobs", with_sources)
    found = find_prunable(world.store, OLD + 150, lambda _job: True)
    assert found.candidates == []
    assert found.needed == {"a-abcd2345": ["b-abcd2345"], "b-abcd2345": ["c-abcd2345"]}
    with pytest.raises(RemovalError, match="b-abcd2345 is needed: c-abcd2345 started from it"):
        remove(world.store, world.job("b-abcd2345"))


def test_a_job_that_stays_keeps_the_one_that_it_was_started_from(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = add(world, local_url(tmp_path / "base-abcd2345"), "base-abcd2345")
    source = Source(base.id, base.job_dir, 1)
    tune = add(world, local_url(tmp_path / ID), source=source, created=2.0, state="running", ended=None)
    monkeypatch.setattr("cloudgpu.control.store.store.open_store", lambda: world.store)
    done = take_away([base, tune], keep_record=False)
    assert [(one.job, one.is_refused) for one in done] == [(tune.id, True), (base.id, True)]
    assert (tmp_path / base.id / "outputs/model.pt").exists() and sorted(jobs(world)) == [base.id, tune.id]
