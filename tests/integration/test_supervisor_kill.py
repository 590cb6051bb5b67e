"""kill -9 of the supervisor at random moments of real jobs: they end correctly, once, and leave nothing behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.control.store.store import Store
from cloudgpu.tests.standins.local_jobs import home, start_supervisor, submit_text
from cloudgpu.tests.standins.long_mode import LONG

pytestmark = pytest.mark.timeout(1_800)

KILLS = 50 if LONG else 6
END_S = 300.0

__all__ = ["home"]

# Logs when it runs. The first attempt asks to be run again, the second fails, the third succeeds; in both of the
# former, the machines restart it twice in place before they give up.
PROGRAM = """
say() { echo "$1 $CLOUDGPU_ATTEMPT $CLOUDGPU_NODE $CLOUDGPU_GENERATION" >> "$JOURNAL"; }
say begin
trap 'say end; exit 75' TERM
sleep "$SECONDS_LONG" & wait $!
say end
[ "$CLOUDGPU_ATTEMPT" = 1 ] && [ "$CLOUDGPU_NODE" = worker-0.1 ] && exit 75
[ "$CLOUDGPU_ATTEMPT" = 2 ] && [ "$CLOUDGPU_NODE" = worker-1.1 ] && exit 3
exit 0
"""

# Prints every tick, and hardly waits between ticks, so that kills fall into every part of a job's life.
TICKER = """
import time
from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.supervisor import Supervisor
supervisor = Supervisor(Store.open())
while (tick := supervisor.tick()).active:
    print("tick", flush=True)
    time.sleep(min(tick.wait_s, 0.1))
"""


def submit_journalled(tmp_path: Path, seconds: float, name: str = "killed") -> tuple[Job, Path]:
    journal = tmp_path / f"{name}.journal"
    code = tmp_path / name
    code.mkdir()
    (code / "main.sh").write_text(PROGRAM)
    text = f"name: {name}\nrun: exec sh main.sh\nenv: {{JOURNAL: '{journal}', SECONDS_LONG: '{seconds}'}}\n"
    text += "launcher: none\nretry: {failure: 3}\n"
    return submit_text(text, code, nodes=2, supervise=False), journal


def some_chance() -> random.Random:
    """Return a random generator, and print its seed, so that a failure can be repeated (CLOUDGPU_SEED)."""
    seed = int(os.environ.get("CLOUDGPU_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"CLOUDGPU_SEED={seed}")
    return random.Random(seed)


def check(job: Job, journal: Path) -> None:
    """Check that the job succeeded in the third attempt, and that no node ran twice or together with another
    attempt's."""
    assert job.refresh().state == "succeeded", [event.message for event in job.events()]
    assert [attempt.outcome for attempt in job.attempts()] == ["again", "failed", "succeeded"]
    lines = [tuple(line.split()) for line in journal.read_text().splitlines()]
    began = [line for line in lines if line[0] == "begin"]
    assert len(began) == len(set(began)) == 10
    assert [len(attempt.generations) for attempt in job.attempts()] == [2, 2, 0]
    assert [attempt for _, attempt, *_ in lines] == sorted(attempt for _, attempt, *_ in lines)


def test_killed_between_any_two_ticks(home: Path, tmp_path: Path) -> None:
    """A process that ticks without a pause is killed shortly after a random number of ticks."""
    chance = some_chance()
    jobs = [submit_journalled(tmp_path, 0.3, f"ticked{number}") for number in range(KILLS // 6)]
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", TICKER], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(12)):
                if not process.stdout.readline():
                    break
            time.sleep(chance.random() * 0.01)
            process.kill()
    subprocess.run([sys.executable, "-c", TICKER], check=True, stdout=subprocess.DEVNULL, timeout=END_S)
    for job, journal in jobs:
        check(job, journal)


def test_killed_while_it_supervises(home: Path, tmp_path: Path) -> None:
    job, journal = submit_journalled(tmp_path, 1.0)
    chance = some_chance()
    for _ in range(KILLS):
        with start_supervisor() as supervisor:
            time.sleep(chance.uniform(0.1, 1.5))
            supervisor.kill()
        if job.refresh().done:
            break
    assert job.wait(timeout_s=END_S)
    check(job, journal)


def test_two_supervisors_share_a_store(home: Path, tmp_path: Path) -> None:
    """Both tick at once, as on two computers with one database; then the one with the job's lease is killed."""
    job, journal = submit_journalled(tmp_path, 0.3)
    first = subprocess.Popen([sys.executable, "-c", TICKER], stdout=subprocess.DEVNULL)
    second = subprocess.Popen([sys.executable, "-c", TICKER], stdout=subprocess.DEVNULL)
    end = time.monotonic() + END_S
    while job.refresh().state != "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    holder = job.row.lease_owner or ""
    killed, other = (first, second) if f"/{first.pid}/" in holder else (second, first)
    killed.kill()
    assert other.wait(END_S) == 0
    killed.wait()
    check(job, journal)
    assert Store.open().active_jobs() == []
