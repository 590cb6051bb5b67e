"""Boot tests of AWS machines: the real user data and the real agent file, with S3 and IMDS over HTTP."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, Heartbeat, JobDir, JobRecord, Result, attempt_key, node_key
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.provisioners.aws.target import MAX_BYTES
from cloudgpu.provisioners.boot import BootRecord, user_data
from cloudgpu.provisioners.boot.agent_file import Built
from cloudgpu.provisioners.boot.files import boot_files
from cloudgpu.provisioners.boot.service import SERVICE, unit

from ..standins import s3
from ..standins.agent_files import own_agent_file
from ..standins.machine import Machine
from ..standins.metadata_aws import AwsMetadata
from ..standins.systemd import read_service

NODE = "worker-0.1"


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return own_agent_file(tmp_path_factory.mktemp("home"))


@dataclass
class World:
    """A bucket with a job, and machines that boot to run it."""

    folder: Path
    store: s3.S3
    imds: AwsMetadata
    agent: Built
    sha256: str = ""
    machines: list[Machine] = field(default_factory=list)

    @property
    def dir(self) -> JobDir:
        return JobDir(self.store.url)

    def job(self, run: str, **more: Any) -> None:
        data = JobRecord("job-1", "job", run, **more).to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.dir.put(JOB_KEY, data)
        nodes = [{"node": NODE, "role": "worker", "index": 0, "rank": 0, "gpus": 0}]
        offer = {"market": "spot", "cloud": "aws"}
        self.dir.put(attempt_key(1), AttemptRecord(1, offer, nodes, interruptions_left=None).to_bytes())
        self.dir.put(self.record().agent_key, self.agent.path)

    def record(self, **changes: Any) -> BootRecord:
        values: dict[str, Any] = {
            "job_dir": self.store.url,
            "job_id": "job-1",
            "attempt": 1,
            "node": NODE,
            "job_sha256": self.sha256,
            "agent_key": f"agent/{self.agent.sha256}.pyz",
            "agent_sha256": self.agent.sha256,
            "region": "us-east-1",
            "cloud": "aws",
            "notices": "aws",
            "lifetime_s": 3_600,
            "endpoint": self.store.environment["AWS_ENDPOINT_URL"],
        }
        return BootRecord(**values | changes)

    def boot(self, **changes: Any) -> Machine:
        """Boot a machine that has only its user data and its metadata service."""
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.url}
        data = user_data(self.record(**changes)).decode()
        machine = Machine(self.folder / f"machine-{len(self.machines)}", data, environ)
        self.machines.append(machine)
        machine.power_on()
        assert machine.booted.wait(180)
        return machine

    def ends(self, machine: Machine) -> str:
        """Wait until the machine is off, and return its console output."""
        self.until(lambda: not machine.is_on, 180)
        assert machine.trouble == []
        return machine.console

    def result(self) -> Result:
        return Result.from_bytes(self.dir.get(node_key(1, NODE, "result.json")))

    def log(self) -> list[str]:
        return [line.text for line in LogReader(self.dir).read()[0]]

    def until(self, there: Callable[[], object], limit_s: float = 180.0) -> None:
        end = time.monotonic() + limit_s
        while not there():
            assert time.monotonic() < end, self.machines[-1].console
            time.sleep(0.05)


@pytest.fixture
def world(tmp_path: Path, agent_file: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with s3.running() as store, AwsMetadata() as imds:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        imds.values["iam/security-credentials/"] = "cloudgpu-job-1"
        expires = datetime.now(UTC) + timedelta(hours=6)
        imds.values["iam/security-credentials/cloudgpu-job-1"] = json.dumps(
            {"AccessKeyId": "ASIAROLE", "SecretAccessKey": "rolesecret", "Token": "roletoken"}
            | {"Expiration": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}
        )
        made = World(tmp_path, store, imds, agent_file)
        yield made
        for machine in made.machines:
            machine.dispose()


class TestUserData:
    def test_it_fits_and_is_the_same_for_the_same_machine(self, world: World) -> None:
        world.job("true", env={"TOKEN": "a-secret"})
        data = user_data(world.record())
        assert len(data) < MAX_BYTES * 7 / 8
        assert data == user_data(world.record())
        assert data != user_data(world.record(node="worker-1.1"))

    def test_it_holds_nothing_secret(self, world: World) -> None:
        world.job("true", env={"TOKEN": "a-secret"})
        machine = world.boot()
        texts = [path.read_text() for path in (machine.root / "var/lib/cloudgpu").glob("boot*")]
        assert len(texts) == 2
        assert not [text for text in texts if "a-secret" in text or "rolesecret" in text]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"endpoint": "http://storage.example.com"},
            {"endpoint": "http://169.254.169.254"},
            {"job_dir": "gs://bucket/job"},
            {"job_dir": "s3://"},
            {"api_endpoint": "http://compute.example.com"},
            {"node": ""},
        ],
    )
    def test_what_no_machine_may_have_is_refused(self, world: World, wrong: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=r"127\.0\.0\.1|s3://BUCKET|no node"):
            world.record(**wrong)

    def test_one_that_is_too_long_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match="more than the 16384"):
            user_data(world.record(job_dir=f"s3://bucket/{'x' * 9_000}"))

    def test_cloud_init_understands_it(self, world: World, tmp_path: Path) -> None:
        """The schema check of Debian's cloud-init package accepts it. Skipped if the package cannot be downloaded."""
        command = ["apt-get", "download", "cloud-init", "python3-configobj"]
        got = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        packages = list(tmp_path.glob("*.deb"))
        if got.returncode or len(packages) != 2:
            pytest.skip("NOT CHECKED: the Debian package cloud-init cannot be downloaded here")
        for package in packages:
            subprocess.run(["dpkg", "-x", str(package), str(tmp_path / "there")], check=True)

        def check(data: bytes) -> str:
            (tmp_path / "user-data").write_bytes(data)
            done = subprocess.run(
                [sys.executable, "-m", "cloudinit.cmd.main", "schema", "--config-file", str(tmp_path / "user-data")],
                env={**os.environ, "PYTHONPATH": str(tmp_path / "there/usr/lib/python3/dist-packages")},
                capture_output=True,
                text=True,
                check=False,
            )
            return done.stdout + done.stderr

        good = user_data(world.record())
        found = check(good)
        if "ModuleNotFoundError" in found:
            pytest.skip(f"NOT CHECKED: cloud-init does not run here: {found.splitlines()[-1]}")
        assert "Valid" in found
        assert "Valid" not in check(good.replace(b'"permissions"', b'"permission"'))


def signature_is_right(request: s3.Request) -> bool:
    """Return True if botocore computes the same signature for the received request."""
    stamp, claimed = request.headers["X-Amz-Date"], request.headers["Authorization"]
    names = claimed.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    signer = S3SigV4Auth(Credentials("ASIAROLE", "rolesecret", "roletoken"), "s3", claimed.split("/")[2])
    url = f"http://{request.headers['Host']}{request.target}"
    again = AWSRequest(request.method, url, headers={name: request.headers[name] for name in names})
    again.context["timestamp"] = stamp
    right = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    return str(claimed).endswith(f"Signature={right}")


class TestBoot:
    def test_a_job_runs_and_the_machine_ends(self, world: World) -> None:
        program = (
            "import os, sys; from cloudgpu.runtime import write_output; write_output('here.txt', 'text');"
            "print('from', sys.prefix != sys.base_prefix, os.environ['CLOUDGPU_JOB_DIR'])"
        )
        world.job(f'python -c "{program}" && command -v python pip', setup="echo prepared")
        machine = world.boot()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", console
        assert machine.calls[0] == "shutdown -P +60"  # the lifetime limit is set first
        assert "shutdown -P now" in machine.calls
        assert "prepared" in world.log()
        assert "from True s3://bucket/job" in world.log()
        assert any(line.endswith("venv/bin/pip") for line in world.log())
        assert world.dir.get("outputs/here.txt") == b"text"

    def test_every_request_is_signed_as_aws_asks(self, world: World) -> None:
        world.job("true")
        world.store.requests.clear()
        world.ends(world.boot(agent_sha256="0" * 64))
        own = [request for request in world.store.requests if "Python-urllib" in request.headers["User-Agent"]]
        assert {request.method for request in own} == {"GET", "PUT"}
        assert all(signature_is_right(request) for request in own)

    def test_the_program_finds_cloudgpu_after_its_own_path(self, world: World) -> None:
        run = "python -c 'import sys, cloudgpu.runtime, obstore, xxhash; print(sys.path[1], sys.path[-1])'"
        world.job(run, env={"PYTHONPATH": "/somewhere"})
        world.ends(world.boot())
        paths = next(line for line in world.log() if line.startswith("/somewhere"))
        assert paths.endswith("/needs")

    def test_a_machine_whose_shutdown_fails_ends_all_the_same(self, world: World) -> None:
        world.job("sleep 1")
        machine = world.boot(lifetime_s=None)
        machine.broken.add("shutdown")
        world.ends(machine)
        assert "systemctl poweroff --force" in machine.calls[machine.calls.index("shutdown -P now") :]

    def test_a_machine_that_cannot_be_switched_off_is_switched_off_by_systemd(self, world: World) -> None:
        """All shutdown commands fail and `sync` hangs: the bootstrap's exit code makes systemd power it off."""
        world.job("sleep 1")
        machine = world.boot(lifetime_s=None)
        machine.broken.update({"shutdown", "systemctl", "poweroff"})
        hung = machine.root / ".shims/sync"
        hung.write_text("#!/bin/sh\nexec sleep 600\n")
        hung.chmod(0o755)
        console = world.ends(machine)
        assert machine.calls[-1] == "poweroff -f"
        assert "not all is written to disk" in console

    def test_a_service_that_is_stopped_alone_ends_the_machine(self, world: World) -> None:
        world.job("echo begun; sleep 600")
        machine = world.boot()
        world.until(lambda: "begun" in world.log())
        machine.kill_service(SERVICE, signal.SIGTERM)
        world.ends(machine)
        assert "shutdown -P now" in machine.calls

    def test_a_kernel_that_crashes_restarts_the_machine(self, world: World) -> None:
        world.job("true")
        machine = world.boot(lifetime_s=None)
        settings = ["kernel.panic=30", "kernel.panic_on_oops=1"]
        assert f"sysctl -q -w {' '.join(settings)}" in machine.calls
        assert (machine.root / "etc/sysctl.d/90-cloudgpu.conf").read_text().split() == settings  # for later boots

    def test_nothing_but_a_shutdown_stops_the_service(self, world: World) -> None:
        """The unit has RefuseManualStop, since apt in `setup` may restart services that use an upgraded library."""
        assert read_service(SERVICE, unit(world.record())).refuses_stop

    def test_images_with_an_old_python_can_read_the_bootstrap(self) -> None:
        """The bootstrap's modules parse with Python 3.8, since the bootstrap itself finds a newer Python."""
        shipped = [one for one in files("cloudgpu.provisioners.boot.shipped").iterdir() if one.name.endswith(".py")]
        assert len(shipped) > 10
        for module in shipped:
            ast.parse(module.read_text(), feature_version=(3, 8))

    def test_an_image_with_none_that_is_new_enough_says_so(self, world: World, tmp_path: Path) -> None:
        old = shutil.which("python3.9")
        if old is None or subprocess.run([old, "-V"], capture_output=True, check=False).returncode:
            pytest.skip("NOT CHECKED: there is no Python 3.9 here")
        world.job("true")
        for name, content in boot_files(world.record()).items():
            (tmp_path / name).write_bytes(content)
        environ = {"PATH": str(tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": world.imds.url}
        real = subprocess.run([old, "-c", "import sys; print(sys.executable)"], capture_output=True, check=True).stdout
        subprocess.run([real.decode().strip(), tmp_path / "bootstrap.py"], env=environ, capture_output=True, check=True)
        assert "the image has Python 3.9" in world.result().reason

    def test_what_failed_says_so(self, world: World) -> None:
        world.job("exit 3")
        machine = world.boot()
        world.ends(machine)
        assert (world.result().outcome, world.result().exit_code, machine.is_on) == ("failed", 3, False)

    @pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (401, "InvalidToken")])
    def test_a_role_that_is_not_known_yet_is_waited_for(self, world: World, status: int, code: str) -> None:
        world.job("true")
        role = world.imds.values.pop("iam/security-credentials/")
        world.store.fail("GET", "agent/", status=status, code=code, times=1)
        machine = world.boot()
        world.until(lambda: "trying again" in machine.console)
        world.imds.values["iam/security-credentials/"] = role
        assert code in world.ends(machine)
        assert world.result().outcome == "succeeded"

    def test_a_bucket_elsewhere_is_found(self, world: World) -> None:
        world.job("true")
        where = {"x-amz-bucket-region": "eu-central-1"}
        world.store.fail("GET", "agent/", status=301, code="PermanentRedirect", headers=where, times=1)
        world.ends(world.boot())
        fetched = [request for request in world.store.requests if "agent/" in request.key and request.method == "GET"]
        assert ["eu-central-1" in request.headers["Authorization"] for request in fetched] == [False, True]

    def test_a_wrong_clock_is_put_right_by_s3s_own(self, world: World) -> None:
        world.job("true")
        ahead = {"Date": formatdate(time.time() + 7_200, usegmt=True)}
        world.store.fail("GET", "agent/", status=403, code="RequestTimeTooSkewed", headers=ahead, times=1)
        world.ends(world.boot())
        fetched = [request for request in world.store.requests if "agent/" in request.key and request.method == "GET"]
        first, second = (
            datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            for request in fetched
        )
        assert timedelta(hours=1.9) < second - first < timedelta(hours=2.1)

    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (lambda world: world.dir.put(world.record().agent_key, b"another"), "is not the one that was sent"),
            (lambda world: world.dir.delete(world.record().agent_key), "HTTP 404 NoSuchKey"),
        ],
    )
    def test_what_cannot_be_run_is_reported_and_the_machine_ends(
        self, world: World, spoil: Callable[[World], None], says: str
    ) -> None:
        world.job("true")
        spoil(world)
        machine = world.boot()
        console = world.ends(machine)
        assert says in console
        assert says in world.result().reason
        assert world.result().outcome == "error"

    def test_an_agent_that_gave_up_on_the_job_dir_leaves_the_reason(self, world: World, tmp_path: Path) -> None:
        """The reason is not written as a result, so the job goes on with another machine."""
        lost = tmp_path / "lost.pyz"
        lost.write_text(
            "import sys; print('writing heartbeat.json failed: SlowDown (503)', file=sys.stderr); sys.exit(4)"
        )
        world.job("true")
        world.dir.put("agent/lost.pyz", lost)
        world.store.fail("PUT", "gave_up", status=503, code="SlowDown", times=2)
        sha256 = hashlib.sha256(lost.read_bytes()).hexdigest()
        machine = world.boot(agent_key="agent/lost.pyz", agent_sha256=sha256)
        console = world.ends(machine)
        reason = "s3://bucket/job could not be used for too long: writing heartbeat.json failed: SlowDown (503)"
        assert json.loads(world.dir.get(node_key(1, NODE, "gave_up.json")))["reason"] == reason
        assert reason in console
        assert not world.dir.exists(node_key(1, NODE, "result.json"))

    def test_an_agent_that_dies_repeatedly_is_reported(self, world: World, tmp_path: Path) -> None:
        broken = tmp_path / "broken.pyz"
        broken.write_text("import sys; sys.exit('no such thing as luck')")
        sha256 = hashlib.sha256(broken.read_bytes()).hexdigest()
        world.job("true")
        world.dir.put("agent/broken.pyz", broken)
        machine = world.boot(agent_key="agent/broken.pyz", agent_sha256=sha256)
        assert world.ends(machine).count("the agent has died with exit code 1") == 3
        assert world.result().reason.endswith("no such thing as luck")


class TestReboot:
    """The program records each start in its folder, which survives reboots; only the first start waits."""

    RUN = "echo start >> ../starts; echo started $(wc -l < ../starts); test $(wc -l < ../starts) -gt 1 || sleep 600"

    def job(self, world: World, launcher: str = "none") -> Machine:
        world.job(self.RUN, setup="echo prepared >> ../prepared", launcher=launcher)
        machine = world.boot()
        world.until(lambda: "started 1" in world.log())
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        return machine

    def test_after_a_crash_the_machine_goes_on_where_it_was(self, world: World) -> None:
        machine = self.job(world)
        before = Heartbeat.from_bytes(world.dir.get(node_key(1, NODE, "heartbeat.json")))
        claim = world.dir.get(node_key(1, NODE, "claim"))
        machine.cut_power()
        fetched = sum("agent/" in request.key for request in world.store.requests)
        machine.power_on()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", console
        assert [line for line in world.log() if line.startswith("started")] == ["started 1", "started 2"]
        assert (machine.root / "var/lib/cloudgpu/prepared").read_text() == "prepared\n"  # setup runs once
        assert world.dir.get(node_key(1, NODE, "claim")) == claim
        after = Heartbeat.from_bytes(world.dir.get(node_key(1, NODE, "heartbeat.json")))
        assert after.sequence >= before.sequence
        assert sum("agent/" in request.key for request in world.store.requests) == fetched  # no second download
        spans = (world.result().timeline or {})["spans"]
        assert [span["reason"] for span in spans] == ["the machine was restarted", ""]

    @pytest.mark.parametrize("launcher", ["none", "torchrun"])  # without and with a rendezvous
    def test_a_reboot_is_no_end(self, world: World, launcher: str) -> None:
        machine = self.job(world, launcher)
        assert machine.shut_down("reboot") == [0]
        assert not world.dir.exists(node_key(1, NODE, "result.json"))
        machine.power_on()
        world.ends(machine)
        assert world.result().outcome == "succeeded"

    def test_a_shutdown_is_one(self, world: World) -> None:
        machine = self.job(world)
        machine.shut_down()
        assert world.result().outcome == "preempted"

    def test_the_lifetime_does_not_begin_anew(self, world: World) -> None:
        machine = self.job(world)
        machine.cut_power()
        ends = machine.root / "var/lib/cloudgpu/ends"
        ends.write_text(str(time.time() + 300))
        machine.power_on()
        world.ends(machine)
        assert "shutdown -P +5" in machine.calls

    def test_a_machine_that_reboots_after_its_end_does_nothing(self, world: World) -> None:
        world.job("echo started >> ../starts")
        machine = world.boot()
        world.ends(machine)
        machine.power_on()
        world.ends(machine)
        assert (machine.root / "var/lib/cloudgpu/starts").read_text() == "started\n"

    def test_another_machine_of_the_same_node_ends_at_once(self, world: World) -> None:
        first = self.job(world)
        second = world.boot()
        assert "exit code 3" in world.ends(second)
        assert not world.dir.exists(node_key(1, NODE, "result.json"))
        first.cut_power()
        first.power_on()
        world.ends(first)
        assert world.result().outcome == "succeeded"
