"""Boot tests of Azure machines: the real customData and the real agent file, with Azurite over HTTPS."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, Result, attempt_key, node_key
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.provisioners.azure.target import MAX_BYTES
from cloudgpu.provisioners.boot import BootRecord, user_data
from cloudgpu.provisioners.boot.agent_file import Built
from cloudgpu.provisioners.boot.service import SERVICE

from ..standins.agent_files import own_agent_file
from ..standins.azure.imds import InstanceMetadata
from ..standins.azure.tokens import Principal, Tokens
from ..standins.azurite import ACCOUNT, Azurite, needed, shared
from ..standins.azurite.front import Front
from ..standins.faults import error
from ..standins.machine import Machine

pytestmark = pytest.mark.timeout(600)

CONTAINER = "jobs-of-tests"
URL = f"az://{CONTAINER}@{ACCOUNT}/jobs/job-1"
NODE = "worker-0.1"
IDENTITY = Principal("cloudgpu-0123", "object-of-it", "client-of-it", machine=True)
VM = "/subscriptions/s/resourceGroups/cloudgpu-0123/providers/Microsoft.Compute/virtualMachines/cloudgpu-worker-0-1"
DEALLOCATED = f"{VM}/deallocate?api-version=2024-07-01"


class ResourceManager:
    """Fake of Azure Resource Manager's API to deallocate a machine, with scripted answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Path and bearer token of each call."""
        self.answers: list[tuple[int, str]] = []
        """Status and error code of the next answers; `always` if empty."""
        self.always = (202, "")
        self.again_s = 0
        """Retry-After header of error answers in seconds; 0: none."""
        self.times: list[float] = []
        """time.monotonic() of each call."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                api.times.append(time.monotonic())
                api.calls.append((self.path, self.headers["Authorization"].removeprefix("Bearer ")))
                status, code = api.answers.pop(0) if api.answers else api.always
                body = b"" if status == 202 else json.dumps({"error": {"code": code, "message": "no"}}).encode()
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(body)))
                if body and api.again_s:
                    self.send_header("Retry-After", str(api.again_s))
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
    """A blob container with a job of one node, and the services that a virtual machine calls."""

    folder: Path
    blobs: Azurite
    front: Front
    """Proxy of Azurite that machines use."""
    agent: Built
    manager: ResourceManager
    metadata: InstanceMetadata
    audiences: list[str]
    """Audiences of the access tokens that the machine requested."""
    sha256: str = ""
    machines: list[Machine] = field(default_factory=list)

    @property
    def dir(self) -> JobDir:
        return JobDir(URL)

    def job(self, run: str, **more: Any) -> None:
        data = JobRecord("job-1", "job", run, **more).to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.dir.put(JOB_KEY, data)
        nodes = [{"node": NODE, "role": "worker", "index": 0, "rank": 0, "gpus": 0}]
        offer = {"market": "spot", "cloud": "azure", "region": "eastus"}
        self.dir.put(attempt_key(1), AttemptRecord(1, offer, nodes, interruptions_left=None).to_bytes())
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
            "region": "eastus",
            "lifetime_s": 3_600,
            "notices": "azure",
            "cloud": "azure",
            "endpoint": self.front.url,
            "api_endpoint": self.manager.url,
            "identity": IDENTITY.client_id,
        }
        return BootRecord(**values | changes)

    def boot(self, **changes: Any) -> Machine:
        """Boot a machine that has only its customData and its metadata service."""
        environ = {"CLOUDGPU_AZURE_METADATA": self.metadata.url, "SSL_CERT_FILE": str(self.blobs.certificate)}
        data = user_data(self.record(**changes)).decode()
        machine = Machine(self.folder / f"machine-{len(self.machines)}", data, environ)
        self.machines.append(machine)
        machine.power_on()
        assert machine.booted.wait(180)
        return machine

    def ends(self, machine: Machine) -> str:
        """Wait until the machine is off, and return its console output."""
        self.until(lambda: not machine.is_on, 120)
        assert machine.trouble == []
        return machine.console

    def result(self) -> Result:
        return Result.from_bytes(self.dir.get(node_key(1, NODE, "result.json")))

    def log(self) -> list[str]:
        return [line.text for line in LogReader(self.dir).read()[0]]

    def until(self, there: Callable[[], object], limit_s: float = 180.0) -> None:
        end = time.monotonic() + limit_s
        while not there():
            assert time.monotonic() < end, [machine.console for machine in self.machines]
            time.sleep(0.05)


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Built:
    needed()
    return own_agent_file(tmp_path_factory.mktemp("home"))


@pytest.fixture
def world(tmp_path: Path, agent_file: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    tokens, audiences = Tokens(), list[str]()

    def token(who: Principal, audience: str) -> str:
        audiences.append(audience)
        return tokens.issue(who, audience)

    compute = {"name": "cloudgpu-worker-0-1", "resourceId": VM, "vmId": str(uuid.uuid4())}
    imds = InstanceMetadata(
        compute["name"], lambda: {"compute": compute}, lambda: [("its-id", IDENTITY)], token, lambda _: None
    )
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with shared(CONTAINER) as blobs, Front(blobs) as front, imds:
        for name, value in blobs.environ().items():
            monkeypatch.setenv(name, value)
        manager = ResourceManager()
        made = World(tmp_path, blobs, front, agent_file, manager, imds, audiences)
        yield made
        for machine in made.machines:
            machine.dispose()
        manager.close()


class TestCustomData:
    def test_it_fits_and_is_the_same_for_the_same_machine(self, world: World) -> None:
        world.job("true", env={"TOKEN": "a-secret"})
        data = user_data(world.record())
        assert len(data) < MAX_BYTES / 4
        assert data == user_data(world.record())
        assert data != user_data(world.record(node="worker-1.1"))
        assert b"a-secret" not in data

    def test_one_that_is_too_long_is_refused(self, world: World) -> None:
        with pytest.raises(ValueError, match="more than the 65535 of azure"):
            user_data(world.record(job_dir=f"{URL}/{'x' * 60_000}"))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"job_dir": "s3://bucket/job"},
            {"job_dir": f"az://{CONTAINER}/jobs/job-1"},
            {"endpoint": "http://10.0.0.1"},
            {"api_endpoint": "https://example.com"},
            {"identity": None},
        ],
        ids=str,
    )
    def test_what_no_machine_may_have_is_refused(self, world: World, wrong: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=r"127\.0\.0\.1|az://CONTAINER@ACCOUNT|no managed identity"):
            world.record(**wrong)


class TestMachine:
    def test_a_job_runs_and_the_machine_deallocates_itself(self, world: World) -> None:
        program = (
            "import os; from cloudgpu.runtime import write_output; write_output('here.txt', 'text');"
            "print('from', os.environ['CLOUDGPU_JOB_DIR'], os.environ['AZURE_CLIENT_ID'])"
        )
        world.job(f'python -c "{program}"', setup="echo prepared")
        machine = world.boot()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", "\n".join([console, world.result().reason, *world.log()])
        assert machine.calls[0] == "shutdown -P +60"  # the lifetime limit is set first
        assert "prepared" in world.log()
        assert f"from {URL} client-of-it" in world.log()
        assert world.dir.get("outputs/here.txt") == b"text"
        assert [path for path, _ in world.manager.calls] == [DEALLOCATED]
        assert set(world.audiences) == {"https://storage.azure.com", "https://management.azure.com"}

    def test_it_asks_for_nothing_outside_of_its_job(self, world: World) -> None:
        """The role assignment would deny requests with a path or list prefix outside of the job dir."""
        program = "from cloudgpu.runtime import Checkpointer; c = Checkpointer(); [None for _ in c.steps(3)]; c.save()"
        world.dir.put("inputs/a", b"seven")
        world.job(f'python -c "{program}"; cat data/a > b', inputs={"data": f"{URL}/inputs"}, outputs=["b"])
        console = world.ends(world.boot())
        assert world.result().outcome == "succeeded", "\n".join([console, world.result().reason, *world.log()])
        calls = world.front.calls()
        assert {call.caller for call in calls} == {IDENTITY.client_id}
        assert {"blobs.list", "blob.get", "blob.put"} <= {call.action for call in calls}
        assert [call for call in calls if not call.value("name").startswith("jobs/job-1/")] == []

    def test_a_role_that_is_not_known_yet_is_waited_for(self, world: World) -> None:
        """Both reading the job dir and deallocating retry, since a short job ends before the role is effective."""
        world.job("true")
        world.metadata.token_status = 429
        world.front.fail("blob.get", error("AuthorizationPermissionMismatch", 403), where={"name": "*/agent/*"})
        world.manager.answers = [(403, "AuthorizationFailed"), (409, "Conflict"), (503, "ServerTimeout")]
        machine = world.boot()
        world.until(lambda: "trying again" in machine.console)
        world.metadata.token_status = 200
        console = world.ends(machine)
        assert world.result().outcome == "succeeded"
        assert "HTTP 403 AuthorizationPermissionMismatch" in console
        assert "this machine cannot deallocate itself, and is paid for" in console
        assert "HTTP 403 AuthorizationFailed: no; trying again" in console
        assert len(world.manager.calls) == 4

    def test_one_that_may_not_deallocate_itself_stays_on_and_asks(self, world: World) -> None:
        """A stopped machine is billed like a running one, so it stays on, even after its lifetime."""
        world.job("sleep 5")
        world.manager.always = (403, "AuthorizationFailed")
        machine = world.boot()
        os.utime(machine.root / "var/lib/cloudgpu/boot.json", (0, 0))  # its lifetime is over
        world.until(lambda: len(world.manager.calls) >= 6)  # about 30 s
        assert machine.is_on
        assert (
            "is paid for until it can or is deleted: HTTP 403 AuthorizationFailed: no; trying again" in machine.console
        )
        assert machine.calls[-1] == "shutdown -c"

    def test_retry_after_is_obeyed(self, world: World) -> None:
        world.job("true")
        world.manager.answers, world.manager.again_s = [(429, "TooManyRequests")], 5
        world.ends(world.boot())
        first, second = world.manager.times
        assert second - first >= 5

    def test_one_that_is_being_deleted_is_at_its_end(self, world: World) -> None:
        world.job("true")
        world.manager.always = (404, "ResourceNotFound")
        console = world.ends(world.boot())
        assert len(world.manager.calls) == 1
        assert "cannot deallocate" not in console

    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (lambda world: world.dir.put(world.record().agent_key, b"another"), "is not the one that was sent"),
            (lambda world: world.dir.delete(world.record().agent_key), "HTTP 404 BlobNotFound"),
        ],
    )
    def test_what_cannot_be_run_is_reported_and_the_machine_ends(
        self, world: World, spoil: Callable[[World], None], says: str
    ) -> None:
        world.job("true")
        spoil(world)
        assert says in world.ends(world.boot())
        assert (world.result().outcome, says in world.result().reason) == ("error", True)
        assert world.manager.calls

    def test_one_that_goes_down_before_the_agent_has_begun_is_deallocated(self, world: World) -> None:
        world.job("true")
        world.metadata.token_status = 429
        machine = world.boot()
        world.until(lambda: "trying again" in machine.console)
        world.metadata.token_status = 200
        world.front.fail("blob.get", error("AuthorizationPermissionMismatch", 403), where={"name": "*/agent/*"})
        machine.shut_down()
        assert [path for path, _ in world.manager.calls] == [DEALLOCATED]

    def test_one_that_goes_down_before_its_role_is_known_asks_on(self, world: World) -> None:
        """The bootstrap retries for some seconds, then systemd's ExecStopPost does."""
        world.job("sleep 60")
        machine = world.boot()
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        world.manager.answers = [(403, "AuthorizationFailed")] * 5
        machine.shut_down()
        assert "this machine cannot deallocate itself" in machine.console
        assert "this machine is given up" in machine.console
        assert len(world.manager.calls) == 6

    def test_one_whose_bootstrap_is_killed_is_deallocated(self, world: World) -> None:
        world.job("sleep 60")
        machine = world.boot()
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        world.manager.answers = [(503, "ServerTimeout")]
        machine.kill_service(SERVICE)
        world.ends(machine)
        assert [path for path, _ in world.manager.calls] == [DEALLOCATED] * 2

    @pytest.mark.parametrize("lacks", ["the record", "Python"])
    def test_one_that_cannot_start_is_deallocated(self, world: World, lacks: str) -> None:
        world.job("sleep 60")
        machine = world.boot()
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        machine.cut_power()
        if lacks == "Python":
            python = machine.root / ".shims/python3"
            python.unlink()
            python.write_text("#!/bin/sh\nexit 127\n")
            python.chmod(0o755)
        else:
            (machine.root / "var/lib/cloudgpu/boot.json").write_text("{")
        machine.power_on()
        world.ends(machine)
        assert [path for path, _ in world.manager.calls] == [DEALLOCATED]

    def test_one_whose_bootstrap_is_killed_in_a_reboot_stays(self, world: World) -> None:
        world.job("trap '' TERM; while :; do sleep 1; done")
        machine = world.boot()
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        going = threading.Thread(target=machine.shut_down, args=("reboot",))
        going.start()
        world.until((machine.root / "var/lib/cloudgpu/rebooting").exists)
        machine.kill_service(SERVICE)
        going.join()
        assert world.manager.calls == []

    def test_word_is_left_once(self, world: World) -> None:
        """The bootstrap does not overwrite the agent's result."""
        world.job("true")
        world.dir.delete(world.record().agent_key)
        world.dir.put(node_key(1, NODE, "result.json"), b'{"outcome": "preempted", "reason": "mine"}')
        world.ends(world.boot())
        assert b"mine" in world.dir.get(node_key(1, NODE, "result.json"))


class TestRestart:
    """The program records each start in its folder, which survives reboots; only the first start waits."""

    RUN = "echo start >> ../starts; echo started $(wc -l < ../starts); test $(wc -l < ../starts) -gt 1 || sleep 60"

    def running(self, world: World) -> Machine:
        world.job(self.RUN)
        machine = world.boot()
        world.until(lambda: "started 1" in world.log())
        world.until(lambda: world.dir.exists(node_key(1, NODE, "heartbeat.json")))
        return machine

    def goes_on(self, world: World, machine: Machine) -> None:
        assert not world.dir.exists(node_key(1, NODE, "result.json"))
        assert not world.manager.calls
        machine.power_on()
        console = world.ends(machine)
        assert world.result().outcome == "succeeded", "\n".join([console, world.result().reason, *world.log()])
        assert "started 2" in world.log()
        assert len(world.manager.calls) == 1

    def test_after_a_reboot_the_node_goes_on(self, world: World) -> None:
        machine = self.running(world)
        machine.shut_down("reboot")
        self.goes_on(world, machine)

    def test_after_a_power_cut_the_node_goes_on(self, world: World) -> None:
        machine = self.running(world)
        machine.cut_power()
        self.goes_on(world, machine)

    @pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
    def test_azure_powers_it_off_and_starts_it_again(self, world: World, kind: str) -> None:
        machine = self.running(world)
        event = world.metadata.announce(kind, None)
        machine.shut_down("off")
        world.metadata.over(event)
        self.goes_on(world, machine)

    @pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Freeze", ""])
    def test_what_does_not_come_back_leaves_its_result_and_is_deallocated(self, world: World, kind: str) -> None:
        machine = self.running(world)
        if kind:
            world.metadata.announce(kind, 600)
        machine.shut_down("off")
        assert world.result().outcome == "preempted"
        assert [path for path, _ in world.manager.calls] == [DEALLOCATED]
