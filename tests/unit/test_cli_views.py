"""Views of a job for people: log lines, machines, the report. The jobs are real rows; nothing runs."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import time
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.cli.shared.job import job_view, report_view, start
from cloudgpu.cli.shared.job.follow import Follower, Interrupts, LineFormat, LogFilter
from cloudgpu.cli.status import view as status_view
from cloudgpu.control import jobs
from cloudgpu.control.accounting.report import AttemptReport, Report
from cloudgpu.control.jobs import Job
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import LocalMachine
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.protocol.jobdir import Heartbeat, JobDir, JobDirError, Result, node_key
from cloudgpu.protocol.logs.format import LogLine
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World

TODAY = datetime.date(2026, 6, 1)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Submit a job without a supervisor that would run it."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return submit("nodes: 2")


def submit(resources: str) -> Job:
    text = f"name: views\nresources: {{cloud: local, accelerator: none, {resources}}}\ncode: null\nrun: echo\n"
    loaded = load_text(text)
    return jobs.submit(loaded, plan(loaded.spec, machine=LocalMachine(4, 16.0), today=TODAY), supervise=False)


def line(text: str, node: str = "worker-0.1", *, rank: int | None = 0, partial: bool = False) -> LogLine:
    return LogLine(1_700_000_000.0, node, rank, "stdout", text, 1, partial)


def test_lines_of_several_machines_begin_with_theirs(job: Job) -> None:
    form = LineFormat(job)
    assert form(line("a")) + form(line("b", "worker-1.1", rank=1)) == "worker-0 | a\nworker-1 | b\n"


def test_parts_of_a_line_are_put_together(job: Job) -> None:
    form = LineFormat(job)
    lines = [
        line("loss: ", partial=True),
        line("0.5"),
        line("step 1", partial=True),
        line("other", "worker-1.1"),
        line(" of 2"),
        line("open", partial=True),
    ]
    assert ("".join(map(form, lines)) + form.close()).splitlines() == [
        "worker-0 | loss: 0.5",
        "worker-0 | step 1",
        "worker-1 | other",
        "worker-0 |  of 2",
        "worker-0 | open",
    ]


@pytest.mark.usefixtures("job")
def test_one_machine_needs_no_name() -> None:
    alone = submit("nodes: 1")
    assert LineFormat(alone)(line("text")) == "text\n"
    assert LineFormat(alone, timestamps=True)(line("text")).endswith(" text\n")


def test_an_interrupt_ends_following_between_two_steps(job: Job) -> None:
    follower = Follower(job, LineFormat(job), LogFilter())
    with Interrupts() as interrupts:
        interrupts.pending = True
        assert not follower.follow(interrupts)
        assert not interrupts.pending


def test_a_second_interrupt_gets_through() -> None:
    import signal

    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.pending
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_waiting_job_is_shown(job: Job) -> None:
    text = status_view.job_text(job)
    assert job.id in text
    assert "queued" in text
    assert "submitted; the best offer is" in text
    listed = status_view.list_text([job])
    assert max(map(len, listed.splitlines())) <= 100
    value = json.loads(json.dumps(status_view.status_json(job)))
    assert value["attempts"] == value["nodes"] == []
    assert value["report"] is None
    assert value["created"].endswith("Z")
    assert value["cost_usd"] == "0"


def test_phases_of_a_machine() -> None:
    now = time.time()
    node = job_view.NodeView("worker-0.1", 0, None, None)
    assert (node.phase, node.step) == ("pending", None)
    beat = Heartbeat(1, now, "running", {"step": 7})
    assert (dataclasses.replace(node, heartbeat=beat).phase, dataclasses.replace(node, heartbeat=beat).step) == (
        "running",
        7,
    )
    ended = dataclasses.replace(node, heartbeat=beat, result=Result("failed", 3, "exit 3", now, now, {"step": 9}))
    assert (ended.phase, ended.step) == ("failed", 9)


def test_a_machine_is_read_from_the_job_dir(job: Job) -> None:
    job_dir = job.open_dir()
    job_dir.put(node_key(1, "worker-1.1", "heartbeat.json"), Heartbeat(3, time.time(), "setup").to_bytes())
    assert job_view._node_view(job_dir, 1, "worker-0.1", 0).phase == "pending"
    assert job_view._node_view(job_dir, 1, "worker-1.1", 1).phase == "setup"


@pytest.fixture
def running(world: World) -> Job:
    """Start a job with the test's supervisor and fake machines."""
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    return Job(world.store, world.job(job_id))


def folder_of(job: Job) -> Path:
    folder = job.open_dir().folder
    assert folder is not None
    return folder


def test_a_job_dir_that_cannot_be_read_hides_nothing_else(running: Job, capsys: pytest.CaptureFixture[str]) -> None:
    (folder_of(running) / node_key(1, "worker-0.1", "heartbeat.json")).write_text("torn")
    value = status_view.status_json(running)
    assert (value["state"], len(value["attempts"])) == ("running", 1)
    assert [(node["node"], node["phase"]) for node in value["nodes"]] == [("worker-0.1", "unknown")]
    assert capsys.readouterr().err.startswith("warning: what worker-0.1 says cannot be read: file://")
    assert running.id in status_view.list_text([running])
    assert "job dir" in status_view.job_text(running)


def test_the_job_dir_of_a_job_that_has_ended_is_not_read(
    running: Job, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.store.set_goal(running.id, "cancel", "cancel", world.clock.now())
    world.finish(running.id)
    (folder_of(running) / node_key(1, "worker-0.1", "heartbeat.json")).write_text("torn")
    assert "cancelled" in status_view.job_text(running.refresh())
    assert capsys.readouterr().err == ""


class Unreadable(Job):
    """A job that has ended at the fourth refresh, and whose job dir cannot be read at the refreshes in `unread` (from
    1)."""

    looks = 0
    unread: Collection[int] = ()

    def refresh(self) -> Job:
        self.looks += 1
        if self.looks == 4:
            self.row = dataclasses.replace(self.row, state="succeeded")
        return self

    def logs(self) -> LogReader:
        return LogReader(self.open_dir(), self._places)

    def _places(self) -> dict[int, JobDir]:
        if self.looks in self.unread:
            raise JobDirError("no route to host")
        return {1: self.open_dir()}


def test_following_goes_on_where_the_job_dir_cannot_be_read_for_now(
    running: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = gzip.compress(json.dumps([time.time(), 0, "stdout", "hello"]).encode())
    running.open_dir().put(node_key(1, "worker-0.1", "log/00000001.gz"), lines)
    job = Unreadable(running._store, running.row)
    job.unread = (1, 2)
    with Interrupts() as interrupts:
        assert Follower(job, LineFormat(job), LogFilter()).follow(interrupts)
    printed = capsys.readouterr()
    assert printed.out == "hello\n"
    assert printed.err == "cloudgpu: the log cannot be read for now: no route to host\n"


def test_the_log_of_a_job_that_has_ended_cannot_be_read(running: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """`logs` fails then; `submit` exits with the job's result."""
    job = Unreadable(running._store, running.row)
    job.unread = (4, 5)
    with Interrupts() as interrupts, pytest.raises(JobDirError):
        Follower(job, LineFormat(job), LogFilter()).follow(interrupts)
    assert start._followed(Follower(job, LineFormat(job), LogFilter()), interrupts)
    assert capsys.readouterr().err == "warning: the rest of the log cannot be read: no route to host\n"


def attempt(number: int, outcome: str, *, step: int | None, redone: int) -> AttemptReport:
    return AttemptReport(number, outcome, "", "zone-a", 10.0, Decimal("0.5"), None, step, step, redone, 8.0)


def report(*attempts: AttemptReport, steps: int | None) -> Report:
    interruptions = sum(one.outcome == "preempted" for one in attempts)
    paid, useful = 10.0 * len(attempts), 8.0 * len(attempts)
    cost = Decimal("0.5") * len(attempts)
    redone = sum(one.redone for one in attempts)
    return Report(attempts, interruptions, steps, redone, paid, useful, paid - useful, useful / paid, cost, cost / 5)


def test_the_report_of_an_interrupted_job() -> None:
    first, second = attempt(1, "preempted", step=1_200, redone=34), attempt(2, "succeeded", step=2_000, redone=0)
    lines = report_view.report_lines(report(first, second, steps=2_000))
    assert lines[0] == "attempts  2 attempts, 1 interrupted; 20s paid, 1.00 USD"
    assert lines[1] == "steps     2,000 done, 34 redone"
    assert lines[2] == "goodput   80.0%: 16s of training that counts, 4.0s lost, 2.0s of it through the interruption"
    assert len(lines) == 6
    assert max(map(len, lines)) <= 98


def test_the_report_of_a_program_that_counts_no_steps() -> None:
    assert report_view.report_lines(report(attempt(1, "succeeded", step=None, redone=0), steps=None)) == [
        "attempts  1 attempt; 10s paid, 0.50 USD"
    ]
    unknown = dataclasses.replace(report(attempt(1, "succeeded", step=None, redone=0), steps=None), cost=None)
    assert report_view.report_lines(unknown) == ["attempts  1 attempt; 10s paid, cost unknown"]
