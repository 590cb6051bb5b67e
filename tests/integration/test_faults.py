"""Tests of local jobs while the disk, the job dir, the clock or the checkpoints fail.

Agents and programs are real; the supervisor runs in this process where its timeouts or its clock matter. Each job must
end correctly or, in bounded time, with a reason that names the cause; it may leave neither processes nor folders.
CLOUDGPU_LONG=1 adds tests that take 30 s each.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from cloudgpu.control import paths
from cloudgpu.control.errors import StoreError
from cloudgpu.control.jobs import Job, list_jobs
from cloudgpu.control.store.store import Store
from cloudgpu.control.submit.submission import owner_name
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.provisioners.base import Owner, ProvisionError
from cloudgpu.provisioners.local.provisioner import LocalProvisioner
from cloudgpu.provisioners.shared.clock import SystemClock
from cloudgpu.tests.standins.disk import Disk, mounted
from cloudgpu.tests.standins.local_jobs import start_supervisor, stop_supervisor, submit_text
from cloudgpu.tests.standins.long_mode import LONG, in_long_mode
from cloudgpu.tests.standins.orphans import orphans

END_S = 300.0
SOON = 1.0
"""Timeout in seconds of agents and supervisors that must give up during the test."""
LATE = 600.0
"""Timeout in seconds that is not reached even on a busy computer."""
CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the state directory; afterwards check that no job, process or machine is left."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    stop_supervisor()
    active = [f"{job.id} is {job.state}" for job in list_jobs(active_only=True)]
    _, left = psutil.wait_procs(processes(tmp_path), timeout=180)
    for process in left:
        process.kill()
    assert (active, left, orphans()) == ([], [], [])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Yield a small mounted disk for job dirs."""
    with mounted(tmp_path / "disk", "4m") as disk:
        yield disk


def processes(folder: Path) -> list[psutil.Process]:
    """Return all processes that name a folder in their command line or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = (*process.cmdline(), *process.environ().values())
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(process)
    return found


class ShiftedClock(SystemClock):
    """A clock whose wall clock time is shifted by `shift` seconds; its monotonic time is not."""

    shift = 0.0

    def now(self) -> float:
        return super().now() + self.shift


class Bench:
    """One job and its supervisor, whose ticks the test runs."""

    def __init__(self, tmp_path: Path, retry_timeout_s: float, clock: ShiftedClock | None = None) -> None:
        self.folder = tmp_path / "code"
        self.folder.mkdir()
        self.job: Job = None  # type: ignore[assignment]
        self._retry_timeout_s, self._clock = retry_timeout_s, clock or ShiftedClock()
        self._supervisor = self.new_supervisor()

    def new_supervisor(self, clock: ShiftedClock | None = None) -> Supervisor:
        local = LocalProvisioner(agent_options=["--patience-s", str(self._retry_timeout_s)])
        clock = clock or self._clock
        return Supervisor(Store.open(), clock=clock, provisioner=lambda _: local, retry_timeout_s=self._retry_timeout_s)

    def submit(self, program: str, more: str = "", job_dir: Path | None = None, price: str = "0") -> Job:
        """Submit a shell script, in which `at NAME` reports that it is reached and `until_ NAME` waits for go()."""
        tools = f'at() {{ touch "{self.folder}/at-$1"; }}\n'
        tools += f'until_() {{ while [ ! -e "{self.folder}/go-$1" ]; do sleep 0.05; done; }}\n'
        (self.folder / "main.sh").write_text(tools + program)
        text = f"name: faulty\ncode: .\nrun: exec sh main.sh\njob_dir: {job_dir or self.folder.parent / 'jobs'}\n{more}"
        self.job = submit_text(text, self.folder, supervise=False, price=price)
        return self.job

    @property
    def job_folder(self) -> Path:
        return Path(unquote(self.job.job_dir.removeprefix("file://")))

    def go(self, name: str) -> None:
        (self.folder / f"go-{name}").touch()

    def is_at(self, name: str) -> bool:
        return (self.folder / f"at-{name}").exists()

    def drive(self, until: Callable[[], bool], limit_s: float = END_S) -> None:
        end = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < end, [event.message for event in self.job.events()]
            try:
                wait_s = self._supervisor.tick().wait_s
            except StoreError:
                wait_s = 0.1
            time.sleep(min(wait_s, 0.1))

    def reach(self, name: str) -> None:
        self.drive(lambda: self.is_at(name) and self.job.refresh().state == "running")

    def finish(self, limit_s: float = END_S) -> Job:
        self.drive(lambda: self.job.refresh().done, limit_s)
        return self.job

    def outcomes(self) -> list[str]:
        return [attempt.outcome for attempt in self.job.attempts()]

    def log(self) -> list[str]:
        return [line.text for line in self.job.logs().read()[0] if line.stream != "agent"]


def until(what: Callable[[], object], limit_s: float = END_S) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- the job dir's disk: full, read-only

FAULTS: dict[str, tuple[Callable[[Disk], None], Callable[[Disk], None], str]] = {
    "full": (Disk.fill, Disk.free, "No space left on device"),
    "read-only": (lambda disk: disk.set_writable(False), lambda disk: disk.set_writable(True), "Read-only file system"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_for_a_while_costs_nothing(home: Path, disk: Disk, tmp_path: Path, fault: str) -> None:
    """The program writes and ends meanwhile: the agent keeps its lines and result until they can be written."""
    bench = Bench(tmp_path, LATE)
    bench.submit("echo before; at start; until_ 1; echo during; at end\n", job_dir=disk.folder)
    bench.reach("start")
    begin, end, _ = FAULTS[fault]
    begin(disk)
    bench.go("1")
    bench.drive(lambda: bench.is_at("end"))
    ticking_until = time.monotonic() + 1
    bench.drive(lambda: time.monotonic() > ticking_until)
    assert bench.job.refresh().state == "running"
    end(disk)
    assert bench.finish().state == "succeeded"
    assert (bench.outcomes(), bench.log()) == (["succeeded"], ["before", "during"])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ends", [False, True], ids=["program runs on", "program ends"])
def test_a_disk_that_fails_for_good_ends_the_job(
    home: Path, disk: Disk, tmp_path: Path, fault: str, ends: bool
) -> None:
    bench = Bench(tmp_path, SOON)
    bench.submit("at start; until_ 1\n", job_dir=disk.folder)
    bench.reach("start")
    begin, end, message = FAULTS[fault]
    begin(disk)
    if ends:
        bench.go("1")
    try:
        job = bench.finish()
        assert (job.state, bench.outcomes()) == ("failed", ["lost", "error"])
        assert message in job.reason, job.reason
        assert message in job.attempts()[0].reason, "the agent's last words"
    finally:
        end(disk)


def test_a_disk_that_recovers_after_the_agent_gave_up_costs_an_attempt(home: Path, disk: Disk, tmp_path: Path) -> None:
    bench = Bench(tmp_path, SOON)
    bench.submit('at start; [ "$CLOUDGPU_ATTEMPT" = 2 ] || until_ never\n', job_dir=disk.folder)
    bench.reach("start")
    disk.fill()
    bench.drive(lambda: "lost" in bench.outcomes())
    disk.free()
    assert bench.finish().state == "succeeded"
    assert bench.outcomes() == ["lost", "succeeded"]


@in_long_mode
def test_a_job_that_cannot_be_stopped_through_its_job_dir_is_terminated(home: Path, disk: Disk, tmp_path: Path) -> None:
    bench = Bench(tmp_path, LATE)
    bench.submit("at start; until_ never\n", job_dir=disk.folder)
    bench.reach("start")
    disk.fill()
    Store.open().set_goal(bench.job.id, "cancel", "cancel", time.time())
    assert bench.finish().state == "cancelled"
    assert processes(disk.folder) == []
    disk.free()


# -- the state directory's disk


def test_a_full_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store cannot be written, the supervisor is killed and replaced; then the disk is freed."""
    with mounted(tmp_path / "state", "16m") as disk:
        home = disk.folder / "home"
        monkeypatch.setenv("CLOUDGPU_HOME", str(home))
        (tmp_path / "code").mkdir()
        script = f"touch {tmp_path}/started; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo $CLOUDGPU_ATTEMPT"
        (tmp_path / "code" / "main.sh").write_text(script)
        job = submit_text(f"name: full\nrun: exec sh main.sh\njob_dir: {tmp_path}/jobs\n", tmp_path / "code")
        until(lambda: job.refresh().state == "running" and (tmp_path / "started").exists())
        disk.fill()
        (tmp_path / "go").touch()
        until(lambda: list(tmp_path.glob("jobs/*/attempts/0001/nodes/*/result.json")))
        for process in processes(home):
            with contextlib.suppress(psutil.Error):  # the agent, which has just ended
                if "supervise" in process.cmdline():
                    process.kill()
        command = [CLOUDGPU, "wait", job.id]
        waiting = subprocess.run(
            [*command, "--timeout", "4s"], capture_output=True, text=True, check=False, timeout=180
        )
        assert (waiting.returncode, waiting.stderr) == (5, f"{job.id} is still running: it goes on\n")
        until(supervisor_lock.is_running)  # the new supervisor, which waits for free space
        assert "Traceback" not in paths.supervisor_log().read_text()
        disk.free()
        assert subprocess.run(command, capture_output=True, check=False, timeout=180).returncode == 0
        assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"]
        assert [line.text for line in job.logs().read()[0]] == ["1"]
        assert orphans() == []
        stop_supervisor()
        assert psutil.wait_procs(processes(tmp_path), timeout=180)[1] == []


def test_machines_end_although_that_cannot_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "state", "16m") as disk:
        monkeypatch.setenv("CLOUDGPU_HOME", str(disk.folder / "home"))
        bench = Bench(tmp_path, LATE)
        bench.submit('at start; [ "$CLOUDGPU_ATTEMPT" = 2 ] || until_ never\n')
        bench.reach("start")
        [allocation] = LocalProvisioner().find(Owner(owner_name()))
        disk.take_all_names()
        with pytest.raises(ProvisionError, match="No space left"):
            LocalProvisioner().terminate(allocation)
        assert processes(disk.folder) == []
        disk.free()
        assert bench.finish().state == "succeeded"
        assert (bench.outcomes(), orphans()) == (["lost", "succeeded"], [])


# -- the job dir: deleted, replaced


def delete(folder: Path) -> None:
    end = time.monotonic() + 180
    while folder.exists():  # another process may write into it meanwhile
        assert time.monotonic() < end
        shutil.rmtree(folder, ignore_errors=True)


def replace(folder: Path) -> None:
    delete(folder)
    folder.write_text("something else")


@pytest.mark.parametrize("harm", [delete, replace])
@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "before it starts"])
def test_a_job_dir_that_is_gone_ends_the_job(
    home: Path, tmp_path: Path, harm: Callable[[Path], None], running: bool
) -> None:
    bench = Bench(tmp_path, LATE)
    bench.submit("at start; until_ never\n")
    if running:
        bench.reach("start")
    harm(bench.job_folder)
    job = bench.finish()  # much sooner than LATE
    assert (job.state, bench.outcomes()) == ("failed", ["lost", "error"] if running else ["error"])
    assert "job.json is missing" in job.reason
    assert not bench.job_folder.is_dir()
    if running:
        assert "the job dir has been deleted" in job.attempts()[0].reason


def test_an_attempts_folder_that_is_gone_does_not_matter(home: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path, LATE)
    bench.submit("at start; until_ 1; echo done\n")
    bench.reach("start")
    delete(bench.job_folder / "attempts" / "0001")
    bench.go("1")
    assert bench.finish().state == "succeeded"
    assert (bench.outcomes(), bench.log()) == (["succeeded"], ["done"])


@in_long_mode
def test_a_cancelled_job_whose_dir_is_gone_makes_none(home: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path, LATE)
    bench.submit("at start; until_ never\n")
    bench.reach("start")
    delete(bench.job_folder)
    Store.open().set_goal(bench.job.id, "cancel", "cancel", time.time())
    bench._supervisor.release()
    bench._supervisor = bench.new_supervisor()  # with no memory of the folder
    assert bench.finish().state == "cancelled"
    assert not bench.job_folder.exists()


# -- the clock


def test_a_clock_that_jumps_reaches_no_limit_and_takes_no_lease(home: Path, tmp_path: Path) -> None:
    clock = ShiftedClock()
    bench, begin = Bench(tmp_path, LATE, clock), time.monotonic()
    bench.submit("at start; until_ 1\n", "limits: {duration: 10m, cost: 1 USD}\n", price="3.6")
    bench.reach("start")
    holder = bench.job.row.lease_owner
    for hours in (-2, 2, 0):
        clock.shift = hours * 3_600.0
        other = bench.new_supervisor(ShiftedClock())
        other.tick()
        ticking_until = time.monotonic() + 0.5
        bench.drive(lambda end=ticking_until: time.monotonic() > end)  # type: ignore[misc]
        assert (bench.job.refresh().state, bench.job.row.lease_owner) == ("running", holder)
    clock.shift = -7_200.0
    bench.go("1")
    job = bench.finish()
    assert job.state == "succeeded"
    assert Decimal(0) < (job.cost or 0) <= Decimal("3.6") * Decimal(time.monotonic() - begin + 1) / 3_600


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_jumped_leaves_programs_their_time_to_save(home: Path, tmp_path: Path, hours: int) -> None:
    clock = ShiftedClock()
    bench = Bench(tmp_path, LATE, clock)
    bench.submit("trap 'sleep 1; at saved; exit 0' TERM; at start; sleep 1000 & wait\n")
    bench.reach("start")
    clock.shift = hours * 3_600.0
    Store.open().set_goal(bench.job.id, "cancel", "cancel", time.time())
    assert bench.finish().state == "cancelled"
    assert bench.is_at("saved")


def test_another_supervisor_after_a_jump_back(home: Path, tmp_path: Path) -> None:
    bench, begin = Bench(tmp_path, LATE), time.monotonic()
    bench.submit("at start; until_ 1\n", "limits: {duration: 10m}\n", price="3.6")
    bench.reach("start")
    bench._supervisor.release()
    late = ShiftedClock()
    late.shift = -7_200.0
    bench._supervisor = bench.new_supervisor(late)
    bench.go("1")
    job = bench.finish()
    [attempt] = job.attempts()
    assert (job.state, attempt.outcome) == ("succeeded", "succeeded")
    most = time.monotonic() - begin + 1
    assert 0 < (attempt.ended or 0) - (attempt.launched or 0) < most
    assert Decimal(0) < (attempt.cost or 0) < Decimal("3.6") * Decimal(most) / 3_600


# -- checkpoints

TRAIN = """
import hashlib, logging, os, sys, time
import torch
from cloudgpu.runtime import Checkpointer

here, pauses = sys.argv[1], sys.argv[2:]
attempt, notice = os.environ.get("CLOUDGPU_ATTEMPT", "0"), os.environ.get("CLOUDGPU_NOTICE", "")
logging.basicConfig(filename=f"{here}/said", format="%(message)s")
torch.manual_seed(7)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(0, 2, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
ckpt = Checkpointer(model=model, optimizer=optimizer, loader=loader, every=5)
with open(f"{here}/began", "a") as file:
    file.write(f"{ckpt.step}\\n")
for inputs, labels in ckpt.batches(epochs=8):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ckpt.wait()  # on a slow disk a save that is due would be left for a later step: here each step is as the tests say
    place = f"{attempt}-{ckpt.step}"
    if place in pauses:
        open(f"{here}/at-{place}", "w").close()
        while not os.path.exists(f"{here}/go-{place}") and not os.path.exists(notice):
            time.sleep(0.02)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(weights).hexdigest())
"""
STEPS = 96


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the weights of an undisturbed run that is started directly, without a job."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("undisturbed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    command = [sys.executable, "-c", TRAIN, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def train(bench: Bench, pauses: Sequence[str], job_dir: Path | None = None, more: str = "") -> None:
    (bench.folder / "train.py").write_text(TRAIN)
    words = " ".join([sys.executable, "train.py", str(bench.folder), *pauses])
    bench.submit(f"exec {words}\n", more, job_dir=job_dir)


def said(bench: Bench) -> str:
    return (bench.folder / "said").read_text()


def test_checkpoints_on_a_full_disk(home: Path, disk: Disk, tmp_path: Path, undisturbed: str) -> None:
    bench = Bench(tmp_path, LATE)
    train(bench, ["1-22", "1-48"], disk.folder, more="checkpoint: {keep: 1}\n")  # so that no older one can be deleted
    bench.reach("1-22")
    until(lambda: len(list((bench.job_folder / "checkpoints").glob("*/COMMIT.json"))) == 1)
    disk.fill()
    bench.go("1-22")
    bench.drive(lambda: bench.is_at("1-48"))
    warnings = [line for line in said(bench).splitlines() if "could not be saved" in line]
    assert [line.split()[1] for line in warnings] == ["25", "30", "40"], (
        "the first failure of a row, the 2nd and the 4th"
    )
    assert all("the newest checkpoint is 00000020-" in line and "No space left on device" in line for line in warnings)
    disk.free()
    bench.go("1-48")
    assert bench.finish().state == "succeeded"
    assert bench.log() == [undisturbed]
    assert said(bench).count("could not be saved") == len(warnings)
    assert bench.outcomes() == ["succeeded"]


def newest(checkpoints: Path) -> Path:
    def age(folder: Path) -> tuple[str, str]:
        step, attempt, _ = folder.name.split("-")
        return attempt, step

    return max((folder for folder in checkpoints.iterdir() if (folder / "COMMIT.json").exists()), key=age)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: list[Callable[[Path], None]] = [
    lambda newest: cut(newest / "rank-00000.bin"),
    lambda newest: flip(newest / "rank-00000.bin"),
    lambda newest: (newest / "rank-00000.bin").unlink(),
    lambda newest: cut(newest / "COMMIT.json"),
    lambda newest: (newest / "COMMIT.json").unlink(),
][: 5 if LONG else 3]


def test_damaged_checkpoints_are_passed_over(home: Path, tmp_path: Path, undisturbed: str) -> None:
    """The newest checkpoint is damaged in another way before each attempt; finally all are, and training restarts."""
    bench = Bench(tmp_path, LATE)
    pauses = [f"{attempt}-{10 * attempt + 2}" for attempt in range(1, len(DAMAGES) + 2)]
    train(bench, pauses, more="checkpoint: {on_damage: restart}\n")
    checkpoints = bench.job_folder / "checkpoints"
    for attempt, pause in enumerate(pauses, start=1):
        bench.reach(pause)
        bench.job.preempt(300)
        # The supervisor does not tick here, so the next attempt starts only after the damage.
        until((bench.job_folder / f"attempts/{attempt:04d}/nodes/worker-0.1/result.json").exists)
        for damage in DAMAGES[attempt - 1 : attempt]:
            assert newest(checkpoints).name.startswith(f"{10 * attempt + 3:08d}-")
            damage(newest(checkpoints))
    for shard in checkpoints.glob("*/rank-00000.bin"):
        cut(shard)
    assert bench.finish().state == "succeeded"
    assert bench.log() == [undisturbed]
    began = [int(step) for step in (bench.folder / "began").read_text().split()]
    assert began == [10 * attempt for attempt in range(len(pauses))] + [0]
    assert said(bench).count("passed over") >= 3
    assert "every checkpoint is damaged: training starts over" in said(bench)
    assert set(bench.outcomes()) == {"preempted", "succeeded"}


# -- supervisors


def test_two_supervisors_started_at_once(home: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path, LATE)
    bench.submit(f'echo begin >> "{bench.folder}/journal"; sleep 0.5\n')
    both = [start_supervisor() for _ in range(2)]
    try:
        until(lambda: bench.job.refresh().done)
        until(lambda: any(process.poll() is not None for process in both))
        assert [process.poll() for process in both].count(None) == 1
    finally:
        stop_supervisor()
        for process in both:
            process.wait(END_S)
    assert (bench.job.refresh().state, (bench.folder / "journal").read_text()) == ("succeeded", "begin\n")
    gc = subprocess.run([CLOUDGPU, "gc", "--json"], capture_output=True, text=True, check=True, timeout=180)
    assert json.loads(gc.stdout)["leftovers"] == []
    assert not supervisor_lock.is_running()
