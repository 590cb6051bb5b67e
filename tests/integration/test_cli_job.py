"""The command line with real jobs on this machine: submit, follow, look, wait, cancel, preempt, interrupt."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

CLOUDGPU = [sys.executable, "-m", "cloudgpu"]
PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state directory of one's own; its supervisor, and whatever else still runs for it, ends with the test."""
    folder = tmp_path / "home"
    yield folder
    for process in processes_of(folder):
        process.kill()


def processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CLOUDGPU_HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "CLOUDGPU_HOME": str(home), "COLUMNS": "100"}


def cloudgpu(home: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*CLOUDGPU, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment(home),
    )
    assert "Traceback" not in done.stderr
    assert done.returncode != 70, done.stderr
    return done


def job_file(folder: Path, run: str, name: str = "tiny", **extra: object) -> Path:
    path = folder / f"{name}.yaml"
    value = {"name": name, "resources": {"accelerator": "none", "cloud": "local"}, "code": None, "run": run, **extra}
    path.write_text(json.dumps(value))
    return path


def eventually(check: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def status(home: Path, job: str) -> dict[str, object]:
    return json.loads(cloudgpu(home, "status", job, "--json").stdout)


def test_submit_follows_the_log_and_ends_as_the_job_does(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, 'echo "hello $1"; echo trouble >&2; sleep 0.3; echo bye')
    done = cloudgpu(home, "submit", file, "--", "数字 and spaces")
    assert done.returncode == 0, done.stderr
    program = [line for line in done.stdout.splitlines() if not line.startswith("agent")]
    assert [line for line in program if line in ("hello 数字 and spaces", "bye")] == ["hello 数字 and spaces", "bye"]
    assert "trouble" in program
    assert "succeeded" in done.stderr
    assert "attempts  1 attempt" in done.stderr
    (job,) = json.loads(cloudgpu(home, "status", "--json").stdout)
    assert (job["name"], job["state"]) == ("tiny", "succeeded")

    again = cloudgpu(home, "logs", "tiny")
    assert again.stdout == done.stdout
    assert f"job {job['id']}" in again.stderr
    stamped = cloudgpu(home, "logs", job["id"], "--timestamps", "--since", "1h", "--attempt", "1", "--node", "worker-0")
    assert re.search(r"^\d\d:\d\d:\d\d bye$", stamped.stdout, re.MULTILINE)
    assert cloudgpu(home, "logs", "tiny", "--node", "worker-7").stdout == ""
    assert cloudgpu(home, "logs", "tiny", "-f").stdout == done.stdout


def test_a_failed_job_fails_the_command(home: Path, tmp_path: Path) -> None:
    done = cloudgpu(home, "submit", job_file(tmp_path, "echo no; exit 3", retry={"failure": 0}))
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert cloudgpu(home, "wait", "tiny").returncode == 1
    assert status(home, "tiny")["exit_code"] == 3


def test_look_at_jobs(home: Path, tmp_path: Path) -> None:
    assert "no jobs" in cloudgpu(home, "status").stdout
    job = cloudgpu(home, "submit", job_file(tmp_path, "exit 0"), "--detach").stdout.strip()
    assert cloudgpu(home, "wait", job).stdout.startswith(f"{job} succeeded")
    listed = cloudgpu(home, "status").stdout
    assert job in listed
    assert "succeeded" in listed
    one = cloudgpu(home, "status", job[:7]).stdout
    for word in (job, "attempt", "last events", "report", "job dir"):
        assert word in one
    assert max(map(len, [*listed.splitlines()])) <= 100
    events = [json.loads(line) for line in cloudgpu(home, "events", job, "--json", "-f").stdout.splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert "succeeded" in events[-1]["message"]
    assert len(cloudgpu(home, "events", "tiny").stdout.splitlines()) == len(events)
    cost = json.loads(cloudgpu(home, "cost", "--json").stdout)
    assert float(cost["total_usd"]) == 0.0
    assert cost["jobs"][0]["attempts"][0]["paid_seconds"] > 0
    assert "total: 0.00 USD" in cloudgpu(home, "cost", job).stderr
    assert "nothing to do" in cloudgpu(home, "gc").stderr
    shown = json.loads(cloudgpu(home, "wait", job, "--json").stdout)
    assert shown["id"] == job
    assert shown["ended"].endswith("Z")


def test_of_several_jobs_of_a_name_looking_takes_the_newest_and_changing_asks(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, "exit 0")
    first, second = (cloudgpu(home, "submit", file, "-d").stdout.strip() for _ in range(2))
    for job in (first, second):
        assert cloudgpu(home, "wait", job).returncode == 0
    newest = cloudgpu(home, "wait", "tiny", "--json")
    assert json.loads(newest.stdout)["id"] == second
    assert f"{second}, the newest of 2" in newest.stderr
    refused = cloudgpu(home, "cancel", "tiny")
    assert refused.returncode == 2
    assert first in refused.stderr
    near = cloudgpu(home, "status", "tinny")
    assert near.returncode == 2
    assert "did you mean tiny" in near.stderr


def test_cancel(home: Path, tmp_path: Path) -> None:
    job = cloudgpu(home, "submit", job_file(tmp_path, "echo up; exec sleep 600"), "--json")
    job_id = json.loads(job.stdout)["id"]
    eventually(lambda: "up" in cloudgpu(home, "logs", job_id).stdout)
    timeout = cloudgpu(home, "wait", job_id, "--timeout", "1s")
    assert timeout.returncode == 5
    assert "still running" in timeout.stderr
    done = cloudgpu(home, "cancel", job_id, "--wait")
    assert f"{job_id} cancelled" in done.stdout
    assert cloudgpu(home, "wait", job_id).returncode == 5
    assert "cancelled already" in cloudgpu(home, "cancel", job_id).stderr
    refused = cloudgpu(home, "preempt", job_id)
    assert refused.returncode == 2
    assert "only machines that run" in refused.stderr


def test_preempt_and_resume(home: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    # The first attempt waits for its end; the second finds that there was a first.
    file = job_file(tmp_path, f"if [ -e {marker} ]; then echo again; else touch {marker}; exec sleep 600; fi")
    job = cloudgpu(home, "submit", file, "-d").stdout.strip()
    eventually(marker.exists)
    eventually(lambda: status(home, job)["state"] == "running")
    given = cloudgpu(home, "preempt", job, "--after", "1s")
    assert given.returncode == 0, given.stderr
    assert "worker-0" in given.stdout
    assert cloudgpu(home, "wait", job).returncode == 0
    shown = status(home, job)
    outcomes = [attempt["outcome"] for attempt in shown["attempts"]]  # type: ignore[attr-defined]
    assert outcomes == ["preempted", "succeeded"]
    assert shown["report"]["interruptions"] == 1  # type: ignore[index]
    assert "again" in cloudgpu(home, "logs", job, "--attempt", "2").stdout


def test_two_nodes_name_their_lines(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, 'echo "rank $CLOUDGPU_RANK here"', launcher="none")
    done = cloudgpu(home, "submit", file, "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^worker-0 +\| rank 0 here$", done.stdout, re.MULTILINE)
    assert re.search(r"^worker-1 +\| rank 1 here$", done.stdout, re.MULTILINE)


def test_interrupt_without_a_terminal_detaches(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, "echo up; exec sleep 600")
    process = subprocess.Popen(
        [*CLOUDGPU, "submit", file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    while line != "up\n":
        assert line, "the log ended early"
        line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "goes on" in stderr
    assert "cloudgpu cancel tiny-" in stderr
    assert "Traceback" not in stderr
    assert status(home, "tiny")["state"] == "running"
    assert cloudgpu(home, "cancel", "tiny", "--wait").returncode == 0


def test_a_closed_pipe_ends_the_following_only(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, "while true; do echo up; sleep 0.1; done")
    words = f"{' '.join(CLOUDGPU)} submit {file} | head -n 3; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment(home)
    )
    assert done.returncode == 0, done.stderr
    assert "Broken" not in done.stderr
    assert status(home, "tiny")["state"] in ("starting", "running")
    assert cloudgpu(home, "cancel", "tiny", "--wait").returncode == 0


class Terminal:
    """A command on a pseudo-terminal, as a person sees it."""

    def __init__(self, home: Path, *words: str | Path) -> None:
        self.shown = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [*CLOUDGPU, *map(str, words)], {**environment(home), "TERM": "xterm"})

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE_S
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
        if not select.select([self._terminal], [], [], PATIENCE_S)[0]:
            raise AssertionError(f"nothing more is shown: {self.shown}")
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def test_interrupt_on_a_terminal_asks(home: Path, tmp_path: Path) -> None:
    terminal = Terminal(home, "submit", job_file(tmp_path, "echo up; exec sleep 600"))
    terminal.wait_for("up\r\n")
    terminal.type("\x03")
    terminal.wait_for("[c]ancel")
    terminal.type("f\n")
    terminal.type("\x03")
    terminal.wait_for("follow on? [d]:")
    terminal.shown = ""
    terminal.type("c\n")
    terminal.wait_for("cancelled")
    assert terminal.exit_code() == 5
    assert "Traceback" not in terminal.shown


def test_a_second_interrupt_on_a_terminal_detaches(home: Path, tmp_path: Path) -> None:
    terminal = Terminal(home, "submit", job_file(tmp_path, "echo up; exec sleep 600"))
    terminal.wait_for("up\r\n")
    terminal.type("\x03")
    terminal.wait_for("[c]ancel")
    terminal.type("\x03")
    assert terminal.exit_code() == 130
    assert "goes on" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert cloudgpu(home, "cancel", "tiny", "--wait").returncode == 0


def test_a_paid_offer_is_never_taken_unasked(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", "3")
    file = job_file(tmp_path, "exit 0")
    refused = cloudgpu(home, "submit", file, "-d")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert json.loads(cloudgpu(home, "status", "--json").stdout) == []
    assert cloudgpu(home, "submit", file, "-d", "--yes").returncode == 0
    assert cloudgpu(home, "submit", file, "-d", "--set", "limits.price=4 USD/h").returncode == 0
    terminal = Terminal(home, "submit", file)
    terminal.wait_for("start it?")
    terminal.type("n\n")
    assert terminal.exit_code() == 130


def test_what_cannot_be_launched_creates_nothing(home: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, "exit 0")
    elsewhere = cloudgpu(home, "submit", file, "--cloud", "gcp", "--accelerator", "L4", "--market", "spot", "--yes")
    assert elsewhere.returncode == 4
    assert "launches only on: local" in elsewhere.stderr
    impossible = cloudgpu(home, "submit", file, "--accelerator", "H100:3", "--cloud", "gcp")
    assert impossible.returncode == 4
    assert not (home / "jobs").exists()
    assert cloudgpu(home, "submit", file, "--region", "us-esat1", "--cloud", "gcp").returncode == 3
    assert cloudgpu(home, "submit", file, "--dry-run").returncode == 0
    assert json.loads(cloudgpu(home, "submit", file, "--dry-run", "--json").stdout)["offers"]


def test_a_store_that_cannot_be_opened(home: Path) -> None:
    home.mkdir()
    (home / "cloudgpu.db").write_bytes(b"this is no database" * 100)
    done = cloudgpu(home, "status")
    assert done.returncode == 6
    assert "cloudgpu.db" in done.stderr
