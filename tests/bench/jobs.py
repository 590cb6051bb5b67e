"""Many running jobs under one supervisor, against the stand-ins of EC2 and S3 over the wire.

CLOUDGPU_BENCH_JOBS=1000 python -m tests.bench jobs      (on request: with 1,000 jobs it takes some 20 minutes)

The supervisor is a process of its own, as in life. Machines do not boot: a process writes their heartbeats.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cloudgpu.control.model import JobRow
from cloudgpu.control.presence import wake
from cloudgpu.control.store import Store
from cloudgpu.runtime.jobdir import JOB_KEY, Heartbeat, JobDir, JobRecord, node_key
from cloudgpu.tests.standins.aws.control import AwsControl
from cloudgpu.tests.standins.aws.control import environ as aws_environ
from cloudgpu.tests.standins.aws.jobs import BUCKET
from cloudgpu.tests.standins.aws.process import LOOKER, aws_process
from cloudgpu.tests.standins.control import make_job, make_offer, make_policy

from .measure import Row

JOBS = int(os.environ.get("CLOUDGPU_BENCH_JOBS", "100"))
QUIET_S = 60.0
BEAT_S = 60.0
LIMIT_S = 1_800.0
DAY_S = 86_400
READ_PRICES = {"S3": 0.0004 / 1_000, "Cloud Storage": 0.004 / 10_000, "Blob Storage": 0.005 / 10_000}
"""US dollars a GET, standard or hot storage in a US region: aws.amazon.com/s3/pricing,
cloud.google.com/storage/pricing (class B), azure.microsoft.com/pricing/details/storage/blobs (read, hot, LRS)."""


def rows() -> list[Row]:
    """Launch JOBS jobs, cancel one meanwhile, then measure a quiet minute."""
    with tempfile.TemporaryDirectory() as folder, aws_process(boot=False) as control, _environ(control.url, folder):
        import boto3

        boto3.client("s3").create_bucket(Bucket=BUCKET)
        control.set_quota("us-east-1", "L-DB2E81BA", 4.0 * JOBS)
        control.throttle()
        store = Store.open()
        return _measure(control, store, Path(folder))


@contextmanager
def _environ(url: str, folder: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(aws_environ(url), CLOUDGPU_HOME=folder)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _measure(control: AwsControl, store: Store, folder: Path) -> list[Row]:
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(_prepared, range(JOBS)))
    with _supervisor(folder) as pid:
        for job in jobs:
            store.insert_job(job, "submitted")
            wake(job.id)
        submitted = time.monotonic() - begun
        machines = subprocess.Popen([sys.executable, "-m", "cloudgpu.tests.bench.jobs"])
        try:
            _until(lambda: sum(job.state != "queued" for job in _active(store)) >= JOBS // 4)
            cancelled = _cancel(store, jobs[0].id)
            _until(lambda: all(job.state == "running" for job in _active(store) if job.goal == "run"))
            launching = control.calls("RunInstances")
            refused = sum(call.status != 200 for call in launching)
            control.forget()
            cpu, start = _cpu_s(pid), time.monotonic()
            time.sleep(QUIET_S)
            lasted = time.monotonic() - start
            cpu, calls = (_cpu_s(pid) - cpu) / lasted, _calls(control)
            rss, threads = _status(pid)
            status = _seconds([sys.executable, "-m", "cloudgpu", "status"])
        finally:
            machines.kill()
            machines.wait()
    reads = calls["s3.GetObject"] + calls["s3.HeadObject"] + calls["s3.ListObjectsV2"]
    a_day = reads / lasted * DAY_S * 1_000 / JOBS
    prices = ", ".join(f"{name} {a_day * price:.2f} USD" for name, price in READ_PRICES.items())
    how = f"{JOBS} jobs; machines only write heartbeats"
    return [
        Row("supervisor, steady state", cpu, 1.0, "cores", how),
        Row("its memory", rss, 300.0, "MB RSS", f"{how}; {threads} threads"),
        Row("storage requests, steady state", reads / lasted, 60.0 * JOBS / 1_000, "a second", how),
        Row("the same, 1,000 jobs and a day", a_day / 1e6, None, "million", prices),
        Row("DescribeInstances", calls["ec2.DescribeInstances"] / lasted, 0.5, "a second", how),
        Row("RunInstances refused", 100 * refused / max(1, len(launching)), 5.0, "%", f"of {len(launching)} calls"),
        Row("cancel → stopping, while others launch", cancelled, 5.0, "s", how),
        Row("`cloudgpu status`", status, 1.0, "s", "20 jobs"),
        Row("job.json and row of all jobs", submitted, None, "s", f"{how}; 8 at a time, without code and agent"),
    ]


def _prepared(number: int) -> JobRow:
    job_id = f"bench-{number:04d}"
    url = f"s3://{BUCKET}/jobs/{job_id}"
    record = JobRecord(job_id=job_id, name="bench", run="true").to_bytes()
    JobDir(url).put(JOB_KEY, record)
    offer = make_offer(region="us-east-1", zone="use1-az1", machine_type="g4dn.xlarge", gpus=1)._replace(cloud="aws")
    policy = make_policy(agents={"x86_64": "a" * 64}, capacity_s=36_000)
    digest = hashlib.sha256(record).hexdigest()
    return make_job(job_id, url, [offer], now=time.time(), policy=policy, job_sha256=digest, owner="cloudgpu-bench")


@contextmanager
def _supervisor(folder: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "cloudgpu", "supervise"]
    with (folder / "supervisor.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _until((folder / "supervisor.wake").exists)
            yield process.pid
        finally:
            process.kill()


def _cancel(store: Store, job_id: str) -> float:
    begun = time.monotonic()
    assert store.set_goal(job_id, "cancel", "cancel", time.time())
    wake(job_id)
    _until(lambda: (job := store.job(job_id)) is None or job.state in {"stopping", "cancelled"})
    return time.monotonic() - begun


def _active(store: Store) -> list[JobRow]:
    return store.list_jobs(active_only=True, limit=10_000)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def _calls(control: AwsControl) -> Counter[str]:
    return Counter(f"{call.service}.{call.action}" for call in control.calls() if call.caller not in {"", LOOKER})


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> tuple[float, int]:
    """Return megabytes of memory, and threads."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1_000, int(lines["Threads"])


def _seconds(command: list[str]) -> float:
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def play_machines() -> None:
    """Write a heartbeat for each machine once it was launched, and every BEAT_S from then on."""
    os.environ["AWS_ACCESS_KEY_ID"] = LOOKER  # these are no requests of the supervisor's
    store, due, beats = Store.open(), dict[str, float](), Counter[str]()
    while True:
        now = time.monotonic()
        for job in _active(store):
            if job.state in {"starting", "running"} and due.get(job.id, 0.0) <= now:
                due[job.id], beats[job.id] = now + BEAT_S, beats[job.id] + 1
                beat = Heartbeat(beats[job.id], time.time(), "running", {"step": beats[job.id]})
                JobDir(job.job_dir).put(node_key(job.attempt, "worker-0.1", "heartbeat.json"), beat.to_bytes())
        time.sleep(1.0)


if __name__ == "__main__":
    play_machines()
