"""Benchmark of many jobs under one supervisor, with stand-ins of EC2, IAM and S3 over HTTP.

CLOUDGPU_BENCH_JOBS=1000 python -m tests.bench jobs      (only when named: 1,000 jobs take a quarter of an hour)

Jobs are submitted by cloudgpu.submit(), which starts the supervisor like any command. Machines do not boot: a process
writes their heartbeats.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cloudgpu
from cloudgpu.control.jobs import Job
from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.protocol.jobdir import Heartbeat, JobDir, JobDirError, node_key
from cloudgpu.storage.stores import Buckets
from cloudgpu.tests.standins.agent_files import OWN_PYTHON
from cloudgpu.tests.standins.aws.control import AwsControl
from cloudgpu.tests.standins.aws.control import environ as aws_environ
from cloudgpu.tests.standins.aws.jobs import BUCKET
from cloudgpu.tests.standins.aws.process import AUDITOR, aws_process
from cloudgpu.tests.standins.faults import Call

from .measure import Row
from .requests import PRICES

JOBS = int(os.environ.get("CLOUDGPU_BENCH_JOBS", "100"))
QUIET_S = 60.0
SETTLE_S = 65.0
"""Seconds from the start of the last job to the quiet minute, after which each job is polled once a minute."""
BEAT_S = 60.0
LIMIT_S = 2_400.0
DAY_S = 86_400
TODAY = datetime.date(2026, 11, 1)
_JOB = f"""
name: bench
resources: {{cloud: aws, machine_type: g4dn.xlarge, accelerator: T4, region: us-east-1, market: on-demand}}
job_dir: s3://{BUCKET}/jobs
code: .
run: python train.py
launcher: none
retry: {{capacity: 10h}}
"""
_READS = frozenset({"GetObject", "HeadObject"})


def rows() -> list[Row]:
    """Submit JOBS jobs, cancel two and query the status while they launch, then measure a quiet minute."""
    with tempfile.TemporaryDirectory() as folder, aws_process(boot=False) as control, _environ(control.url, folder):
        import boto3

        boto3.client("s3").create_bucket(Bucket=BUCKET)
        control.set_quota("us-east-1", "L-DB2E81BA", 4.0 * JOBS)
        control.throttle()
        with _machines(), _supervisor():
            return _measure(control, Path(folder) / "code")


@contextmanager
def _environ(url: str, folder: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(aws_environ(url), CLOUDGPU_HOME=folder, CLOUDGPU_AGENT_PYTHONS=OWN_PYTHON)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _measure(control: AwsControl, code: Path) -> list[Row]:
    store, begun = Store.open(), time.monotonic()
    jobs = _submit(code)
    submitted, shipped = time.monotonic() - begun, control.calls("PutObject|CreateMultipartUpload")
    with _measuring() as launching:
        _until(lambda: _count(store, "queued") <= JOBS // 2, poll_s=2.0)
        asked = [_seconds_to_cancel(jobs[0]), _seconds_to_cancel(jobs[-1])]
        busy_status = _seconds_of_status()
        _until(lambda: _count(store, "running") == len(store.active_jobs()), poll_s=2.0)
        took = time.monotonic() - begun
    calls = control.calls("RunInstances")
    time.sleep(min(SETTLE_S, JOBS))
    control.forget()
    with _measuring() as quiet:
        time.sleep(QUIET_S)
    made = _requests(control.calls())
    how = f"{JOBS} jobs; machines only write heartbeats"
    return [
        Row("submit of all jobs in one process", submitted, 60.0 * max(1.0, JOBS / 1_000), "s", how),
        Row("code and agent sent", len([one for one in shipped if "shared/" in str(one.params)]), 2, "uploads", how),
        Row("all run after", took, None, "s", f"{how}; AWS takes 2 RunInstances a second"),
        *_launch_rows(calls, launching, asked, busy_status, how),
        *_quiet_rows(made, quiet, how),
    ]


def _submit(code: Path) -> list[Job]:
    """Submit the same job file repeatedly, as a sweep does."""
    code.mkdir()
    (code / "train.py").write_text("print('hello')\n")
    loaded = load_text(_JOB, base=code)
    plan = cloudgpu.plan(loaded.spec, machine=None, today=TODAY)
    return [cloudgpu.submit(loaded, plan) for _ in range(JOBS)]


def _launch_rows(calls: list[Call], used: Usage, asked: list[float], status: float, how: str) -> list[Row]:
    refused = 100 * sum(call.status != 200 for call in calls) / max(1, len(calls))
    return [
        Row("supervisor while jobs launch", used.cores, 1.0, "cores", how),
        Row("RunInstances refused", refused, 5.0, "%", f"of {len(calls)} calls"),
        Row("cancel → stopping, while others launch", max(asked), 5.0, "s", "the slower of the first and the last job"),
        Row("`cloudgpu status` while jobs launch", status, 1.0, "s", "20 jobs"),
    ]


def _quiet_rows(made: Counter[str], used: Usage, how: str) -> list[Row]:
    writes = made["writes"] / used.seconds
    reads = made["reads"] / used.seconds
    a_day = DAY_S * 1_000 / JOBS / 1e6
    rows = [
        Row("supervisor, steady state", used.cores, 1.0, "cores", how),
        Row("its memory, at most", used.peak_mb, 300.0, "MB RSS", f"{how}; {used.threads} threads, {used.files} files"),
        Row("storage requests, steady state", reads + writes, 60.0 * JOBS / 1_000, "a second", how),
        Row("DescribeInstances", made["DescribeInstances"] / used.seconds, 0.5, "a second", how),
        Row("`cloudgpu status`", _seconds_of_status(), 1.0, "s", "20 jobs"),
    ]
    for name, (write, read) in PRICES.items():
        cost = a_day * (writes * write + reads * read)
        what = f"{a_day * reads:.2f} million reads, {a_day * writes:.2f} million writes and listings"
        rows.append(Row(f"supervisor's requests: {name}", cost, None, "USD a day, 1,000 jobs", what))
    return rows


# -- measurements


@dataclass
class Usage:
    """CPU and memory usage of the supervisor over an interval."""

    seconds: float = 0.0
    cores: float = 0.0
    peak_mb: float = 0.0
    """Peak since the process started."""
    threads: int = 0
    files: int = 0


@contextmanager
def _measuring() -> Iterator[Usage]:
    """Context manager that measures the supervisor during its body."""
    used, pid, start = Usage(), _pid(), time.monotonic()
    cpu = _cpu_s(pid)
    yield used
    used.seconds = time.monotonic() - start
    used.cores = (_cpu_s(pid) - cpu) / used.seconds
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    used.peak_mb, used.threads = int(lines["VmHWM"].split()[0]) / 1_000, int(lines["Threads"])
    used.files = len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _seconds_to_cancel(job: Job) -> float:
    begun = time.monotonic()
    job.cancel()
    _until(lambda: job.refresh().state in {"stopping", "cancelled"})
    return time.monotonic() - begun


def _seconds_of_status() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "cloudgpu", "status"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def _requests(calls: list[Call]) -> Counter[str]:
    """Count the supervisor's calls: those to the bucket as reads and writes, others by action."""
    counted: Counter[str] = Counter()
    for call in calls:
        if call.caller not in {"", AUDITOR}:
            kind = "reads" if call.action in _READS else "writes"
            counted[kind if call.service == "s3" else call.action] += 1
    return counted


def _count(store: Store, state: str) -> int:
    return sum(job.state == state for job in store.list_jobs(active_only=True, limit=10_000))


def _until(holds: Callable[[], bool], poll_s: float = 0.1) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(poll_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- processes


def _pid() -> int:
    there = supervisor_lock.running()
    assert there is not None and there.pid is not None
    return there.pid


@contextmanager
def _supervisor() -> Iterator[None]:
    """Context manager that kills a supervisor started in its body."""
    try:
        yield
    finally:
        if supervisor_lock.is_running():
            with suppress(ProcessLookupError):
                os.kill(_pid(), signal.SIGKILL)


@contextmanager
def _machines() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-m", "cloudgpu.tests.bench.jobs"]) as machines:
        try:
            yield
        finally:
            machines.kill()


def play_machines() -> None:
    """Write a heartbeat for each launched machine every BEAT_S seconds."""
    os.environ["AWS_ACCESS_KEY_ID"] = AUDITOR  # distinguishes these requests from the supervisor's
    store, buckets, due, beats = Store.open(), Buckets(), dict[str, float](), Counter[str]()
    while True:
        now = time.monotonic()
        for job in store.list_jobs(active_only=True, limit=10_000):
            if job.state in {"starting", "running"} and due.get(job.id, 0.0) <= now:
                due[job.id], beats[job.id] = now + BEAT_S, beats[job.id] + 1
                beat = Heartbeat(beats[job.id], time.time(), "running", {"step": beats[job.id]})
                job_dir = JobDir(job.job_dir, bucket=buckets.of(job.job_dir))
                with suppress(JobDirError):  # the stand-in is overloaded; the next heartbeat follows
                    job_dir.put(node_key(job.attempt, "worker-0.1", "heartbeat.json"), beat.to_bytes())
        time.sleep(3.0)


if __name__ == "__main__":
    play_machines()
