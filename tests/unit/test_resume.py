"""Further runs of ended jobs, on a simulated clock: what counts anew, what is kept, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloudgpu.cli.resume import command
from cloudgpu.control.errors import NotEndedError, ResumeError
from cloudgpu.control.jobs import Job
from cloudgpu.control.removal.removing import remove
from cloudgpu.control.store.model import Policy, Source
from cloudgpu.control.submit import submission
from cloudgpu.control.submit.resumption import prepare
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.draft import LoadedSpec
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import Offer, Plan
from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord, attempt_key, read_job, run_key
from cloudgpu.runtime.checkpoint.store import CheckpointStore
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.cloud import FAIL, TAKEN, Life, lives, save_checkpoint
from cloudgpu.tests.standins.control import World, make_offer, make_policy

HERE = {"name": "job", "run": "true", "resources": {"accelerator": [], "cloud": ["local"]}, "code": None}
"""A job that runs on this machine only, in stored form."""
LONG = Life(run_s=3_000.0)
SHORT = Life(run_s=60.0)
FAILS_LATE = Life(run_s=60.0, end="failed", exit_code=3, reason="exit code 3")


@pytest.fixture
def world(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    made = World(tmp_path, template)
    made.cloud.stores = True
    yield made
    made.store.close()


def job_of(world: World, job_id: str) -> Job:
    return Job(world.store, world.job(job_id))


def resume(world: World, job_id: str, *overrides: str, offers: tuple[Offer, ...] = (), **options: Any) -> None:
    job = job_of(world, job_id)
    draft = job.draft_resumption(overrides, **options)
    job.begin_run(draft, Plan(offers or (make_offer(),)), supervise=False)


def restored(world: World) -> list[int]:
    return [machine.restored for machine in world.cloud.machines]


def submit(world: World, *offers: Offer, policy: Policy | None = None) -> str:
    """Submit the job HERE."""
    return world.submit(*offers, policy=policy, spec=HERE)


ENDS: dict[str, tuple[Policy, Life, str]] = {
    "duration": (make_policy(duration_s=60), LONG, "stopped"),
    "cost": (make_policy(cost_usd=Decimal("0.06")), LONG, "stopped"),
    "failed": (make_policy(failures=0), FAILS_LATE, "failed"),
    "": (make_policy(), SHORT, "succeeded"),
}


@pytest.mark.parametrize("cause", ENDS)
def test_however_it_ended_it_goes_on_from_its_checkpoint(world: World, cause: str) -> None:
    policy, life, state = ENDS[cause]
    world.cloud.script = lives(life, SHORT)
    job_id = submit(world, policy=policy)
    world.finish(job_id)
    ended = world.job(job_id)
    assert (ended.state, ended.cause) == (state, cause)
    first = world.attempts(job_id)[0]
    assert first.progress is not None and first.progress.saved_step
    spent = ended.spent
    assert spent

    limits = {"duration": ["limits.duration=80s"], "cost": ["limits.cost=0.08 USD"]}
    resume(world, job_id, *limits.get(cause, []))
    queued = world.job(job_id)
    assert (queued.state, queued.reason, queued.ended, queued.run.number) == ("queued", "", None, 2)
    world.finish(job_id)
    done = world.job(job_id)
    assert done.state == "succeeded", done.reason
    assert [attempt.number for attempt in world.attempts(job_id)] == [1, 2]
    assert restored(world) == [0, first.progress.saved_step]
    second = world.attempts(job_id)[1]
    assert done.spent is not None and done.spent == spent + (second.cost or 0)
    kinds = [event.kind for event in world.store.events(job_id)]
    assert kinds.count("resumed") == 1 and kinds.count("submitted") == 1


def test_a_cancelled_job_goes_on(world: World) -> None:
    world.cloud.script = lives(LONG, SHORT)
    job_id = submit(world)
    world.drive(world.supervisor(), until=lambda: world.cloud.saved_step > 0)
    world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    world.finish(job_id)
    assert world.job(job_id).state == "cancelled"
    resume(world, job_id)
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded" and restored(world)[1] > 0


def test_a_limit_ends_the_further_run_by_what_that_run_used(world: World) -> None:
    world.cloud.script = lives(LONG)
    job_id = submit(world, policy=make_policy(cost_usd=Decimal("0.06")))
    world.finish(job_id)
    first = world.job(job_id).spent
    for number in (2, 3):
        resume(world, job_id, "limits.cost=0.06 USD")
        world.finish(job_id)
        job = world.job(job_id)
        assert (job.state, job.cause, job.run.number) == ("stopped", "cost", number)
        assert "since it was resumed" in job.reason
        assert first and job.spent and abs(job.spent - number * first) < Decimal("0.02")


def test_retries_count_anew(world: World) -> None:
    world.cloud.script = lives(FAILS_LATE, FAIL, FAIL, FAIL, SHORT)
    job_id = submit(world, policy=make_policy(failures=1))
    world.finish(job_id)
    assert [one.outcome for one in world.attempts(job_id)] == ["failed", "failed"]
    resume(world, job_id)
    world.finish(job_id)
    assert [one.outcome for one in world.attempts(job_id)] == ["failed"] * 4
    assert world.job(job_id).reason == "exit code 3"
    resume(world, job_id, "retry.failure=3")
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded" and len(world.attempts(job_id)) == 5


def test_interruptions_of_earlier_runs_do_not_end_a_further_one(world: World) -> None:
    world.cloud.script = lives(*[Life(end="vanish", saves=False)] * 6, TAKEN, SHORT)
    world.cloud.stores = False
    job_id = submit(world)
    world.finish(job_id)
    assert "interrupted 6 times in a row" in world.job(job_id).reason
    resume(world, job_id)
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded"


def test_places_that_never_had_machines_are_asked_again(world: World) -> None:
    world.cloud.full = {"z-1"}
    there = make_offer(zone="z-1")
    job_id = submit(world, there, policy=make_policy(capacity_s=60))
    world.finish(job_id)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "capacity")
    world.cloud.full = set()
    resume(world, job_id, "retry.capacity=60s", offers=(there,))
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded"


# -- changes


def test_changes_are_a_record_of_the_runs_own(world: World) -> None:
    world.cloud.script = lives(SHORT)
    job_id = submit(world)
    world.finish(job_id)
    job_dir, before = JobDir(world.job(job_id).job_dir), world.job(job_id).job_sha256
    first = job_dir.get(JOB_KEY)
    resume(world, job_id, "run=echo more", "env.LR=0.1", "priority=7")
    row = world.job(job_id)
    assert row.job_sha256 != before and row.policy.priority == 7
    assert row.spec["env"] == {"LR": "***"} and row.spec["run"] == "echo more"
    assert job_dir.get(JOB_KEY) == first and job_dir.exists(run_key(row.job_sha256))
    record = JobRecord.from_bytes(read_job(job_dir, row.job_sha256) or b"")
    assert (record.run, record.env, record.job_id) == ("echo more", {"LR": "0.1"}, job_id)
    world.finish(job_id)
    assert world.cloud.launches[-1].job_sha256 == row.job_sha256
    resume(world, job_id, "args=[--more]")
    record = JobRecord.from_bytes(read_job(job_dir, world.job(job_id).job_sha256) or b"")
    assert (record.run, record.env, record.args) == ("echo more", {"LR": "0.1"}, ["--more"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("name=other", "the job keeps its name"),
        ("job_dir=s3://bucket/other", "--from JOB"),
        ("code=/elsewhere", "--code"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_way(world: World, override: str, told: str) -> None:
    job_id = submit(world)
    world.finish(job_id)
    with pytest.raises(ResumeError, match=told):
        resume(world, job_id, override)
    assert world.job(job_id).state == "succeeded"


@pytest.mark.parametrize("override", ["limits.cost=much", "nothing.like=this", "resources.accelerator=NOPE", "x"])
def test_changes_are_checked_like_a_job_file(world: World, override: str) -> None:
    job_id = submit(world)
    world.finish(job_id)
    with pytest.raises(SpecError):
        resume(world, job_id, override)


# -- clusters


def on_cluster(world: World) -> str:
    """Return the id of a job that has ended on the cluster `big`."""
    job_id = submit(world, make_offer()._replace(cloud="cluster", region="big"))
    world.finish(job_id)
    return job_id


def test_a_clusters_job_stays_there_unless_a_cloud_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = on_cluster(world)
    job = job_of(world, job_id)
    assert job.resume_command == f"cloudgpu resume {job_id} --cluster big"
    assert job.draft_resumption(["priority=7"]).cluster == "big"
    with pytest.raises(ResumeError, match=rf"ran on the cluster big: `cloudgpu resume {job_id}`"):
        job.resume(supervise=False)
    for named in ("resources.cloud=local", "resources={cloud: local, accelerator: none}"):
        assert job.draft_resumption([named]).cluster is None

    asked: list[str] = []
    monkeypatch.setattr("cloudgpu.control.jobs.open_store", lambda: world.store)

    def plan_on_cluster(loaded: LoadedSpec, name: str) -> tuple[LoadedSpec, Plan]:
        asked.append(name)
        return loaded, Plan((make_offer(),))

    monkeypatch.setattr("cloudgpu.cli.cluster.on_cluster.plan_on_cluster", plan_on_cluster)
    for more in ((), ("--cluster", "other"), ("--cloud", "local")):
        done = CliRunner().invoke(command, [job_id, "--dry-run", *more], standalone_mode=False)
        assert done.exception is None, done.output
    assert asked == ["big", "other"]
    assert job.refresh().done


def test_a_folder_for_a_cluster_does_not_refuse_the_next_run(world: World) -> None:
    offers = make_offer(), make_offer()._replace(cloud="cluster", region="big")
    job_id = world.submit(*offers, apart=True, spec=HERE)
    world.finish(job_id)
    draft = job_of(world, job_id).draft_resumption()
    assert draft.spec.job_dir == {"local": (world.folder / "local").as_uri()}
    resume(world, job_id)
    assert set(world.job(job_id).policy.job_dirs) == {"local", "cluster"}


def test_a_cloud_whose_folder_was_named_but_not_used_yet_gets_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here = (world.folder / "jobs").as_uri()
    job_id = world.submit(spec={**HERE, "job_dir": {"local": here, "aws": "s3://bucket/jobs"}})
    world.finish(job_id)
    draft = job_of(world, job_id).draft_resumption(["resources.cloud=aws"])
    assert draft.spec.job_dir == {"local": here, "aws": "s3://bucket/jobs"}
    monkeypatch.setattr("cloudgpu.control.submit.upload.Uploader.agents", lambda *_: {})
    monkeypatch.setattr("cloudgpu.control.submit.submission._accounts", lambda _offers: {})
    with s3.running() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        row = prepare(draft, [make_offer()._replace(cloud="aws")], lambda *_: None)
    assert row.dir_on("local") == f"{here}/{job_id}" and row.dir_on("aws") == f"s3://bucket/jobs/{job_id}"


# -- refusals


def test_a_job_that_has_not_ended_is_refused(world: World) -> None:
    job_id = submit(world)
    with pytest.raises(NotEndedError, match="is queued"):
        resume(world, job_id)


def test_a_job_whose_files_are_removed_is_refused(world: World) -> None:
    job_id = submit(world)
    world.finish(job_id)
    draft = job_of(world, job_id).draft_resumption()
    assert world.store.claim_removal(world.job(job_id), world.clock.now())
    with pytest.raises(ResumeError, match="are removed"):
        resume(world, job_id)
    with pytest.raises(ResumeError, match="was removed by another command"):
        job_of(world, job_id).begin_run(draft, Plan((make_offer(),)), supervise=False)
    assert job_of(world, job_id).resume_command is None


@pytest.mark.parametrize("keep_record", [False, True])
def test_of_a_job_that_is_removed_during_the_upload_nothing_is_left(
    world: World, tmp_path: Path, keep_record: bool
) -> None:
    with s3.running() as bucket, pytest.MonkeyPatch.context() as environment:
        for name, value in bucket.environment.items():
            environment.setenv(name, value)
        world.cloud.stores = False
        job_id = world.submit(job_dir="s3://bucket/jobs/job-00000001", spec=HERE)
        world.finish(job_id)
        job = job_of(world, job_id)
        draft = job.draft_resumption(["env.KEY=value"])

        def on_progress(step: str, _done: int, _total: int) -> None:
            if step == "submitting":
                remove(world.store, job.row, keep_record=keep_record)
                assert bucket.objects == {}

        with pytest.raises(ResumeError, match="was removed by another command"):
            job.begin_run(draft, Plan((make_offer(),)), on_progress=on_progress, supervise=False)
        assert bucket.objects == {}


def test_a_folder_that_is_removed_during_the_upload_is_not_made_again(world: World, tmp_path: Path) -> None:
    job_id = submit(world)
    world.finish(job_id)
    job, code = job_of(world, job_id), tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("1")
    draft = job.draft_resumption(code=code)
    remove(world.store, job.row)
    with pytest.raises(JobDirError):
        job.begin_run(draft, Plan((make_offer(),)), supervise=False)
    assert not (world.folder / "jobs" / job_id).exists()


def test_of_two_commands_one_is_refused(world: World) -> None:
    job_id = submit(world)
    world.finish(job_id)
    jobs = [job_of(world, job_id) for _ in range(2)]
    drafts = [job.draft_resumption() for job in jobs]
    jobs[0].begin_run(drafts[0], Plan((make_offer(),)), supervise=False)
    with pytest.raises(NotEndedError, match="by another command"):
        jobs[1].begin_run(drafts[1], Plan((make_offer(),)), supervise=False)
    world.finish(job_id)
    assert len(world.attempts(job_id)) == 2
    with pytest.raises(NotEndedError, match="by another command"):  # nor after that run has ended
        jobs[1].begin_run(drafts[1], Plan((make_offer(),)), supervise=False)


def test_a_supervisor_that_is_late_cannot_write_into_the_further_run(world: World) -> None:
    """A supervisor that was suspended before the job's last write holds no lease any more."""
    job_id = submit(world)
    world.finish(job_id)
    late = dataclasses.replace(world.job(job_id), lease_owner="late/1/a")
    resume(world, job_id)
    row = world.job(job_id)
    assert row.lease_owner is None
    assert not world.store.take_lease(dataclasses.replace(late, lease_beat=99), "late/1/a")


def test_a_folder_that_is_gone_changed_or_used_elsewhere_is_refused(world: World) -> None:
    job_id = submit(world)
    world.finish(job_id)
    job_dir = JobDir(world.job(job_id).job_dir)
    described = job_dir.get(JOB_KEY)
    job_dir.delete(JOB_KEY)
    with pytest.raises(ResumeError, match="is gone"):
        resume(world, job_id)
    for wrong in (described + b" ", b"{", b"\xff"):
        job_dir.put(JOB_KEY, wrong)
        with pytest.raises(ResumeError, match="is not the one that was submitted"):
            resume(world, job_id)
    job_dir.put(JOB_KEY, described)
    job_dir.put(attempt_key(2), b"{}")
    with pytest.raises(ResumeError, match=r"in use elsewhere: it has an attempt 2, and here .* had 1"):
        resume(world, job_id)
    job_dir.delete(attempt_key(2))
    save_checkpoint(job_dir, 500, 7)
    with pytest.raises(ResumeError, match="it has an attempt 7"):
        resume(world, job_id)


def test_nodes_that_train_separately_keep_their_number(world: World) -> None:
    job_id = submit(world)
    world.finish(job_id)
    row = world.job(job_id)
    for node in ("worker-0", "worker-1"):
        save_checkpoint(JobDir(row.job_dir), 10, 1, folder=f"checkpoints/{node}")
    for name in CheckpointStore(JobDir(row.job_dir), "checkpoints").names():
        CheckpointStore(JobDir(row.job_dir), "checkpoints").discard(name)
    with pytest.raises(ResumeError, match="train separately"):
        resume(world, job_id, "resources.nodes=2")
    resume(world, job_id, "resources.nodes=2", start_over=True)


# -- starting over


def test_starting_over_never_restores_what_was_saved_before(world: World) -> None:
    world.cloud.script = lives(SHORT, TAKEN, SHORT)
    job_id = submit(world)
    world.finish(job_id)
    job_dir = JobDir(world.job(job_id).job_dir)
    draft = job_of(world, job_id).draft_resumption(start_over=True)
    assert draft.step is None and "will never be restored again" in draft.describe_loss()
    resume(world, job_id, start_over=True)
    save_checkpoint(job_dir, 90_000, 1)  # a machine of the first run commits late
    world.cloud.saved_step = 0
    world.finish(job_id)
    assert restored(world)[1] == 0
    assert 0 <= restored(world)[2] < 90_000
    assert job_of(world, job_id).attempts()[2].outcome == "succeeded"
    resume(world, job_id)  # and a run that goes on does so from the history since then
    assert world.job(job_id).run.progress_since == 2
    world.finish(job_id)
    assert restored(world)[3] == world.cloud.saved_step or restored(world)[3] > 0
    assert restored(world)[3] < 90_000


def test_checkpoints_of_before_make_room_for_new_ones(tmp_path: Path) -> None:
    job_dir = JobDir(tmp_path.as_uri())
    for step in (10, 20, 30):
        save_checkpoint(job_dir, step, 1)
    trainer, writer = CheckpointStore(job_dir, "checkpoints", since=2), CheckpointStore(job_dir, "checkpoints")
    assert trainer.committed() == []
    left = []
    for step in (5, 6):
        save_checkpoint(job_dir, step, 2)
        writer.retain(writer.names()[0], 2)
        left.append([name.step for name in writer.names()])
    assert left == [[5, 30], [6, 5]]
    assert [name.step for name in trainer.committed()] == [6, 5]


class Interrupted:
    """Origin whose copy is interrupted: a part of a checkpoint is written."""

    def copy_to(self, target: JobDir, _on_progress: object) -> Source:
        target.put("checkpoints/10-0-abcdefgh/rank-0.bin", b"part")
        raise KeyboardInterrupt


@pytest.mark.parametrize("parent", ["s3://bucket/jobs", "local"])
def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    loaded = load_text(
        f"name: job\nrun: 'true'\njob_dir: {parent}\nresources: {{accelerator: none, cloud: local}}\n", base=tmp_path
    )
    origin: Any = Interrupted()
    with s3.running() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        bucket.objects["jobs/job-other/job.json"] = b"{}"
        with pytest.raises(KeyboardInterrupt):
            submission.prepare(loaded, [make_offer()], lambda *_: None, origin)
        assert [key for key in bucket.objects if "/shared/" not in key] == ["jobs/job-other/job.json"]
    assert not list(tmp_path.glob("local/*"))
