"""The life cycle of real jobs on target `local`, with the supervisor that submit starts in the background."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from cloudgpu.cli.exit_codes import Exit
from cloudgpu.cli.main import main
from cloudgpu.control import paths
from cloudgpu.control.accounting.paid_time import spans_of
from cloudgpu.control.errors import NoSuchJobError, NotRunningError, SubmitError
from cloudgpu.control.jobs import Job, ensure_supervisor, get_job, list_jobs, submit
from cloudgpu.control.submit.submission import owner_name
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.control.supervisor.outdated import replace_if_different
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import Plan
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import LaunchRequest, NodeRequest, Owner, get_provisioner
from cloudgpu.tests.standins.control import make_offer
from cloudgpu.tests.standins.local_jobs import home_processes, state_directory, stop_supervisor, submit_text
from cloudgpu.tests.standins.orphans import orphans

WAIT_S = 180.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a state directory with odd characters in its name."""
    with state_directory(tmp_path / "my home; $(x) #1 é", monkeypatch) as folder:
        yield folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def finish(job: Job) -> Job:
    assert job.wait(timeout_s=WAIT_S), f"{job.id} is still {job.state}: {[event.message for event in job.events()]}"
    return job


def until_running(job: Job, code: Path | None = None) -> None:
    """Wait until the job runs and, with `code`, the program has created the file `started` there."""
    end = time.monotonic() + WAIT_S
    while job.refresh().state != "running" or (code is not None and not (code / "started").exists()):
        assert time.monotonic() < end and not job.done, [event.message for event in job.events()]
        time.sleep(0.05)


def text_of(job: Job) -> list[str]:
    return [line.text for line in job.logs().read()[0] if line.stream != "agent"]


def test_a_job_runs_and_its_log_is_read(home: Path, code: Path) -> None:
    (code / "main.sh").write_text('echo "hello $1 from $CLOUDGPU_NODE, secret $SECRET"\n')
    job = submit_text('name: hello\nrun: sh main.sh "$@"\nargs: [you]\nenv: {SECRET: s3cr3t}\n', code)
    assert finish(job).state == "succeeded"
    assert text_of(job) == ["hello you from worker-0.1, secret s3cr3t"]
    assert (job.exit_code, job.offer.cloud, job.spec.env) == (0, "local", {"SECRET": "***"})
    assert get_job(job.id).row == get_job(job.id[:-2]).row == get_job("hello").row == job.row
    assert job.report().attempts[0].outcome == "succeeded"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert b"s3cr3t" not in (home / "cloudgpu.db").read_bytes()


def test_programs_are_found_as_in_the_shell_that_submitted(
    home: Path, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(submit_text("name: first\nrun: 'true'\ncode: null\n", code))  # a supervisor runs, from another shell
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "bin" / "mine").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    job = submit_text("name: second\nrun: [sh, -c, mine; command -v python]\ncode: null\n", code)
    assert finish(job).state == "succeeded"
    assert text_of(job) == ["found", str(Path(sys.executable).with_name("python"))]
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    job = submit_text("name: third\nrun: [sh, -c, echo $PATH]\ncode: null\n", code)
    finish(job)
    assert text_of(job) == [os.environ["PATH"]]


def test_a_job_gets_the_variables_of_its_own_submit(
    home: Path, code: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    show = 'echo "${TORCH_HOME-} ${MYKEY-none} ${https_proxy-none} ${LR-none} $HOME"'
    monkeypatch.setenv("MYKEY", "secret of the first shell")
    monkeypatch.setenv("https_proxy", "http://user:pa55word@proxy:3128")
    texts = []
    for cache in ("/first", "/second", "/third"):  # the first one starts the supervisor
        monkeypatch.setenv("TORCH_HOME", cache)
        job = finish(submit_text(f"name: env\nrun: {json.dumps(show)}\ncode: null\nenv: {{LR: '1'}}\n", code))
        texts += text_of(job)
        assert b"pa55word" not in (Path(unquote(job.job_dir.removeprefix("file://"))) / "job.json").read_bytes()
    kept = f"none none 1 {os.environ['HOME']}"
    assert texts == [f"/first {kept}", f"/second {kept}", f"/third {kept}"]
    assert "https_proxy: not passed on" in caplog.text
    assert b"pa55word" not in (home / "cloudgpu.db").read_bytes()


def test_a_program_that_fails_is_retried_and_its_exit_code_reported(home: Path, code: Path) -> None:
    job = finish(submit_text("name: fails\nrun: exit 7\n", code))
    (attempt,) = job.attempts()  # the retry uses the same machine
    assert (job.state, job.exit_code, attempt.outcome) == ("failed", 7, "failed")
    assert [record.failures for record in attempt.generations] == [1]
    assert "7" in job.reason


def test_a_program_that_dies_is_restarted_in_place_and_status_shows_it(home: Path, code: Path) -> None:
    (code / "main.sh").write_text("case $CLOUDGPU_GENERATION in 1) kill -9 $$ ;; 2) exit 75 ;; esac\n")
    job = finish(submit_text("name: dies\nrun: sh main.sh\n", code))
    (attempt,) = job.attempts()
    assert (job.state, attempt.outcome) == ("succeeded", "succeeded")
    first, second = [event.message for event in job.events() if event.kind == "restarted"]
    assert first.startswith("worker-0.1: rank 0: SIGKILL: ")
    assert first.endswith("; the program starts again in place (generation 2)")
    assert "exit code 75: it saved and asks to be run again" in second
    assert [span.generation for span in spans_of(attempt.timeline)] == [1, 2, 3]
    shown = subprocess.run(
        [sys.executable, "-m", "cloudgpu", "status", job.id],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "2 restarts in place" in shown


def test_cancel_ends_a_program_that_listens_to_nothing(home: Path, code: Path) -> None:
    job = submit_text(f"name: deaf\ncode: null\nrun: touch {code}/started; exec sleep 1000\n", code)
    until_running(job, code)
    job.cancel("enough")
    assert finish(job).state == "cancelled"
    job.cancel()  # a no-op
    assert job.state == "cancelled"
    with pytest.raises(NotRunningError):
        job.preempt(1)


def test_a_notice_leads_to_a_new_attempt(home: Path, code: Path) -> None:
    program = f"""
touch {code}/started
[ "$CLOUDGPU_ATTEMPT" = 2 ] && exit 0
touch "$CLOUDGPU_LISTENING"
while [ ! -e "$CLOUDGPU_NOTICE" ]; do sleep 0.05; done
exit 75
"""
    (code / "main.sh").write_text(program)
    job = submit_text("name: preempted\nretry: {failure: 0}\nrun: sh main.sh\n", code)
    until_running(job, code)
    with pytest.raises(NotRunningError, match="no node"):
        job.preempt(1, "worker-7")
    assert job.preempt(3_600, "worker-0") == ["worker-0.1"]
    assert finish(job).state == "succeeded", "the machine is not waited for"
    assert [attempt.outcome for attempt in job.attempts()] == ["preempted", "succeeded"]


def test_a_machine_that_is_taken_kills_the_program(home: Path, code: Path) -> None:
    """Only the program on the taken machine is killed: the other machine continues, and a new one joins it."""
    (code / "main.sh").write_text(
        f'touch {code}/started {code}/$CLOUDGPU_NODE; trap "" TERM; until [ -e {code}/worker-1.2 ]; do sleep 0.1; done'
    )
    job = submit_text("name: taken\nlauncher: none\nrun: exec sh main.sh\n", code, nodes=2)
    until_running(job, code)
    job.preempt(0.5, "worker-1")
    assert finish(job).state == "succeeded"
    (attempt,) = job.attempts()
    assert attempt.allocation is not None
    assert sorted(attempt.allocation.machines) == ["worker-0.1", "worker-1.1", "worker-1.2"]


def test_the_duration_limit_ends_a_job(home: Path, code: Path) -> None:
    job = finish(submit_text("name: long\nlimits: {duration: 2s}\nrun: exec sleep 1000\n", code))
    assert (job.state, job.cause) == ("stopped", "duration")
    assert (job.ended or 0) - job.created >= 2


def test_the_cost_limit_ends_a_job(home: Path, code: Path) -> None:
    job = finish(
        submit_text("name: dear\nlimits: {cost: 2 USD}\nrun: exec sleep 1000\n", code, price="3600")
    )  # a dollar a second
    assert (job.state, job.cause) == ("stopped", "cost")
    assert job.cost is not None and 1.5 < job.cost <= (job.ended or 0) - job.created


def test_a_refused_submission_leaves_nothing(home: Path, code: Path) -> None:
    loaded = load_text("name: codeless\ncode: .\nrun: 'true'\n", base=code)
    with pytest.raises(SubmitError, match="nothing can run"):
        submit(loaded, Plan(()))
    with pytest.raises(SubmitError, match="azure cannot reach the job dir"):
        submit(loaded, Plan((make_offer()._replace(cloud="azure"),)))
    limited = load_text("name: dear\nrun: 'true'\nlimits: {cost: 1 USD}\n", base=code)
    with pytest.raises(SubmitError, match=r"price .* is unknown"):
        submit(limited, Plan((make_offer(price=None),)))
    for url in ("file://elsewhere/jobs", "file://localhost.example/jobs", "~nobody-of-that-name/jobs"):
        lost = load_text(f"name: lost\njob_dir: {url}\ncode: null\nrun: 'true'\n", base=code)
        with pytest.raises(SubmitError, match=r"job_dir: .* path"):
            submit(lost, Plan((make_offer(),)))
    assert list(code.iterdir()) == []
    code.rmdir()
    with pytest.raises(SubmitError, match="no folder"):
        submit(loaded, Plan((make_offer(),)))
    with pytest.raises(NoSuchJobError):
        get_job("codeless")
    assert list_jobs() == []


def test_waiting_advances_a_job_without_a_supervisor(home: Path, code: Path) -> None:
    job = submit_text("name: alone\nrun: 'true'\n", code, supervise=False)
    assert not supervisor_lock.is_running()
    assert finish(job).state == "succeeded"


def test_a_state_directory_may_be_named_relative_to_the_working_directory(
    home: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("CLOUDGPU_HOME", home.name)
    job = finish(submit_text("name: relative\nrun: 'true'\n", code))
    assert job.state == "succeeded"
    stop_supervisor()
    monkeypatch.setenv("CLOUDGPU_HOME", str(home))
    assert get_job(job.id).state == "succeeded"


def test_concurrent_starts_give_one_supervisor(home: Path, code: Path) -> None:
    job = submit_text("name: many\nrun: 'true'\n", code, supervise=False)
    threads = [threading.Thread(target=ensure_supervisor) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(job)
    end = time.monotonic() + 180
    supervisors = [0, 0]
    while len(supervisors) != 1 and time.monotonic() < end:
        supervisors = []
        for process in home_processes(home):
            with contextlib.suppress(psutil.Error):  # it has just ended, because another one runs
                supervisors += [process.pid] if "supervise" in process.cmdline() else []
        time.sleep(0.1)
    there = supervisor_lock.running()
    assert there is not None and supervisors == [there.pid]


@pytest.mark.parametrize("service", [False, True])
def test_a_supervisor_with_another_project_is_replaced_when_idle_or_said_to_be_there(
    home: Path, monkeypatch: pytest.MonkeyPatch, service: bool
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "first")
    command = [sys.executable, "-m", "cloudgpu", "supervise", *([] if service else ["--idle-exit", "60s"])]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as supervisor:
        try:
            end = time.monotonic() + 180
            while (there := supervisor_lock.running()) is None or there.pid is None:
                assert time.monotonic() < end and supervisor.poll() is None
                time.sleep(0.05)
            assert not replace_if_different({"gcp"}), "the same settings"
            monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "second")
            assert not replace_if_different({"aws", "local"}), "of no use there"
            if service:
                with pytest.raises(SubmitError, match=r"GOOGLE_CLOUD_PROJECT; .*CLOUDGPU_HOME"):
                    replace_if_different({"gcp"})
            assert supervisor_lock.is_running()
            if not service:
                assert replace_if_different({"gcp"})
                assert not supervisor_lock.is_running()
                assert supervisor.wait(180) == 0
        finally:
            supervisor.terminate()


def test_an_idle_supervisor_ends_and_leaves_no_job_behind(home: Path, code: Path) -> None:
    job = submit_text("name: idle\nrun: 'true'\n", code, supervise=False)
    command = [sys.executable, "-m", "cloudgpu", "supervise", "--idle-exit", "1s"]
    assert subprocess.run(command, timeout=WAIT_S, check=False, stderr=subprocess.DEVNULL).returncode == 0
    assert job.refresh().state == "succeeded"
    assert not supervisor_lock.is_running()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 1.0])
def test_a_supervisor_whose_state_directory_is_deleted_ends(home: Path, after_s: float) -> None:
    """The directory is deleted while the store is opened for the first time, or later, when the supervisor is idle."""
    paths.state_dir()
    command = [sys.executable, "-m", "cloudgpu", "supervise"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
        end = time.monotonic() + WAIT_S
        while not supervisor_lock.is_running() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(after_s)
        while home.exists():  # the next round deletes what is written in between
            shutil.rmtree(home, ignore_errors=True)
        _, errors = supervisor.communicate(timeout=WAIT_S)
        assert supervisor.returncode == 0, errors
        assert errors.endswith("the state directory is gone: ending\n")


def test_orphaned_machines_are_found_and_terminated(home: Path, code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = submit_text("name: known\nrun: exec sleep 1000\n", code)
    until_running(job)
    provisioner = get_provisioner("local")
    stray = LaunchRequest(
        job_id="unknown-job",
        attempt=1,
        token="0" * 32,
        owner=Owner(owner_name()),
        job_dir=job.job_dir,
        job_sha256="0" * 64,
        region="here",
        zone=None,
        market="on-demand",
        disk_gb=1,
        nodes=(NodeRequest("worker-0.1", "worker", 0, 0, "local", None, Fraction(0)),),
        lifetime_s=60,
    )
    allocation = provisioner.launch(stray)
    assert orphans() == [allocation]
    assert main(["gc", "--cloud", "local", "--yes"]) == Exit.OK, capsys.readouterr().err
    assert orphans() == []
    assert job.refresh().state == "running"


def test_a_read_only_state_directory_is_said_to_be_one(home: Path) -> None:
    home.parent.joinpath("file").write_text("")
    environment = {**os.environ, "CLOUDGPU_HOME": str(home.parent / "file")}
    command = [sys.executable, "-m", "cloudgpu", "supervise"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr


def test_the_job_dir_may_be_a_path_beside_the_job_file(home: Path, code: Path) -> None:
    job = finish(submit_text("name: beside\njob_dir: my jobs\nrun: 'true'\n", code))
    assert job.state == "succeeded"
    folder = code / "my jobs" / job.id
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert JobDir(job.job_dir).exists("job.json")
    with sqlite3.connect(home / "cloudgpu.db") as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
