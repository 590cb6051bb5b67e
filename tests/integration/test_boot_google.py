"""Boot tests of Google's machines: the real startup script and agent file, with Cloud Storage over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, Result, attempt_key, node_key
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.provisioners.boot import BootRecord, container_command, startup_script
from cloudgpu.provisioners.boot.agent_file import Built
from cloudgpu.provisioners.boot.service import SERVICE
from cloudgpu.provisioners.boot.startup_script import MAX_SCRIPT_BYTES

from ..standins.agent_files import own_agent_file
from ..standins.boots import StartupScript
from ..standins.faults import HTML, RESET, Fault, error
from ..standins.gcp import MACHINE, Gcp
from ..standins.gcp_metadata import InstanceMetadata
from ..standins.gcs import GcsControl
from ..standins.machine import PYTHON, Machine

pytestmark = pytest.mark.timeout(600)

BUCKET = "jobs-of-tests"
URL = f"gs://{BUCKET}/jobs/job-1"
NODE = "worker-0.1"
SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/compute")


class ComputeApi:
    """Fake of Compute Engine's API to delete an instance, with scripted answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Path and bearer token of each call."""
        self.answers: list[tuple[int, str]] = []
        """Status and error reason of the next answers; 200 if empty."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                api.calls.append((self.path, self.headers["Authorization"].removeprefix("Bearer ")))
                status, reason = api.answers.pop(0) if api.answers else (200, "")
                failure = {"message": "no", "errors": [{"reason": reason, "message": "no"}]}
                body = json.dumps({"name": "operation-1"} if status == 200 else {"error": failure}).encode()
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@dataclass
class World:
    """A bucket with a job of one node, and the services that an instance of Compute Engine calls."""

    folder: Path
    gcp: Gcp
    agent: Built
    compute: ComputeApi
    metadata: InstanceMetadata
    scheduling: dict[str, str]
    """The instance's scheduling options according to its metadata server."""
    sha256: str = ""
    machines: list[Machine] = field(default_factory=list)

    @property
    def dir(self) -> JobDir:
        return JobDir(URL)

    def job(self, run: str, *, cloud: str = "gcp", nodes: tuple[str, ...] = (NODE,), **more: Any) -> None:
        data = JobRecord("job-1", "job", run, **more).to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.dir.put(JOB_KEY, data)
        roles = [
            {"node": node, "role": node.partition("-")[0], "index": rank, "rank": rank, "gpus": 0}
            for rank, node in enumerate(nodes)
        ]
        attempt = AttemptRecord(
            1, {"market": "spot", "cloud": cloud, "region": "us-central1"}, roles, interruptions_left=None
        )
        self.dir.put(attempt_key(1), attempt.to_bytes())
        self.dir.put(f"agent/{self.agent.sha256}.pyz", self.agent.path)

    def record(self, **changes: Any) -> BootRecord:
        values: dict[str, Any] = {
            "job_dir": URL,
            "job_id": "job-1",
            "attempt": 1,
            "node": NODE,
            "job_sha256": self.sha256,
            "agent_key": f"agent/{self.agent.sha256}.pyz",
            "agent_sha256": self.agent.sha256,
            "region": "us-central1",
            "lifetime_s": 3_600,
            "notices": "gcp",
            "cloud": "gcp",
            "endpoint": self.gcp.url,
            "api_endpoint": self.compute.url,
        }
        return BootRecord(**values | changes)

    def boot(self, **changes: Any) -> Machine:
        """Boot a machine that has only its startup script and its metadata server."""
        script = startup_script(self.record(**changes))
        environ = {"GCE_METADATA_HOST": self.metadata.host, "GCE_METADATA_IP": self.metadata.host}
        machine = Machine(self.folder / f"machine-{len(self.machines)}", StartupScript(lambda: script), environ)
        self.machines.append(machine)
        machine.power_on()
        assert machine.booted.wait(180)
        return machine

    def ends(self, machine: Machine) -> str:
        """Wait until the machine is off, and return its console output."""
        self.until(lambda: not machine.is_on, 180)
        assert machine.trouble == []
        return machine.console

    def result(self, node: str = NODE) -> Result:
        return Result.from_bytes(self.dir.get(node_key(1, node, "result.json")))

    def log(self) -> list[str]:
        return [line.text for line in LogReader(self.dir).read()[0]]

    def until(self, there: Callable[[], object], limit_s: float = 180.0) -> None:
        end = time.monotonic() + limit_s
        while not there():
            assert time.monotonic() < end, [machine.console for machine in self.machines]
            time.sleep(0.05)


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return own_agent_file(tmp_path_factory.mktemp("home"))


@pytest.fixture
def world(tmp_path: Path, agent_file: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    scheduling = {"automatic-restart": "TRUE"}
    described = {
        "instance": {
            "id": "4711",
            "name": "cloudgpu-0123-worker-0-1",
            "zone": "projects/123456789012/zones/us-central1-a",
            "scheduling": scheduling,
        },
        "project": {"project-id": "project-of-tests"},
    }
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path / "settings").items():
            monkeypatch.setenv(name, value)
        GcsControl(gcp.url).make_bucket(BUCKET)
        tokens = gcp._app._project.tokens  # the stand-in passes them to machines that it launches
        account = (MACHINE, SCOPES)
        with InstanceMetadata(
            lambda: described, lambda: (tokens.issue(MACHINE, frozenset(SCOPES)), 3_600), account
        ) as metadata:
            compute = ComputeApi()
            made = World(tmp_path, gcp, agent_file, compute, metadata, scheduling)
            yield made
            for machine in made.machines:
                machine.dispose()
            compute.close()


DELETED = "/compute/v1/projects/project-of-tests/zones/us-central1-a/instances/cloudgpu-0123-worker-0-1"


class TestStartupScript:
    def test_it_fits_and_is_the_same_for_the_same_machine(self, world: World) -> None:
        world.job("true", env={"TOKEN": "a-secret"})
        script = startup_script(world.record())
        assert len(script) < MAX_SCRIPT_BYTES / 8
        assert script == startup_script(world.record())
        assert script != startup_script(world.record(node="worker-1.1"))
        assert "a-secret" not in script

    def test_it_is_a_shells(self, world: World) -> None:
        done = subprocess.run(["sh", "-n"], input=startup_script(world.record()), text=True, check=False)
        assert done.returncode == 0

    def test_one_that_is_too_long_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match="more than the 262144"):
            startup_script(world.record(job_dir=f"gs://bucket/{'x' * 300_000}"))

    @pytest.mark.parametrize("wrong", [{"job_dir": "s3://bucket/job"}, {"endpoint": "http://10.0.0.1"}])
    def test_what_no_machine_may_have_is_refused(self, world: World, wrong: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=r"127\.0\.0\.1|gs://BUCKET"):
            world.record(**wrong)


class TestMachine:
    def test_a_job_runs_and_the_machine_deletes_itself(self, world: World) -> None:
        program = (
            "import os; from cloudgpu.runtime import write_output; write_output('here.txt', 'text');"
            "print('from', os.environ['CLOUDGPU_JOB_DIR'], os.environ['GOOGLE_CLOUD_PROJECT'])"
        )
        world.job(f'python -c "{program}"', setup="echo prepared")
        world.gcp.control.forget()
        machine = world.boot()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", console
        assert machine.calls[0] == "shutdown -P +60"  # the lifetime limit is set first
        assert "prepared" in world.log()
        assert f"from {URL} project-of-tests" in world.log()
        assert world.dir.get("outputs/here.txt") == b"text"
        assert [path for path, _ in world.compute.calls] == [DELETED]
        calls = world.gcp.control.calls()
        assert {call.caller for call in calls if call.action == "objects.insert"} == {MACHINE}  # not the submitter

    def test_one_that_may_not_delete_itself_powers_off_and_says_so(self, world: World) -> None:
        world.job("true")
        world.compute.answers = [(403, "forbidden")]
        machine = world.boot()
        console = world.ends(machine)
        assert "this machine may not delete itself: HTTP 403 forbidden" in console
        assert "its disk is paid for until" in console
        assert len(world.compute.calls) == 1
        assert "shutdown -P now" in machine.calls

    def test_one_whose_bootstrap_is_killed_is_deleted(self, world: World) -> None:
        world.job("sleep 60")
        machine = world.boot()
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        machine.kill_service(SERVICE)
        console = world.ends(machine)
        assert [path for path, _ in world.compute.calls] == [DELETED], console

    def test_one_that_goes_down_before_the_agent_has_begun_is_deleted(self, world: World) -> None:
        world.job("true")
        world.metadata.token_status = 404
        machine = world.boot()
        world.until(lambda: "trying again" in machine.console)
        refused = error("AccessDenied", 403, f"{MACHINE} does not have storage.objects.get access")
        world.gcp.control.fail("objects.get", refused, where={"name": "*/agent/*"})
        world.metadata.token_status = 200
        machine.shut_down()
        assert [path for path, _ in world.compute.calls] == [DELETED]

    def test_throttling_is_no_refusal(self, world: World) -> None:
        world.job("true")
        world.compute.answers = [(403, "rateLimitExceeded"), (503, "backendError")]
        world.ends(world.boot())
        assert len(world.compute.calls) == 3

    def test_a_service_account_that_is_not_known_yet_is_waited_for(self, world: World) -> None:
        world.job("true")
        world.metadata.token_status = 404
        machine = world.boot()
        world.until(lambda: "trying again" in machine.console)
        refused = error("AccessDenied", 403, f"{MACHINE} does not have storage.objects.get access")
        world.gcp.control.fail("objects.get", refused, where={"name": "*/agent/*"}, times=1)
        world.metadata.token_status = 200
        assert "AccessDenied" in world.ends(machine)
        assert world.result().outcome == "succeeded"

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
        assert says in world.ends(world.boot())
        assert (world.result().outcome, says in world.result().reason) == ("error", True)
        assert world.compute.calls

    def test_a_script_that_fails_leaves_no_machine_running(self, world: World) -> None:
        world.job("true")
        script = startup_script(world.record())
        environ = {"GCE_METADATA_HOST": world.metadata.host}
        machine = Machine(world.folder / "machine", StartupScript(lambda: script), environ)
        machine.broken.add("systemctl")
        world.machines.append(machine)
        machine.power_on()
        world.until(lambda: not machine.is_on)
        assert machine.calls[-1] == "shutdown -P now"

    def test_an_agent_that_is_to_go_on_is_started_as_often_as_it_takes(self, world: World) -> None:
        """An agent that exits after an announced restart that did not happen does not use up its three crashes."""
        again = world.folder / "again.pyz"
        again.write_text(
            "import sys, pathlib\n"
            "runs = pathlib.Path(sys.argv[0]).with_name('runs')\n"
            "runs.open('a').write('.')\n"
            "sys.exit(7 if len(runs.read_text()) < 6 else 3)\n"
        )
        sha256 = hashlib.sha256(again.read_bytes()).hexdigest()
        world.job("true")
        world.dir.put("agent/again.pyz", again)
        console = world.ends(world.boot(agent_key="agent/again.pyz", agent_sha256=sha256))
        assert console.count("the agent goes on") == 5
        assert "the agent has ended with exit code 3" in console

    def test_word_is_left_once(self, world: World) -> None:
        """The bootstrap does not overwrite the agent's result."""
        world.job("true")
        world.dir.delete(world.record().agent_key)
        world.dir.put(node_key(1, NODE, "result.json"), b'{"outcome": "preempted", "reason": "mine"}')
        world.ends(world.boot())
        assert b"mine" in world.dir.get(node_key(1, NODE, "result.json"))


class TestRestart:
    """The program records each start in its folder, which survives reboots; only the first start waits."""

    RUN = "echo start >> ../starts; echo started $(wc -l < ../starts); test $(wc -l < ../starts) -gt 1 || sleep 600"

    def running(self, world: World) -> Machine:
        world.job(self.RUN)
        machine = world.boot()
        world.until(lambda: "started 1" in world.log())
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        return machine

    def goes_on(self, world: World, machine: Machine) -> None:
        assert not world.dir.exists(node_key(1, NODE, "result.json"))
        assert not world.compute.calls
        machine.power_on()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", console
        assert [line for line in world.log() if line.startswith("started")] == ["started 1", "started 2"]
        assert len(world.compute.calls) == 1

    def test_after_a_crash_the_machine_goes_on_where_it_was(self, world: World) -> None:
        machine = self.running(world)
        machine.cut_power()
        self.goes_on(world, machine)

    def test_a_reboot_is_no_end(self, world: World) -> None:
        machine = self.running(world)
        assert machine.shut_down("reboot") == [0]
        self.goes_on(world, machine)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
            ("upcoming-maintenance", '{"maintenanceStatus": "ONGOING", "type": "SCHEDULED"}'),
        ],
    )
    def test_nor_is_the_shutdown_for_maintenance_of_its_host(self, world: World, key: str, value: str) -> None:
        """This is a shutdown without the agent's handling of notices, which test_notices.py covers."""
        machine = self.running(world)
        before = world.metadata.values[key], world.metadata.statuses.get(key, 200)
        world.metadata.set(key, value)
        assert machine.shut_down() == [0]
        world.metadata.set(key, *before)
        self.goes_on(world, machine)

    def test_one_that_is_not_restarted_has_ended_and_deletes_itself(self, world: World) -> None:
        machine = self.running(world)
        world.scheduling["automatic-restart"] = "FALSE"
        world.metadata.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        machine.shut_down()
        assert world.result().outcome == "preempted"
        assert [path for path, _ in world.compute.calls] == [DELETED]

    def test_a_stop_is_an_end(self, world: World) -> None:
        machine = self.running(world)
        machine.shut_down()
        assert world.result().outcome == "preempted"
        assert len(world.compute.calls) == 1


class Container:
    """A process that runs a replica's command like Vertex AI: with only the service's environment variables."""

    def __init__(self, world: World, words: list[str], name: str, **environ: str) -> None:
        self.root = world.folder / name
        for folder in ("bin", "root", "tmp"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "bin/python3").symlink_to(PYTHON)
        base = {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.root / "root"),
            "TMPDIR": str(self.root / "tmp"),
            "GCE_METADATA_HOST": world.metadata.host,
            "GCE_METADATA_IP": world.metadata.host,
        }
        with (self.root / "console.log").open("wb") as console:
            self.process = subprocess.Popen(
                words, cwd=self.root, env=base | environ, stdout=console, stderr=console, start_new_session=True
            )

    def code(self) -> int:
        return self.process.wait(180)

    @property
    def console(self) -> str:
        return (self.root / "console.log").read_text()

    def until_it_says(self, text: str) -> None:
        end = time.monotonic() + 180
        while text not in self.console:
            assert time.monotonic() < end, self.console
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


POOLS = {"workerpool0": ["worker-0.1"], "workerpool1": ["worker-1.1", "worker-2.1"]}


class Replicas:
    """The containers of one job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.started: list[Container] = []

    def __call__(self, task: str = "", index: int = 0, *, pools: Any = None, **environ: str) -> Container:
        """Start a container; with `task`, CLUSTER_SPEC is set."""
        named = POOLS if pools is None else pools
        record = self.world.record(node="", cloud="vertex", notices="none", api_endpoint=None)
        command, args = container_command(record, named)
        cluster = {pool: [f"localhost:{2_222 + i}" for i, _ in enumerate(nodes)] for pool, nodes in named.items()}
        spec = {"cluster": cluster, "environment": "cloud", "task": {"type": task, "index": index, "trial": ""}}
        cluster_environ = {"CLUSTER_SPEC": json.dumps(spec)} if task else {}
        name = f"container-{len(self.started)}"
        self.started.append(Container(self.world, [*command, *args], name, **{**cluster_environ, **environ}))
        return self.started[-1]


@pytest.fixture
def containers(world: World) -> Iterator[Replicas]:
    made = Replicas(world)
    yield made
    for container in made.started:
        container.kill()


class TestContainer:
    def test_each_finds_its_node_and_the_others_by_the_names_that_vertex_gives(
        self, world: World, containers: Replicas
    ) -> None:
        nodes = {"workerpool0/0": "worker-0.1", "workerpool1/0": "worker-1.1", "workerpool1/1": "worker-2.1"}
        world.job("sleep 5", cloud="vertex", nodes=tuple(nodes.values()), launcher="torchrun")
        for place, node in nodes.items():
            pool, _, index = place.partition("/")
            container = containers(pool, int(index), CLOUD_ML_JOB_ID="4712")
            container.until_it_says(f"4712/{place} is {node} in attempt 1 of {URL}")
        codes = [container.code() for container in containers.started]
        assert codes == [0, 0, 0], [container.console for container in containers.started]
        assert {world.result(node).outcome for node in nodes.values()} == {"succeeded"}
        address = json.loads(world.dir.get(node_key(1, "worker-0.1", "address.json")))
        assert address["host"] == "localhost"

    def test_a_job_of_one_needs_no_cluster(self, world: World, containers: Replicas) -> None:
        world.job("true", cloud="vertex")
        assert containers(pools={"workerpool0": [NODE]}).code() == 0
        assert world.result().outcome == "succeeded"

    @pytest.mark.parametrize(("run", "code"), [("exit 3", 3), ("kill -9 $$", 1)])
    def test_its_exit_code_is_the_jobs(self, world: World, containers: Replicas, run: str, code: int) -> None:
        world.job(run, cloud="vertex")
        container = containers("workerpool0", pools={"workerpool0": [NODE]})
        assert container.code() == code, container.console
        assert world.result().outcome == "failed"

    @pytest.mark.parametrize("fault", [HTML, RESET], ids=["error", "no-answer"])
    def test_a_result_that_cannot_be_read_at_once_is_no_failure(
        self, world: World, containers: Replicas, fault: Fault
    ) -> None:
        """An exit code other than 0 would make Vertex end all containers."""
        world.job("sleep 2", cloud="vertex", nodes=("worker-0.1", "worker-1.1"), launcher="none")
        world.gcp.control.fail("objects.get", fault, where={"name": "*/result.json"}, times=4)
        pools = {"workerpool0": ["worker-0.1"], "workerpool1": ["worker-1.1"]}
        both = [containers(pool, pools=pools) for pool in pools]
        assert [container.code() for container in both] == [0, 0], [container.console for container in both]
        assert any("cannot be read: " in container.console for container in both)

    def test_an_image_whose_python_is_too_old_ends_the_job_with_its_reason(
        self, world: World, containers: Replicas
    ) -> None:
        world.job("true", cloud="vertex")
        (world.folder / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 10, 0, 'final', 0)\n")
        bare = str(world.folder / "container-0/bin")
        container = containers(pools={"workerpool0": [NODE]}, PATH=bare, PYTHONPATH=str(world.folder))
        assert container.code() == 1, container.console
        assert world.result().outcome == "error"
        assert "none of 3.11 or newer: choose another image" in world.result().reason

    def test_sigterm_reaches_the_program(self, world: World, containers: Replicas) -> None:
        world.job("trap 'echo saved; exit 75' TERM; echo begun; while :; do sleep 0.1; done", cloud="vertex")
        container = containers("workerpool0", pools={"workerpool0": [NODE]})
        world.until(lambda: "begun" in world.log())
        container.process.send_signal(signal.SIGTERM)
        assert container.code() != 0
        assert "saved" in world.log()
        assert world.result().outcome == "preempted"

    def test_a_replica_of_no_node_says_so(self, world: World, containers: Replicas) -> None:
        world.job("true", cloud="vertex")
        container = containers("workerpool3", 1)
        assert container.code() == 1
        assert "CLUSTER_SPEC says that this is workerpool3 number 1" in container.console

    def test_a_second_container_of_a_node_trains_nothing(self, world: World, containers: Replicas) -> None:
        go = world.folder / "go"
        world.job(f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done", cloud="vertex")
        first = containers("workerpool0", pools={"workerpool0": [NODE]})
        world.until(lambda: "begun" in world.log())
        second = containers("workerpool0", pools={"workerpool0": [NODE]})
        assert second.code() == 3, second.console
        go.touch()
        assert first.code() == 0
        assert world.log().count("begun") == 1

    def test_an_image_without_python_says_so(self, world: World) -> None:
        command, args = container_command(world.record(node="", cloud="vertex"), POOLS)
        environ = {"PATH": str(world.folder / "empty")}
        done = subprocess.run([*command, *args], env=environ, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 127
        assert "the image has no python3" in done.stderr

    def test_all_replicas_get_the_same_record_without_secrets(self, world: World) -> None:
        world.job("true", cloud="vertex", env={"TOKEN": "a-secret"})
        record = world.record(node="", cloud="vertex")
        command, args = container_command(record, POOLS)
        assert (command, args) == container_command(record, POOLS)
        sent = zlib.decompress(base64.b64decode(args[1])).decode()
        assert "a-secret" not in sent
        assert "worker-1.1" in sent

    def test_a_record_of_one_node_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match=r"told to be worker-0\.1"):
            container_command(world.record(cloud="vertex"), POOLS)
        with pytest.raises(ValueError, match="no nodes"):
            container_command(world.record(node="", cloud="vertex"), {"workerpool0": []})
