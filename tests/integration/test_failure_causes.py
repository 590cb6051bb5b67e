"""Tests of the reasons and evidence of failures: real programs that crash, and a real out-of-memory kill."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Result
from cloudgpu.runtime.processes import failure_causes
from cloudgpu.runtime.processes.failure_causes import OutOfMemoryCounter
from cloudgpu.tests.standins.agents import World, world

__all__ = ["world"]

PYTHON = sys.executable
CRASH = "import ctypes; ctypes.string_at(0)"


@pytest.mark.parametrize(
    ("run", "says", "evidence", "final"),
    [
        ([PYTHON, "-c", "import no_such_package"], "a package cannot be imported", "'no_such_package'", True),
        ([PYTHON, "-m", "no_such_package"], "a package cannot be imported", "No module named no_such_package", True),
        (
            [PYTHON, "-c", "from os import no_such"],
            "a package cannot be imported",
            "cannot import name 'no_such'",
            True,
        ),
        ("python3 nothere.py", "the program's file is not in the code", "nothere.py", True),
        ("no-such-command --lr 1", "a command of `run` does not exist", "no-such-command", True),
        (["no-such-command"], "a command of `run` does not exist", "no-such-command", True),
        (["/etc/passwd"], "a command of `run` cannot be executed", "/etc/passwd", True),
        ([PYTHON, "-c", "import ="], "the program is no valid Python", "SyntaxError", True),
        ([PYTHON, "-c", "open('data/x')"], "a file is missing", "'data/x'", False),
        ([PYTHON, "-c", CRASH], "segmentation fault", "PYTHONFAULTHANDLER", False),
        (f"{PYTHON} -c '{CRASH}'; exit $?", "segmentation fault", "rank 0: exit code 139", False),
        ("kill -BUS $$", "bus error", "/dev/shm", False),
        ([PYTHON, "-c", "raise MemoryError"], "out of memory", "MemoryError", False),
    ],
)
def test_failures_in_words(world: World, run: str | list[str], says: str, evidence: str, final: bool) -> None:
    world.job(run, failures_left=0)
    result = world.run()
    assert result.outcome == "failed"
    assert says in result.reason
    assert evidence in result.reason
    assert result.final is final


def test_the_docs_show_the_table() -> None:
    page = (Path(failure_causes.__file__).parents[2] / "docs/explanation/runtime.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for row in failure_causes.MESSAGES:
        code = "any" if row.codes is None else str(*row.codes)
        found = [line for line in rows if f"| {row.says} |" in line and line.startswith(f"| {code} |")]
        assert len(found) == 1, row.says
        assert found[0].endswith("| yes |") is row.final
    assert all(signal.Signals(number).name in page for number in failure_causes.SIGNALS)


@pytest.mark.parametrize(("run", "starts"), [("python3 nothere.py", 1), ("echo no luck >&2; exit 3", 2)])
def test_what_cannot_succeed_is_not_started_again(world: World, run: str, starts: int) -> None:
    world.job(f"echo begun; {run}", failures_left=1)
    world.run()
    assert world.texts().count("begun") == starts


def test_an_error_that_was_handled_is_no_cause(world: World) -> None:
    world.job("echo \"ModuleNotFoundError: No module named 'flash_attn'\" >&2; echo diverged >&2; exit 1")
    result = world.run()
    assert (result.reason, result.final) == ("rank 0: exit code 1", False)


def test_a_setup_that_cannot_succeed_says_why(world: World) -> None:
    world.job("echo never", setup="python3 nothere.py")
    result = world.run()
    assert result.reason.startswith("setup failed: exit code 2: the program's file is not in the code")
    assert result.final


# --- out of memory ----------------------------------------------------------------------------------------------------

LIMIT = 96 << 20
FILES = {"v1": ("memory.limit_in_bytes", "memory.oom_control"), "v2": ("memory.max", "memory.events")}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield a control group with a memory limit of 96 MB; skip the test if this user cannot create one."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            groups["v1"] = Path("/sys/fs/cgroup/memory", path.strip("/"))
        elif not controllers:
            groups["v2"] = Path("/sys/fs/cgroup", path.strip("/"))
    reasons = []
    for version, parent in groups.items():
        group = parent / f"cloudgpu-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError as error:
            reasons.append(f"cgroup {version}: {error}")
            continue
        try:
            limit, counter = FILES[version]
            (group / limit).write_text(str(LIMIT))
            if "oom_kill " not in (group / counter).read_text():
                raise OSError(f"{counter} has no oom_kill")
        except OSError as error:
            group.rmdir()
            reasons.append(f"cgroup {version}: {error}")
            continue
        yield group
        _remove(group)
        return
    pytest.skip(f"NOT CHECKED: a real out-of-memory kill, for no control group can be made here: {'; '.join(reasons)}")


def _remove(group: Path) -> None:
    """Remove a control group as soon as its last processes have been reaped."""
    until = time.monotonic() + 60
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def run_in(world: World, group: Path) -> Result:
    return world.run(preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))


EAT = "data = []\nwhile True: data.append(bytearray(b'x' * (8 << 20)))"


def test_an_out_of_memory_kill(world: World, small_group: Path) -> None:
    world.job([PYTHON, "-c", EAT])
    result = run_in(world, small_group)
    assert (result.outcome, result.exit_code) == ("failed", -9)
    assert result.reason.startswith("rank 0: SIGKILL: out of memory: the kernel killed it (oom_kill in /sys/fs/cgroup/")
    assert result.reason.endswith("rose by 1, limit 0.10 GB)")
    assert not result.final


def test_an_out_of_memory_kill_of_a_worker_process(world: World, small_group: Path) -> None:
    code = f"import subprocess, sys\nsys.exit(5 if subprocess.run([sys.executable, '-c', {EAT!r}]).returncode else 0)"
    world.job([PYTHON, "-c", code])
    result = run_in(world, small_group)
    assert "rank 0: exit code 5: the kernel killed a process of its control group for lack of memory" in result.reason


def test_a_kill_that_the_kernel_did_not_do(world: World) -> None:
    world.job("kill -9 $$")
    assert world.run().reason.startswith("rank 0: SIGKILL: ")


@pytest.mark.parametrize(
    ("groups", "counter", "limit"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events", "sys/fs/cgroup/job/memory.max"),
        (
            "4:cpu,memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.oom_control",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
        ),
        ("0::/\n", "proc/vmstat", ""),
    ],
)
def test_counters_of_both_versions(tmp_path: Path, groups: str, counter: str, limit: str) -> None:
    for name, text in {"proc/self/cgroup": groups, counter: "oom 7\noom_kill 2\n", limit: "1000000000\n"}.items():
        if name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    kills = OutOfMemoryCounter(tmp_path)
    assert kills.kills() is None
    (tmp_path / counter).write_text("oom 9\noom_kill 5\n")
    found = kills.kills()
    assert found is not None
    assert (found.kills, found.is_own, found.limit_bytes) == (3, bool(limit), 10**9 if limit else None)
