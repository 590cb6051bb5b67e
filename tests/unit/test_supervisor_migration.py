"""Jobs with a job dir in each cloud: they move before machines are requested, and never start over by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.errors import StoreError
from cloudgpu.control.reconcile.steps.migration import LOOK_S, used_job_dirs
from cloudgpu.control.supervisor.supervisor import RETRY_TIMEOUT_S, TRAINING_RETRY_TIMEOUT_S
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobDirError, attempt_key
from cloudgpu.tests.standins.cloud import TAKEN, Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy

AWS, GCP, AZURE = (
    make_offer(zone=zone)._replace(cloud=cloud) for cloud, zone in (("aws", "a-1"), ("gcp", "g-1"), ("azure", "z-1"))
)
TAKEN_LATE = Life(run_s=5, end="taken")


class Troubled:
    """Job dir that calls the test's hook before each write and listing."""

    def __init__(self, job_dir: JobDir, before: Any) -> None:
        self._job_dir, self._before = job_dir, before

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "create", "upload", "folders"):
            self._before(self._job_dir.url)
        return getattr(self._job_dir, name)


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    made = World(tmp_path, template, wrap=lambda what, it: Troubled(it, before) if what == "dir" else it)

    def before(url: str) -> None:
        made.on_call(url)  # type: ignore[attr-defined]

    made.on_call = lambda _url: None  # type: ignore[attr-defined]
    made.cloud.stores = True
    yield made
    made.store.close()


def place(world: World, job_id: str, offer: Offer) -> JobDir:
    return JobDir(world.job(job_id).dir_on(offer.cloud))


def messages_of(world: World, job_id: str, kind: str) -> list[str]:
    return [event.message for event in world.store.events(job_id) if event.kind == kind]


def clouds(world: World, job_id: str) -> list[str]:
    return [attempt.offer.cloud for attempt in world.attempts(job_id)]


def restored(world: World) -> list[int]:
    """Return the step that each machine restored."""
    return [machine.restored for machine in world.cloud.machines]


def test_without_capacity_the_job_goes_to_another_cloud(world: World) -> None:
    world.cloud.full = {"a-1", "g-1"}
    job_id = world.submit(AWS, GCP, AZURE, apart=True)
    world.finish(job_id)
    assert clouds(world, job_id) == ["aws", "gcp", "azure"]
    home, there = (place(world, job_id, offer) for offer in (AWS, AZURE))
    assert [request.job_dir for request in world.cloud.launches] == [there.url]
    assert there.get(JOB_KEY) == home.get(JOB_KEY)
    assert messages_of(world, job_id, "moved")[-1] == f"code copied from {home.url} to {there.url}"
    assert used_job_dirs(world.job(job_id), world.attempts(job_id)) == [there.url]


def test_clouds_that_share_a_job_dir_copy_nothing(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(AWS, GCP)
    world.finish(job_id)
    assert clouds(world, job_id) == ["aws", "gcp"] and messages_of(world, job_id, "moved") == []


def test_a_preempted_job_resumes_in_another_cloud_from_its_checkpoint(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    world.finish(job_id)
    left, here = place(world, job_id, GCP), place(world, job_id, AZURE)
    first, second = world.attempts(job_id)
    assert first.progress is not None and second.progress is not None
    assert restored(world) == [0, first.progress.saved_step] and restored(world)[1] > 0
    (message,) = messages_of(world, job_id, "moved")
    step = first.progress.saved_step
    assert message.startswith(f"checkpoint of step {step} copied from {left.url} to {here.url}, ")
    (begun,) = messages_of(world, job_id, "moving")
    assert begun.startswith(f"copying the checkpoint of step {step}, ") and begun.endswith(f"to {here.url}")
    records = [AttemptRecord.from_bytes(at.get(attempt_key(2))) for at in (left, here)]
    assert [record.job_dir for record in records] == [here.url] * 2
    assert left.list("attempts/0002/nodes") == [] and here.list("attempts/0001") == []


def test_there_and_back_and_on(world: World) -> None:
    """The newest job dir is the one where machines ran last, not the one with the most data."""
    world.cloud.script = lives(TAKEN_LATE, TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    world.finish(job_id)
    assert clouds(world, job_id) == ["gcp", "azure", "gcp"]
    assert restored(world) == sorted(set(restored(world))) and len(restored(world)) == 3
    first, second = (place(world, job_id, offer).url for offer in (GCP, AZURE))
    assert used_job_dirs(world.job(job_id), world.attempts(job_id)) == [first, second]


def test_refused_places_between_attempts_lose_no_progress(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AWS, AZURE, apart=True)
    world.cloud.full = {"a-1"}
    world.finish(job_id)
    assert clouds(world, job_id) == ["gcp", "aws", "azure"]
    left = place(world, job_id, GCP).url
    assert [f"copied from {left} to " in message for message in messages_of(world, job_id, "moved")] == [True, True]
    assert restored(world)[-1] > 0


def test_code_that_is_there_already_is_not_said_to_be_copied_again(world: World) -> None:
    world.cloud.full = {"g-1", "z-1"}
    job_id = world.submit(GCP, AZURE, AZURE._replace(zone="z-2"), apart=True)
    world.finish(job_id)
    left, here = place(world, job_id, GCP).url, place(world, job_id, AZURE).url
    assert messages_of(world, job_id, "moved") == [f"code copied from {left} to {here}"]


def test_a_copy_that_is_there_already_is_said_to_be(world: World) -> None:
    """Users estimate the cost of the copy from this message."""
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, AZURE._replace(zone="z-2"), apart=True)
    world.cloud.full = {"z-1"}
    world.finish(job_id)
    assert [(one.offer.cloud, one.outcome) for one in world.attempts(job_id)][1] == ("azure", "refused")
    left, here = place(world, job_id, GCP).url, place(world, job_id, AZURE).url
    first, second = messages_of(world, job_id, "moved")
    assert f" copied from {left} to {here}, " in first and second.endswith(f" is in {here} already")
    assert len(messages_of(world, job_id, "moving")) == 1


def test_a_program_that_saved_nothing_begins_anew_and_that_is_said(world: World) -> None:
    world.cloud.script = lives(Life(run_s=5, end="taken", saves=False), Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    world.finish(job_id)
    left, here = (place(world, job_id, offer).url for offer in (GCP, AZURE))
    assert messages_of(world, job_id, "moved") == [f"no checkpoint in {left}: the program starts over in {here}"]


@pytest.mark.parametrize("on_damage", ["stop", "restart"])
def test_a_program_whose_checkpoints_are_all_damaged_begins_anew_only_if_its_job_says_so(
    world: World, on_damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True, on_damage=on_damage)
    left, here = place(world, job_id, GCP), place(world, job_id, AZURE)
    names: list[str] = []

    def before(url: str) -> None:
        if url == here.url and world.job(job_id).attempt == 2 and not names:
            for entry in left.entries("checkpoints"):
                if entry.key.endswith(".bin"):
                    left.put(entry.key, bytes(entry.size))
                    names.append(entry.key.split("/")[1])
            world.cloud.saved_step = 0  # starting over is no violation here

    world.on_call = before  # type: ignore[attr-defined]
    world.finish(job_id)
    job = world.job(job_id)
    assert names
    if on_damage == "restart":
        assert job.state == "succeeded" and restored(world) == [0, 0]
        (message,) = messages_of(world, job_id, "moved")
        assert message.startswith(f"every checkpoint is damaged: the program starts over in {here.url}; skipped")
        assert all(name in message for name in names) and message in caplog.text
        return
    assert (job.state, len(world.cloud.launches)) == ("failed", 1)
    for expected in ("every checkpoint is damaged", *names, "rank-00000.bin differs", "on_damage: restart"):
        assert expected in job.reason


@pytest.mark.parametrize("which", ["left", "here"])
@pytest.mark.parametrize("down_s", [RETRY_TIMEOUT_S * 2, None], ids=["for a while", "for good"])
def test_a_store_that_is_down_is_waited_for_and_no_machine_begins_anew(
    world: World, which: str, down_s: float | None
) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    url = place(world, job_id, GCP if which == "left" else AZURE).url
    failed: list[float] = []

    def before(of: str) -> None:
        if of == url and world.job(job_id).attempt == 2:
            failed.append(world.clock.monotonic())
            if down_s is None or failed[-1] - failed[0] < down_s:
                raise JobDirError(f"{url}: it is down")

    world.on_call = before  # type: ignore[attr-defined]
    supervisor = world.supervisor()
    world.drive(supervisor, for_s=3 * TRAINING_RETRY_TIMEOUT_S)
    world.check_clean()
    job = world.job(job_id)
    assert messages_of(world, job_id, "trouble") == [f"{url}: it is down"]
    if down_s is not None:
        assert job.state == "succeeded" and restored(world)[1] > 0
        return
    assert (job.state, len(world.cloud.launches)) == ("failed", 1)
    assert job.reason == f"given up after {TRAINING_RETRY_TIMEOUT_S:.0f} s: {url}: it is down"
    assert TRAINING_RETRY_TIMEOUT_S <= failed[-1] - failed[0] <= TRAINING_RETRY_TIMEOUT_S + 120


def test_a_line_that_breaks_again_and_again_is_borne_as_long_as_something_comes_over(world: World) -> None:
    """Two failures more than an hour apart do not count as an hour of failures."""
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    here = place(world, job_id, AZURE).url
    calls = 0

    def before(url: str) -> None:
        nonlocal calls
        if url == here and world.job(job_id).attempt == 2:
            calls += 1
            if calls in {2, 4}:  # the data, and the manifest once the data is copied
                raise JobDirError(f"{url}: it is down")
            world.clock.advance(TRAINING_RETRY_TIMEOUT_S if calls == 3 else 0)

    world.on_call = before  # type: ignore[attr-defined]
    world.drive(world.supervisor(), for_s=3 * TRAINING_RETRY_TIMEOUT_S)
    assert world.job(job_id).state == "succeeded" and restored(world)[1] > 0


def test_copying_is_not_paid_for(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True, policy=make_policy(cost_usd=Decimal("0.5")))
    here = place(world, job_id, AZURE).url
    copied: list[float] = []

    def before(url: str) -> None:
        if url == here and world.job(job_id).attempt == 2 and not copied:
            world.clock.advance(7_200)  # at 3.6 USD/h
            copied.append(world.clock.now())

    world.on_call = before  # type: ignore[attr-defined]
    world.drive(world.supervisor(), for_s=3 * 3_600)
    world.check_clean()
    second = world.attempts(job_id)[1]
    assert world.job(job_id).state == "succeeded" and second.launched is not None and second.cost is not None
    assert second.launched >= copied[0] and second.cost < Decimal("0.1")
    times = [event.time for event in world.store.events(job_id)]
    assert times == sorted(times)


def test_a_store_of_jobs_that_does_not_answer_for_a_moment_breaks_no_copy_off(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    here, looks = place(world, job_id, AZURE).url, 0
    is_down = False

    class Down:
        """Store of jobs that can be down."""

        def __getattr__(self, name: str) -> Any:
            nonlocal looks
            if name == "job" and is_down:
                looks += 1
                raise StoreError("it is down")
            return getattr(world.store, name)

    def before(url: str) -> None:
        nonlocal is_down
        is_down = url == here and world.job(job_id).attempt == 2 and not looks
        world.clock.advance(LOOK_S if is_down else 0)

    world.on_call = before  # type: ignore[attr-defined]
    wrap = world.wrap
    world.wrap = lambda what, it: Down() if what == "store" else wrap(what, it)
    world.finish(job_id)
    assert looks == 1 and world.job(job_id).state == "succeeded" and restored(world)[1] > 0


def test_a_job_that_has_not_trained_is_not_waited_for_so_long(world: World) -> None:
    world.cloud.full = {"g-1"}
    job_id = world.submit(GCP, AZURE, apart=True)
    here = place(world, job_id, AZURE).url

    def before(url: str) -> None:
        if url == here:
            raise JobDirError(f"{url}: it is down")

    world.on_call = before  # type: ignore[attr-defined]
    world.drive(world.supervisor())
    assert world.job(job_id).reason == f"given up after {RETRY_TIMEOUT_S:.0f} s: {here}: it is down"


def test_a_job_is_cancelled_while_its_checkpoint_is_being_copied(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    here = place(world, job_id, AZURE).url

    def before(url: str) -> None:
        if url == here:
            world.clock.advance(LOOK_S)
            world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())

    world.on_call = before  # type: ignore[attr-defined]
    world.finish(job_id)
    assert world.job(job_id).state == "cancelled" and len(world.cloud.launches) == 1
    assert JobDir(here).list("checkpoints") == []


def test_limits_hold_while_a_checkpoint_is_being_copied(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, apart=True, policy=make_policy(duration_s=600))
    here = place(world, job_id, AZURE).url

    def before(url: str) -> None:
        world.clock.advance(600 if url == here else 0)

    world.on_call = before  # type: ignore[attr-defined]
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, len(world.cloud.launches)) == ("stopped", "duration", 1)
    assert JobDir(here).list("checkpoints") == []


def test_a_price_that_rises_while_a_checkpoint_is_being_copied_is_seen(world: World) -> None:
    world.cloud.script = lives(TAKEN_LATE, Life())
    job_id = world.submit(GCP, AZURE, AWS, apart=True, policy=make_policy(price_usd=Decimal(5)))
    here = place(world, job_id, AZURE).url

    def before(url: str) -> None:
        if url == here:
            world.cloud.prices["z-1"] = Decimal(9)

    world.on_call = before  # type: ignore[attr-defined]
    world.finish(job_id)
    assert [(one.offer.cloud, one.outcome) for one in world.attempts(job_id)] == [
        ("gcp", "preempted"),
        ("azure", "refused"),
        ("aws", "succeeded"),
    ]
    assert restored(world)[-1] > 0


def test_a_supervisor_that_lost_the_job_stops_copying(world: World) -> None:
    world.cloud.script = lives(TAKEN, Life())
    job_id = world.submit(GCP, AZURE, apart=True)
    here = place(world, job_id, AZURE).url
    writes: list[str] = []

    def before(url: str) -> None:
        if url == here:
            writes.append(url)
            world.clock.advance(LOOK_S)
            if len(writes) == 1:
                job = world.job(job_id)
                assert world.store.take_lease(job, "elsewhere/9/z")

    world.on_call = before  # type: ignore[attr-defined]
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: bool(writes))
    assert len(writes) == 1
