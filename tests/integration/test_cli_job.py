"""Tests of the command line with real local jobs: submit, logs, status, wait, cancel, preempt, interrupt."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloudgpu.cli import main
from cloudgpu.control.store.store import open_store

CLOUDGPU = [sys.executable, "-m", "cloudgpu"]
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Runner of commands in a separate state directory, within this process where possible, which saves 0.5 s each."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> Done:
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        done = Done(code, *self._capsys.readouterr())
        assert code != 70, done.stderr
        return done

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", job, "--json").stdout)
        return found

    def processes(self) -> list[psutil.Process]:
        """Return all processes with this state directory: the supervisor, agents, programs."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CLOUDGPU_HOME") == str(self.home) and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def cloudgpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Yield a Shell, and kill its remaining processes after the test."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    shell = Shell(tmp_path / "home", capsys)
    yield shell
    while left := shell.processes():  # repeated, since some may be starting others
        for process in left:
            with contextlib.suppress(psutil.Error):  # it has ended
                process.kill()


def job_file(folder: Path, run: str, name: str = "tiny", **extra: object) -> Path:
    path = folder / f"{name}.yaml"
    value = {"name": name, "resources": {"accelerator": "none", "cloud": "local"}, "code": None, "run": run, **extra}
    path.write_text(json.dumps(value))
    return path


def eventually(check: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def test_submit_follows_the_log_and_ends_as_the_job_does(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, "echo hello; echo trouble >&2; sleep 0.3; printf '%s\\n' bye")
    done = cloudgpu("submit", file, "--", "数字 and spaces")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "trouble"] == ["hello", "bye", "数字 and spaces"]
    assert "trouble" in lines
    assert "succeeded" in done.stderr
    assert "attempts  1 attempt" in done.stderr
    (job,) = json.loads(cloudgpu("status", "--json").stdout)
    assert (job["name"], job["state"]) == ("tiny", "succeeded")

    again = cloudgpu("logs", "tiny")
    assert again.stdout == done.stdout
    assert f"job {job['id']}" in again.stderr
    stamped = cloudgpu("logs", job["id"], "--timestamps", "--since", "1h", "--attempt", "1", "--node", "worker-0")
    assert re.search(r"^\d\d:\d\d:\d\d bye$", stamped.stdout, re.MULTILINE)
    for words, said in ((("--node", "worker-7"), "its machines: worker-0"), (("--attempt", "2"), "it has 1 attempt")):
        wrong = cloudgpu("logs", "tiny", *words)
        assert (wrong.returncode, said in wrong.stderr) == (2, True)
    assert cloudgpu("status", "tiny", "--watch", "--json").returncode == 2
    assert cloudgpu("logs", "tiny", "-f").stdout == done.stdout


def test_a_failed_job_fails_the_command(cloudgpu: Shell, tmp_path: Path) -> None:
    done = cloudgpu("submit", job_file(tmp_path, "echo no; exit 3", retry={"failure": 0}))
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert cloudgpu("wait", "tiny").returncode == 1
    assert cloudgpu.status("tiny")["exit_code"] == 3


def test_a_final_failure_is_reported_once_and_not_retried(cloudgpu: Shell, tmp_path: Path) -> None:
    done = cloudgpu("submit", job_file(tmp_path, "python nothere.py"))
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert said.count("the program's file is not in the code that was shipped") == 1
    assert "attempt 1 failed: rank 0: exit code 2: the program's file" in said
    assert "attempts 1 attempt;" in said
    again = cloudgpu("submit", job_file(tmp_path, "echo nothing; exit 3"))
    assert (again.stdout + again.stderr).count("exit code 3") == 2, "once for each attempt or restart"


def test_status_events_cost_and_wait(cloudgpu: Shell, tmp_path: Path) -> None:
    assert "no jobs" in cloudgpu("status").stdout
    assert "no jobs" in cloudgpu("cost").stdout
    job = cloudgpu("submit", job_file(tmp_path, "exit 0", priority=7), "--detach").stdout.strip()
    assert cloudgpu("wait", job).stdout.startswith(f"{job} succeeded")
    assert json.loads(cloudgpu("status", job, "--json").stdout)["priority"] == 7
    listed = cloudgpu("status").stdout
    assert job in listed
    assert "succeeded" in listed
    one = cloudgpu("status", job[:7]).stdout
    for word in (job, "attempt", "last events", "report", "job dir"):
        assert word in one
    assert max(map(len, [*listed.splitlines()])) <= 100
    events = [json.loads(line) for line in cloudgpu("events", job, "--json", "-f").stdout.splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert "succeeded" in events[-1]["message"]
    assert len(cloudgpu("events", "tiny").stdout.splitlines()) == len(events)
    cost = json.loads(cloudgpu("cost", "--json").stdout)
    assert float(cost["total_usd"]) == 0.0
    assert cost["jobs"][0]["attempts"][0]["paid_seconds"] > 0
    assert "total: 0.00 USD" in cloudgpu("cost", job).stderr
    assert "nothing to do" in cloudgpu("gc").stderr
    shown = json.loads(cloudgpu("wait", job, "--json").stdout)
    assert shown["id"] == job
    assert shown["ended"].endswith("Z")


def test_of_several_jobs_of_a_name_looking_takes_the_newest_and_changing_asks(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, "exit 0")
    first, second = (cloudgpu("submit", file, "-d").stdout.strip() for _ in range(2))
    for job in (first, second):
        assert cloudgpu("wait", job).returncode == 0
    newest = cloudgpu("wait", "tiny", "--json")
    assert json.loads(newest.stdout)["id"] == second
    assert f"{second}, the newest of 2" in newest.stderr
    refused = cloudgpu("cancel", "tiny")
    assert refused.returncode == 2
    assert first in refused.stderr
    near = cloudgpu("status", "tinny")
    assert near.returncode == 2
    assert "did you mean tiny" in near.stderr


def test_cancel(cloudgpu: Shell, tmp_path: Path) -> None:
    job = cloudgpu("submit", job_file(tmp_path, "echo up; exec sleep 600"), "--json")
    job_id = json.loads(job.stdout)["id"]
    eventually(lambda: "up" in cloudgpu("logs", job_id).stdout)
    eventually(lambda: cloudgpu.status(job_id)["state"] == "running")
    timeout = cloudgpu("wait", job_id, "--timeout", "1s")
    assert timeout.returncode == 5
    assert "still running" in timeout.stderr
    done = cloudgpu("cancel", job_id, "--wait")
    assert f"{job_id} cancelled" in done.stdout
    assert cloudgpu("wait", job_id).returncode == 5
    assert "cancelled already" in cloudgpu("cancel", job_id).stderr
    refused = cloudgpu("preempt", job_id)
    assert refused.returncode == 2
    assert "only machines that run" in refused.stderr


def test_preempt_and_resume(cloudgpu: Shell, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    # The first attempt runs until it is preempted; the second finds the marker.
    file = job_file(tmp_path, f"if [ -e {marker} ]; then echo again; else touch {marker}; exec sleep 600; fi")
    job = cloudgpu("submit", file, "-d").stdout.strip()
    eventually(marker.exists)
    eventually(lambda: cloudgpu.status(job)["state"] == "running")
    given = cloudgpu("preempt", job, "--after", "1s")
    assert given.returncode == 0, given.stderr
    assert "worker-0" in given.stdout
    assert cloudgpu("wait", job).returncode == 0
    shown = cloudgpu.status(job)
    outcomes = [attempt["outcome"] for attempt in shown["attempts"]]
    assert outcomes == ["preempted", "succeeded"]
    assert shown["report"]["interruptions"] == 1
    assert "again" in cloudgpu("logs", job, "--attempt", "2").stdout


def test_two_nodes_name_their_lines(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, 'echo "rank $CLOUDGPU_RANK here"', launcher="none")
    done = cloudgpu("submit", file, "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^worker-0 +\| rank 0 here$", done.stdout, re.MULTILINE)
    assert re.search(r"^worker-1 +\| rank 1 here$", done.stdout, re.MULTILINE)


def test_interrupt_without_a_terminal_detaches(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, "echo up; exec sleep 600")
    process = subprocess.Popen(
        [*CLOUDGPU, "submit", file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    while line != "up\n":
        assert line, "the log ended early"
        line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "goes on" in stderr
    assert "cloudgpu cancel tiny-" in stderr
    assert "Traceback" not in stderr
    # The log's first line may arrive before the supervisor has seen a heartbeat.
    assert cloudgpu.status("tiny")["state"] in {"starting", "running"}
    assert cloudgpu("cancel", "tiny", "--wait").returncode == 0


def test_a_closed_pipe_ends_the_following_only(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, "while true; do echo up; sleep 0.1; done")
    words = f"{' '.join(CLOUDGPU)} submit {file} | head -n 3; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "Broken" not in done.stderr
    assert cloudgpu.status("tiny")["state"] in ("starting", "running")
    assert cloudgpu("cancel", "tiny", "--wait").returncode == 0


class Terminal:
    """A command that runs on a pseudo-terminal, as for an interactive user."""

    def __init__(self, *words: str | Path) -> None:
        self.shown = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [*CLOUDGPU, *map(str, words)], {**os.environ, "TERM": "xterm"})

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while text not in self.shown:
            assert time.monotonic() < until, f"{text!r} was not shown: {self.shown}"
            assert self._read(), f"it ended without {text!r}: {self.shown}"

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def exit_code(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], TIMEOUT_S)[0]:
            raise AssertionError(f"nothing more is shown: {self.shown}")
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # EIO on Linux: the other end is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def test_interrupt_on_a_terminal_asks(cloudgpu: Shell, tmp_path: Path) -> None:
    terminal = Terminal("submit", job_file(tmp_path, "while true; do echo up; sleep 0.2; done"))
    terminal.wait_for("up\r\n")
    terminal.type("\x03")
    terminal.wait_for("ollow on? [d]:")
    terminal.shown = ""
    terminal.type("f\n")
    terminal.wait_for("up\r\n")
    terminal.type("\x03")
    terminal.wait_for("ollow on? [d]:")
    terminal.type("c\n")
    assert terminal.exit_code() == 5
    assert "cancelled" in terminal.shown
    assert "\\x1b" not in terminal.shown, "colours are not shown as escapes"
    assert "Traceback" not in terminal.shown
    assert cloudgpu.status("tiny")["state"] == "cancelled"


def test_a_second_interrupt_on_a_terminal_detaches(cloudgpu: Shell, tmp_path: Path) -> None:
    terminal = Terminal("submit", job_file(tmp_path, "echo up; exec sleep 600"))
    terminal.wait_for("up\r\n")
    terminal.type("\x03")
    terminal.wait_for("[c]ancel")
    terminal.type("\x03")
    assert terminal.exit_code() == 130
    assert "goes on" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert cloudgpu("cancel", "tiny", "--wait").returncode == 0


def test_a_paid_offer_is_never_taken_unasked(cloudgpu: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", "3")
    file = job_file(tmp_path, "exit 0")
    refused = cloudgpu("submit", file, "-d")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert json.loads(cloudgpu("status", "--json").stdout) == []
    assert cloudgpu("submit", file, "-d", "--yes").returncode == 0
    assert cloudgpu("submit", file, "-d", "--set", "limits.price=4 USD/h").returncode == 0
    terminal = Terminal("submit", file)
    terminal.wait_for("start it?")
    terminal.type("n\n")
    assert terminal.exit_code() == 130


def test_what_cannot_be_launched_creates_nothing(cloudgpu: Shell, tmp_path: Path) -> None:
    file = job_file(tmp_path, "exit 0")
    elsewhere = cloudgpu("submit", file, "--cloud", "azure", "--accelerator", "T4", "--market", "spot", "--yes")
    assert elsewhere.returncode == 4
    assert "machines of azure cannot reach the job dir" in elsewhere.stderr
    impossible = cloudgpu("submit", file, "--accelerator", "H100:3", "--cloud", "gcp")
    assert impossible.returncode == 4
    assert not (cloudgpu.home / "jobs").exists()
    assert cloudgpu("submit", file, "--region", "us-esat1", "--cloud", "gcp").returncode == 3
    assert cloudgpu("submit", file, "--dry-run").returncode == 0
    assert json.loads(cloudgpu("submit", file, "--dry-run", "--json").stdout)["offers"]


def test_a_refused_submit_leaves_no_folder_and_large_code_is_remarked(cloudgpu: Shell, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    with (code / "data.bin").open("wb") as file:
        file.truncate(2_100_000_000)
    refused = cloudgpu("submit", job_file(tmp_path, "exit 0", code="code"))
    assert refused.returncode == 4, refused
    assert "data.bin" in refused.stderr
    assert not list((cloudgpu.home / "jobs").iterdir())
    with (code / "data.bin").open("wb") as file:
        file.truncate(101_000_000)
    assert "the code folder has 101 MB" in cloudgpu("submit", job_file(tmp_path, "exit 0", code="code"), "-d").stderr


def test_a_program_without_steps_is_not_advised_wrongly(cloudgpu: Shell, tmp_path: Path) -> None:
    job = cloudgpu("submit", job_file(tmp_path, "sleep 3"), "--detach").stdout.strip()
    cloudgpu("wait", job)
    shown = cloudgpu("goodput", job).stdout
    assert "is program: the program counts no steps" in " ".join(shown.split())
    assert cloudgpu("metrics", job).stdout.startswith("nothing was logged: a program with")


def test_a_job_whose_dir_is_gone(cloudgpu: Shell, tmp_path: Path) -> None:
    job = cloudgpu("submit", job_file(tmp_path, "exit 0"), "-d").stdout.strip()
    assert cloudgpu("wait", job).returncode == 0
    shutil.rmtree(cloudgpu.home / "jobs" / job)
    gone = cloudgpu("logs", job)
    assert gone.returncode == 6
    assert "is gone" in gone.stderr
    assert "succeeded" in cloudgpu("status", job).stdout


def test_a_store_that_cannot_be_opened(cloudgpu: Shell) -> None:
    cloudgpu.home.mkdir()
    (cloudgpu.home / "cloudgpu.db").write_bytes(b"this is no database" * 100)
    done = cloudgpu("status")
    assert done.returncode == 6
    assert "cloudgpu.db" in done.stderr


def test_a_list_that_is_cut_says_so_and_json_is_never_cut(cloudgpu: Shell, tmp_path: Path) -> None:
    done = cloudgpu("submit", job_file(tmp_path, "exit 0"), "--detach").stdout.strip()
    cloudgpu("wait", done)
    assert "no active jobs: 1 stored job has ended" in cloudgpu("status", "--active").stdout
    store = open_store()
    [row] = store.list_jobs(active_only=False)
    for number in range(24):
        store.insert_job(dataclasses.replace(row, id=f"old-{number:08d}"), "submitted")
    listed = cloudgpu("status").stdout
    assert "the newest 20 of 25 jobs; --all lists every one" in listed
    assert listed.count("old-") + listed.count(done) == 20
    assert cloudgpu("status", "--all").stdout.count("old-") == 24
    assert "newest" not in cloudgpu("status", "--all").stdout
    assert len(json.loads(cloudgpu("status", "--json").stdout)) == 25


def test_gc_names_what_it_looked_at(cloudgpu: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = cloudgpu("gc", "--dry-run")
    assert done.returncode == 0
    assert "looked at: local; not looked at, for they are not set up on this computer: aws" in done.stderr
    found = json.loads(cloudgpu("gc", "--dry-run", "--json").stdout)
    assert found["looked_at"] == ["local"]
    assert found["leftovers"] == []
    assert set(found["not_looked_at"]) >= {"aws", "gcp", "azure"}
    asked = cloudgpu("gc", "--dry-run", "--cloud", "aws", "--json")
    assert asked.returncode == 6
    assert json.loads(asked.stdout)["looked_at"] == []
    assert "aws" in json.loads(asked.stdout)["not_looked_at"]
