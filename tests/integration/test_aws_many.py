"""Load tests of many jobs on AWS under one supervisor: the number of API calls is bounded.

The machines do not boot: the tests write their heartbeats and results into the bucket.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudgpu.control.reconcile.node_observation import SETTLED_READ_S, SETTLED_READS
from cloudgpu.control.store.model import JobRow
from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.control.supervisor.worker_pool import WorkerPool
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.jobdir import JOB_KEY, Heartbeat, JobDir, JobRecord, Result, node_key
from cloudgpu.provisioners.shared.poll_cache import TTL_S
from cloudgpu.tests.standins.aws.control import AwsControl
from cloudgpu.tests.standins.aws.control import environ as aws_environ
from cloudgpu.tests.standins.aws.jobs import BUCKET
from cloudgpu.tests.standins.aws.process import AUDITOR, Leftovers, aws_process
from cloudgpu.tests.standins.control import make_job, make_offer, make_policy
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.long_mode import LONG

pytestmark = pytest.mark.timeout(900)

JOBS = 100 if LONG else 40
QUIET_S = 15.0
NODE = "worker-0.1"
LAUNCH_CALLS = 15
"""Maximum number of API calls of a launch, including those for its role."""
END_CALLS = 12
"""Maximum number of API calls of a teardown."""


class Many:
    """Jobs in a separate store, advanced by a worker pool in this process like in the supervisor."""

    def __init__(self, control: AwsControl, folder: Path, template: Path) -> None:
        (folder / "store.db").write_bytes(template.read_bytes())
        self.control = control
        self.remains = Leftovers(control.url)
        self.store = Store.open(f"sqlite:///{folder / 'store.db'}")
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._pool = WorkerPool(Supervisor(self.store), self._bell.set)
        self._thread = threading.Thread(target=self._run)
        self.ticks = 0

    def submit(self, number: int, *offers: Offer) -> JobRow:
        job_id = f"many-{number:03d}"
        url = f"s3://{BUCKET}/jobs/{job_id}"
        record = JobRecord(job_id=job_id, name="many", run="true").to_bytes()
        JobDir(url).put(JOB_KEY, record)
        row = make_job(
            job_id,
            url,
            offers,
            now=time.time(),
            policy=make_policy(agents={"x86_64": "a" * 64}, capacity_s=3600),
            job_sha256=hashlib.sha256(record).hexdigest(),
            owner="cloudgpu-many",
        )
        self.store.insert_job(row, "submitted")
        return row

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._bell.set()
        self._thread.join(180)
        assert self._pool.close(180)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            tick = self._pool.tick()
            self.ticks += 1
            self._bell.wait(tick.wait_s)

    def states(self) -> Counter[str]:
        return Counter(job.state for job in self.store.list_jobs(active_only=False, limit=1_000))

    def wait_for(self, state: str, limit_s: float = 240.0) -> float:
        begin = time.monotonic()
        while self.states() != {state: JOBS}:
            assert time.monotonic() - begin < limit_s, (self.states(), self._troubles())
            time.sleep(0.2)
        return time.monotonic() - begin

    def _troubles(self) -> list[str]:
        rows = self.store.list_jobs(active_only=False, limit=1_000)
        events = [event for row in rows for event in self.store.events(row.id)]
        return sorted({event.message for event in events if event.kind in ("trouble", "waiting", "outcome")})[:20]

    def calls(self) -> Counter[str]:
        """Count the calls since the last reset by `service.action`, without those of the tests themselves."""
        return Counter(
            f"{call.service}.{call.action}" for call in self.control.calls() if call.caller not in ("", AUDITOR)
        )


@pytest.fixture
def many(tmp_path: Path, template: Path) -> Iterator[Many]:
    import boto3

    with aws_process(boot=False) as control, pytest.MonkeyPatch.context() as patch:
        for name, value in aws_environ(control.url).items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        made = Many(control, tmp_path, template)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cloudgpu.tests.standins.control import make_template

    return make_template(tmp_path_factory.mktemp("store"))


def offer(zone: str, market: str = "on-demand") -> Offer:
    return make_offer(region="us-east-1", zone=zone, market=market, machine_type="g4dn.xlarge", gpus=1)._replace(
        cloud="aws"
    )


def in_parallel(work: Callable[[JobRow], None], rows: list[JobRow]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, rows))


def speak(row: JobRow) -> None:
    """Write a heartbeat as the job's machine."""
    beat = Heartbeat(1, time.time(), "running", None).to_bytes()
    JobDir(row.job_dir).put(node_key(1, NODE, "heartbeat.json"), beat)


def succeed(row: JobRow) -> None:
    """Write a successful result as the job's machine."""
    result = Result("succeeded", 0, "", time.time(), time.time()).to_bytes()
    JobDir(row.job_dir).create(node_key(1, NODE, "result.json"), result)


def test_many_jobs_cost_a_bounded_number_of_calls(many: Many) -> None:
    many.control.set_quota("us-east-1", "L-DB2E81BA", 4.0 * JOBS)
    rows = [many.submit(number, offer("use1-az1")) for number in range(JOBS)]
    many.control.fail("RunInstances", error("RequestLimitExceeded", status=503), times=30)
    many.control.forget()
    many.start()
    many.wait_for("starting")
    launching = many.calls()
    print("launch", dict(launching))
    assert launching["ec2.RunInstances"] == JOBS + 30
    of_aws = sum(count for name, count in launching.items() if not name.startswith("s3."))
    assert of_aws <= JOBS * LAUNCH_CALLS, launching

    in_parallel(speak, rows)
    many.wait_for("running")
    time.sleep(2 * TTL_S)
    many.control.forget()
    begun = time.monotonic()
    time.sleep(QUIET_S)
    quiet, lasted = many.calls(), time.monotonic() - begun
    print("quiet", dict(quiet), lasted)
    assert set(quiet) <= {"ec2.DescribeInstances", "s3.GetObject", "s3.HeadObject"}
    assert quiet["ec2.DescribeInstances"] <= lasted / TTL_S + 2
    reads = sum(count for name, count in quiet.items() if name.startswith("s3."))
    assert reads <= 2 * SETTLED_READS * (lasted + SETTLED_READ_S[0]), "of all jobs, while machines and programs run"

    many.control.forget()
    in_parallel(succeed, rows)
    for instance in many.control.instances(running=True):
        many.control.crash(instance.instance_id)  # a machine terminates itself after the job
    many.wait_for("succeeded")
    ending = many.calls()
    print("end", dict(ending))
    of_aws = sum(count for name, count in ending.items() if not name.startswith("s3."))
    assert of_aws <= JOBS * END_CALLS, ending
    assert many.remains.find() == {}


def test_many_jobs_learn_from_each_other_where_there_is_nothing(many: Many) -> None:
    zones = {zone: name for zone, name in _zones(many).items() if zone in ("use1-az1", "use1-az2", "use1-az4")}
    many.control.set_quota("us-east-1", "L-DB2E81BA", 4.0 * JOBS)
    for zone in ("use1-az1", "use1-az2"):
        many.control.set_capacity("g4dn.xlarge", zones[zone], "on-demand", 0)
    first = many.submit(0, *(offer(zone) for zone in zones))
    many.start()
    _until(lambda: many.store.job(first.id), lambda row: row is not None and row.state == "starting")
    many.control.forget()
    others = [many.submit(number, *(offer(zone) for zone in zones)) for number in range(1, JOBS)]
    many.wait_for("starting")
    refused = [call for call in many.control.calls("RunInstances") if call.status != 200]
    assert refused == [], "the first job's refusals are known to all"
    asked = {row.id: [attempt.offer.zone for attempt in many.store.attempts(row.id)] for row in (first, *others)}
    assert asked.pop(first.id) == ["use1-az1", "use1-az4"], "EC2 named the zone that has machines"
    assert set(map(tuple, asked.values())) == {("use1-az4",)}


def _zones(many: Many) -> dict[str, str]:
    import boto3

    zones = boto3.client("ec2", "us-east-1").describe_availability_zones()["AvailabilityZones"]
    return {zone["ZoneId"]: zone["ZoneName"] for zone in zones}


def _until(look: Callable[[], JobRow | None], is_so: Callable[[JobRow | None], bool], limit_s: float = 240.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.1)
