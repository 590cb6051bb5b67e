"""Replacement of supervisors that are outdated or have other credentials, and the content of the lock file."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu import __version__
from cloudgpu.control import paths
from cloudgpu.control.errors import ControlError
from cloudgpu.control.supervisor import outdated, spawn, supervisor_lock
from cloudgpu.control.supervisor.spawn import ensure_supervisor
from cloudgpu.control.supervisor.supervisor_lock import Running
from cloudgpu.control.supervisor_environment import differing, hashes

SECRET = "wJalrXUtnFEMI"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    paths.state_dir()
    return tmp_path / "home"


# Holds the lock as a supervisor does, with another version in it.
_HOLDER = """
import sys, time
from cloudgpu.control.supervisor import supervisor_lock
supervisor_lock.__version__ = sys.argv[1]
lock = supervisor_lock.take_lock(by_command=sys.argv[2] == "command")
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold(home: Path) -> Iterator[object]:
    held: list[subprocess.Popen[str]] = []

    def start(version: str, by: str = "command") -> int:
        held.append(subprocess.Popen([sys.executable, "-c", _HOLDER, version, by], stdout=subprocess.PIPE, text=True))
        assert held[-1].stdout is not None and held[-1].stdout.readline() == "locked\n"
        return held[-1].pid

    yield start
    for process in held:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("theirs", "replaced"),
    [
        ((__version__, "command"), False),
        (("0.0.9", "command"), True),
        (("0.0.9", "service"), False),
        (("99.0", "command"), False),
    ],
)
def test_an_older_supervisor_that_a_command_started_is_replaced(
    home: Path, hold: object, monkeypatch: pytest.MonkeyPatch, theirs: tuple[str, str], replaced: bool
) -> None:
    monkeypatch.setattr(spawn, "START_S", 60.0)
    version, by = theirs
    pid = hold(version, by)  # type: ignore[operator]
    there = supervisor_lock.running()
    assert there is not None and (there.pid, there.version, there.by_command) == (pid, version, by == "command")
    ensure_supervisor()
    while (now := supervisor_lock.running()) is not None and now.pid is None:  # locked, but not yet described
        time.sleep(0.05)
    assert now is not None and (now.pid != pid) is replaced
    if replaced:
        assert now.version == __version__
        outdated.end(now)


def test_a_lock_of_an_older_version_is_a_process_id_alone() -> None:
    there = supervisor_lock._read(f"{os.getpid()}\n".encode())
    assert (there.pid, there.version) == (os.getpid(), "")
    for content in (b"", b"{}", b"[1]", b'{"pid": "x"}', b"[" * 100_000, b"\xff"):
        assert supervisor_lock._read(content) == Running()
        assert not supervisor_lock._read(content).is_replaceable


# Holds the lock with another process's id and an older version in it, so that any command tries to replace it.
_LIAR = """
import json, sys, time
from cloudgpu.control import paths
from cloudgpu.control.supervisor import supervisor_lock
supervisor_lock.__version__ = "0.0.9"
lock = supervisor_lock.take_lock(by_command=True)
content = json.loads(paths.supervisor_lock().read_text()) | {"pid": json.loads(sys.argv[1])}
paths.supervisor_lock().write_text(json.dumps(content))
print("locked", flush=True)
time.sleep(600)
"""

# The check of every command. It has a separate session, because process id 0 means the sender's process group.
_COMMAND = """
from cloudgpu.control.supervisor import outdated, spawn, supervisor_lock
spawn.ensure_supervisor()
there = supervisor_lock.running()
assert there is not None and outdated.end(there) is False
print("alive")
"""


@pytest.mark.parametrize("named", ["0", "true", "1.5", '"7"', "bystander"])
def test_a_damaged_lock_makes_no_command_signal_another_process(home: Path, named: str) -> None:
    """`bystander`: a process that has reused the id of an ended supervisor."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander,
        subprocess.Popen(
            [sys.executable, "-c", _LIAR, str(bystander.pid) if named == "bystander" else named],
            stdout=subprocess.PIPE,
            text=True,
        ) as liar,
    ):
        try:
            assert liar.stdout is not None and liar.stdout.readline() == "locked\n"
            command = [sys.executable, "-c", _COMMAND]
            done = subprocess.run(
                command, start_new_session=True, timeout=180, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
            assert bystander.poll() is None and liar.poll() is None
        finally:
            bystander.kill()
            liar.kill()


@pytest.mark.parametrize("number", [-1, 0, True, 2**40, 10**30])
def test_no_number_but_a_process_id_is_read_as_one(number: int) -> None:
    here = supervisor_lock.this_process(by_command=True)
    content = {"salt": "", "settings": {}, "started": 0, "by_command": True, "version": "0", "space": here.space}
    there = supervisor_lock._read(json.dumps(content | {"pid": number}).encode())
    assert (there == Running()) is (number < 2)
    assert not supervisor_lock.send_signal(there, signal.SIGCONT)


def test_a_supervisor_that_has_just_taken_the_lock_is_known_once_it_has_described_itself(home: Path) -> None:
    with paths.open_private(paths.supervisor_lock()) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        about = dataclasses.asdict(us := supervisor_lock.this_process(by_command=True)) | {"salt": us.salt.hex()}
        writing = threading.Timer(0.2, lambda: os.write(lock.fileno(), json.dumps(about).encode()))
        writing.start()
        assert supervisor_lock.running() == us
        writing.join()


def test_a_process_id_of_another_container_is_no_process_to_end() -> None:
    here = supervisor_lock.this_process(by_command=True)
    assert here.is_replaceable
    assert not Running(here.pid, "0.0.1", None, True, "another-host,boot,pid:[1]").is_replaceable


def test_the_lock_file_holds_no_secret_and_is_closed_to_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("CLOUDGPU_DATABASE_URL", f"postgresql+psycopg://me:{SECRET}@db/jobs")
    paths.supervisor_lock().touch(0o644)
    with supervisor_lock.take_lock() or pytest.fail("taken"):
        content = paths.supervisor_lock().read_text()
    assert SECRET not in content and "AWS_SECRET_ACCESS_KEY" in json.loads(content)["settings"]
    assert paths.supervisor_lock().stat().st_mode & 0o777 == 0o600


def test_hashes_show_what_differs_and_depend_on_the_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AZURE_STORAGE_KEY": "b", "CLOUDGPU_AWS_BOUNDARY": "c", "PATH": "d"}
    first, second = hashes(environ, b"1"), hashes(environ, b"2")
    assert set(environ) - {"PATH"} <= set(first) and "PATH" not in first
    assert not {first[name] for name in first} & {second[name] for name in second}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    assert differing(["AWS_ACCESS_KEY_ID", "AZURE_STORAGE_KEY"], first, b"1") == ["AZURE_STORAGE_KEY"]


def test_a_supervisor_that_fails_at_its_start_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "START_S", 60.0)
    paths.supervisor_wake().mkdir()
    begun = time.monotonic()
    with pytest.raises(ControlError, match=r"no supervisor runs: .*exit code \d+.*Its log, .*supervisor\.log"):
        ensure_supervisor()
    assert time.monotonic() - begun < 50.0
