"""A fleet without a cloud: its members are local processes that share a folder or a bucket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import (
    FLEET_KEY,
    WATCH_KEY,
    Beat,
    End,
    Freed,
    Holding,
    Order,
    Settings,
    member_key,
    order_key,
)
from cloudgpu.protocol.fleet.view import OrderView, View
from cloudgpu.protocol.jobdir import (
    JOB_KEY,
    AttemptRecord,
    Generation,
    Heartbeat,
    JobDir,
    JobRecord,
    Result,
    attempt_key,
    generation_key,
    local_url,
    node_key,
)
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.provisioners import AgentFile
from cloudgpu.provisioners.local.machine import marked
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.provisioners.stacks.clusters import Cluster

WAIT_S = 300.0
SILENT_S = 12.0
"""Seconds of silence after which a machine counts as lost in tests that lose machines. Heartbeats come every 0.3 s, but
the computer may be busy."""


class Machines:
    """A fleet's folder and the processes that are its machines."""

    def __init__(self, folder: Path, url: str | None = None, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.url = url or local_url(folder / "clusters" / "big")
        self._environ = dict(environ or {})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._run = uuid.uuid4().hex[:8]
        self.fleet = Fleet(self.url)
        self.set()

    def shorten_silence(self) -> None:
        """Set a short silence limit, so that lost machines are detected soon."""
        self.set(silent_s=SILENT_S)

    def set(
        self,
        *,
        idle_s: float | None = None,
        silent_s: float = 60.0,
        look_s: float | None = None,
        expires: float | None = None,
    ) -> None:
        JobDir(self.url).put(FLEET_KEY, Settings(idle_s, look_s, silent_s, expires).to_bytes())

    def start(self, name: str, *options: str) -> str:
        """Start a machine and return its provider id. A second start with the same name is a reboot."""
        machine = self.machine(name)
        home = self.folder / "machines" / name
        home.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "cloudgpu.runtime.fleet.member", "--fleet-dir", self.url, "--member", machine]
        line += ["--home", str(home), "--patience-s", "20", *options]
        with (home / "member.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                line,
                env={**_foreign(os.environ), **self._environ, "CLOUDGPU_MACHINE": machine},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return machine

    def name(self, machine: str) -> str:
        """Return the name that was passed to start() for this machine id."""
        return machine.partition("-")[0]

    def holder(self, number: int, place: str) -> str:
        """Return the name, as passed to start(), of the machine that holds a node of an order."""
        return self.name(self.order(number).place(place).machine)

    def crash(self, name: str) -> None:
        """Kill all processes of a machine at once, as a power failure does."""
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.end_jobs(name)

    def machine(self, name: str) -> str:
        """Return the provider's id of the machine."""
        return f"{name}-{self._run}"

    def jobs(self, name: str) -> list[int]:
        """Return the ids of the job processes that run on a machine."""
        return marked(f"{self.machine(name)}/")

    def signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def wipe(self, name: str) -> None:
        """Delete the machine's disk, as if it were replaced."""
        shutil.rmtree(self.folder / "machines" / name)

    def end_jobs(self, name: str) -> None:
        end = time.monotonic() + 180
        while left := self.jobs(name):
            assert time.monotonic() < end, left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def close(self) -> None:
        for name in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[name].pid, signal.SIGCONT)
            self.crash(name)

    # --- state of the fleet

    def view(self) -> View:
        """Return the fleet's view at the store's current time."""
        self.fleet.mark(WATCH_KEY, Beat(time.time()))
        return self.fleet.view()

    def order(self, number: int) -> OrderView:
        one = self.view().find(number)
        assert one is not None
        return one

    def until(self, met: Callable[[], object], what: str, limit_s: float = WAIT_S) -> None:
        end = time.monotonic() + limit_s
        while not met():
            assert time.monotonic() < end, f"{what}: {self.logs()}"
            time.sleep(0.1)

    def until_clean(self) -> None:
        """Wait until no job's work folder is left; machines delete it after they have released their node."""
        self.until(lambda: not list((self.folder / "machines").glob("*/work")), "something of a job stays behind")

    def logs(self) -> str:
        """Return the newest log lines of all members and agents."""
        logs = sorted((self.folder / "machines").glob("*/*.log"))
        return "\n".join(f"--- {path.parent.name} {path.name}\n{path.read_text()[-3000:]}" for path in logs)


class FleetJob:
    """A job for a fleet, created as by a supervisor but without one."""

    def __init__(
        self,
        machines: Machines,
        run: Sequence[str] | str,
        nodes: int = 1,
        *,
        launcher: str = "none",
        interruptions_left: int | None = None,
        agent: AgentFile | None = None,
        lifetime_s: float | None = None,
    ) -> None:
        """`agent`: agent file in the fleet's folder; None: machines use their own code."""
        self.machines = machines
        self.id = f"job-{uuid.uuid4().hex[:6]}"
        parent = machines.url.rpartition("/clusters/")[0]
        self.dir = JobDir(f"{parent}/jobs/{self.id}")
        program = run if isinstance(run, str) else list(run)
        data = JobRecord(self.id, "job", program, launcher=launcher).to_bytes()
        self.dir.put(JOB_KEY, data)
        if agent is not None:
            self.dir.put(agent.key, JobDir(machines.url).get(agent.key))
        self.nodes = [f"worker-{rank}.1" for rank in range(nodes)]
        records = [
            {"node": node, "role": "worker", "index": rank, "rank": rank, "gpus": 0}
            for rank, node in enumerate(self.nodes)
        ]
        offer = {"cloud": "cluster"}
        attempt = AttemptRecord(1, offer, records, interruptions_left=interruptions_left, heals=True)
        self.dir.create(attempt_key(1), attempt.to_bytes())
        self.order = Order(
            job_id=self.id,
            attempt=1,
            token=uuid.uuid4().hex,
            owner="tests",
            job_dir=self.dir.url,
            job_sha256=hashlib.sha256(data).hexdigest(),
            agent_key=agent.key if agent else "",
            agent_sha256=agent.sha256 if agent else "",
            nodes=self.nodes,
            lifetime_s=lifetime_s,
            time=time.time(),
        )
        self.number = 0

    def submit(self) -> int:
        self.number = self.machines.fleet.order(self.order)
        return self.number

    @property
    def seen(self) -> OrderView:
        return self.machines.order(self.number)

    def finish(self) -> None:
        self.machines.until(lambda: self.seen.end is not None, f"{self.id} has not ended")

    def result(self, node: str) -> Result | None:
        data = self.dir.find(node_key(1, node, "result.json"))
        return None if data is None else Result.from_bytes(data)

    def saved(self, node: str) -> int:
        data = self.dir.find(node_key(1, node, "heartbeat.json"))
        progress = None if data is None else Heartbeat.from_bytes(data).progress
        return int((progress or {}).get("saved_step") or 0)

    def generations(self) -> list[Generation]:
        found: list[Generation] = []
        while data := self.dir.find(generation_key(1, len(found) + 2)):
            found.append(Generation.from_bytes(data))
        return found

    def log(self) -> list[str]:
        return [line.text for line in LogReader(self.dir).read()[0]]


class FleetFolder:
    """A fleet folder without machines: tests write its records and set their ages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fleet = Fleet(local_url(path))
        self.fleet.put(FLEET_KEY, Settings(silent_s=100.0))

    def age(self, key: str, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(self.path / key, (then, then))

    def machine(self, name: str, silent: float = 0.0) -> None:
        self.fleet.put(member_key(name), Beat(time.time()))
        self.age(member_key(name), silent)

    def order(self, token: str, *nodes: str, job: str = "job") -> int:
        return self.fleet.order(Order(job, 1, token, "me", "file:///x", "", "", "", list(nodes), None, 0.0))

    def claim(self, number: int, node: str, machine: str) -> bool:
        return self.fleet.create(order_key(number, f"claims/{node}"), Holding(machine, machine, 0.0))

    def free(self, number: int, node: str, outcome: str) -> None:
        self.fleet.create(order_key(number, f"freed/{node}"), Freed(outcome, "", 0.0))

    def ran(self, job: str, seconds: float, **outcomes: str) -> int:
        """Add a finished order, claimed `seconds` before its nodes were released. `outcomes`: machine -> outcome of its
        node; the nodes follow at intervals of one second."""
        places = [f"worker-{rank}.1" for rank in range(len(outcomes))]
        number = self.order(uuid.uuid4().hex, *places, job=job)
        for place, (machine, outcome) in zip(places, outcomes.items(), strict=True):
            self.claim(number, place, machine)
            self.free(number, place, outcome)
            later = float(places.index(place))
            self.age(order_key(number, f"claims/{place}"), seconds + 100.0 - later)
            self.age(order_key(number, f"freed/{place}"), 100.0 - later)
        return number

    def end(self, number: int) -> None:
        self.fleet.create(order_key(number, "end.json"), End("", "me", 0.0))

    def wanted(self) -> tuple[int, set[str]] | None:
        """Return the number of the order that a free machine would join, and the nodes that it needs; None: there is
        none."""
        found = self.fleet.view().wanted("x")
        return None if found is None else (found[0].number, {place.following for place in found[0].wanting})

    def places_to_release(self) -> list[tuple[int, str]]:
        """Return (order number, place) of all places that must be released."""
        view = self.fleet.view()
        places = [(one.number, place.name) for one in view.orders for place in one.places]
        return [place for place in places if view.must_release(*place)]

    def states(self, number: int) -> list[str]:
        one = self.fleet.view().find(number)
        assert one is not None
        return [place.state for place in one.places]


def _foreign(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without CLOUDGPU_ variables, since a machine does not know the submitter's settings."""
    return {name: value for name, value in environ.items() if not name.startswith("CLOUDGPU_")}


def save_cluster(machines: Machines, size: int) -> None:
    """Save a cluster record for these machines in this state directory, as `cloudgpu cluster up` does."""
    clusters.save(cluster_at(machines.url, size))


def cluster_at(url: str, size: int, **more: str) -> Cluster:
    """Return a cluster with this fleet dir; `more` adds fields to its FleetSpec."""
    fleet = {"name": "big", "cloud": "aws", "region": "us-east-1", "machine_type": "g6.xlarge", "accelerator": "L4"}
    spec = FleetSpec.model_validate({**fleet, "gpus": "1", "size": size, **more})
    job_dir = url.rpartition("/clusters/")[0]
    return Cluster(
        name=spec.name,
        stack=f"cluster-{spec.name}",
        backend="file:///nowhere",
        owner="tests",
        account="",
        fleet=spec,
        infrastructure=Infrastructure("aws", "us-east-1", "infra-aws-us-east-1", "tests", "vpc", job_dir=job_dir),
        group=spec.name,
        fleet_dir=url,
        price_usd_h="0.8",
    )
