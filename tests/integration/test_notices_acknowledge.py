"""When an Azure event is acknowledged: watchers of two machines, one job dir, two views of the same event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudgpu.protocol.jobdir import AttemptRecord, JobDir, Result, attempt_key, local_url, node_key
from cloudgpu.runtime.notices import CloudNotices, NodeDir, Orders
from cloudgpu.tests.standins.agents import until
from cloudgpu.tests.standins.metadata_azure import AzureMetadata

LATER_S = 600.0
"""Seconds until the event: far more than anything here takes on a busy computer."""


class Crowd:
    """Two machines of one attempt, each with its own view of the same events."""

    def __init__(self, folder: Path, *, of_fleet: bool = False) -> None:
        folder.mkdir()
        self.of_fleet = of_fleet
        self.dir = JobDir(local_url(folder))
        nodes = [{"node": f"worker-{i}.1", "role": "worker", "index": i, "rank": i, "gpus": 0} for i in (0, 1)]
        self.dir.put(attempt_key(1), AttemptRecord(1, {}, nodes).to_bytes())
        self.servers = [AzureMetadata("VM_0"), AzureMetadata("vm_1")]
        self.lines: list[str] = []
        self.watched: list[CloudNotices] = []

    @contextmanager
    def at_work(self) -> Iterator[Crowd]:
        with self.servers[0], self.servers[1]:
            for index, server in enumerate(self.servers):
                own = NodeDir(self.dir, 1, f"worker-{index}.1")
                environ = {"CLOUDGPU_AZURE_METADATA": server.url}
                orders = Orders(lambda: None)
                self.watched.append(
                    CloudNotices("azure", own, orders, self.lines.append, environ=environ, of_fleet=self.of_fleet)
                )
            try:
                yield self
            finally:
                for watched in self.watched:
                    watched.stop()

    def announce(self, *machines: str, kind: str = "Preempt", after_s: float = LATER_S) -> None:
        for server in self.servers:
            server.announce(kind, after_s, *machines, event_id="E-1")

    def end(self, index: int) -> None:
        result = Result("preempted", 75, "", 0.0, 0.0)
        self.dir.create(node_key(1, f"worker-{index}.1", "result.json"), result.to_bytes())

    def names(self) -> int:
        return sum(self.dir.exists(node_key(1, f"worker-{i}.1", "machine-name.json")) for i in (0, 1))


def test_azure_one_node_acknowledges_and_only_when_all_have_ended(tmp_path: Path) -> None:
    with Crowd(tmp_path / "job").at_work() as crowd:
        crowd.announce("vm_0", "vm_1")
        until(lambda: crowd.names() == 2)
        crowd.end(1)
        time.sleep(1.5)
        assert crowd.servers[0].started == crowd.servers[1].started == []
        crowd.end(0)
        until(lambda: crowd.servers[0].started)
        for watched in crowd.watched:
            watched.finish(LATER_S)
        assert (crowd.servers[0].started, crowd.servers[1].started) == (["E-1"], [])
        assert [line for line in crowd.lines if "may begin" in line] == [
            "preempt of vm_0, vm_1 may begin: all is saved (event E-1)"
        ]


def test_azure_the_named_node_acknowledges_though_it_is_not_the_first(tmp_path: Path) -> None:
    with Crowd(tmp_path / "job").at_work() as crowd:
        crowd.announce("vm_1")
        until(lambda: crowd.names() == 1)
        crowd.end(0)
        crowd.end(1)
        until(lambda: crowd.servers[1].started)
        assert crowd.servers[0].started == []


def test_azure_an_event_that_names_a_foreign_machine_is_never_acknowledged(tmp_path: Path) -> None:
    with Crowd(tmp_path / "job").at_work() as crowd:
        crowd.announce("vm_0", "vm_1", "another-team")
        until(lambda: crowd.names() == 2)
        crowd.end(0)
        crowd.end(1)
        begun = time.monotonic()
        for watched in crowd.watched:
            watched.finish(LATER_S)
        assert time.monotonic() - begun < LATER_S / 3, "nobody waits for what cannot be"
        assert crowd.servers[0].started == crowd.servers[1].started == []


def test_azure_a_reboot_begins_when_the_machines_it_names_have_saved(tmp_path: Path) -> None:
    """No node has ended: the machines that the event names continue afterwards, and the others, which train meanwhile,
    are not waited for."""
    with Crowd(tmp_path / "job").at_work() as crowd:
        crowd.announce("vm_0", "vm_1", kind="Reboot", after_s=100.0)  # within the 2 min in which the program must end
        until(lambda: crowd.names() == 2)
        crowd.watched[1].saved()
        until(lambda: crowd.dir.exists(node_key(1, "worker-1.1", "saved-E-1.json")))
        time.sleep(1.5)
        assert crowd.servers[0].started == crowd.servers[1].started == []
        crowd.watched[0].saved()
        until(lambda: crowd.servers[0].started)
        assert (crowd.servers[0].started, crowd.servers[1].started) == (["E-1"], [])


def test_azure_what_was_saved_for_another_event_does_not_count(tmp_path: Path) -> None:
    with Crowd(tmp_path / "job").at_work() as crowd:
        crowd.dir.put(node_key(1, "worker-1.1", "saved-E-0.json"), b"{}")
        crowd.announce("vm_1", kind="Redeploy", after_s=900.0)  # this machine alone must end at once
        until(lambda: crowd.names() == 1)
        time.sleep(1.5)
        assert crowd.servers[1].started == []
        crowd.watched[1].saved()
        until(lambda: crowd.servers[1].started)


def test_azure_machines_of_a_fleet_keep_the_time_until_they_are_taken(tmp_path: Path) -> None:
    """Machines of a fleet need the time before an eviction to release their nodes, so they do not acknowledge it. A
    reboot is acknowledged as usual; here it comes later, and so shows that the eviction was seen."""
    with Crowd(tmp_path / "job", of_fleet=True).at_work() as crowd:
        crowd.announce("vm_0")
        until(lambda: any("preempt" in line for line in crowd.lines))
        crowd.end(0)
        crowd.watched[0].finish(LATER_S)
        crowd.servers[1].announce("Reboot", 100.0, "vm_1", event_id="E-2")
        crowd.watched[1].saved()
        until(lambda: crowd.servers[1].started)
        assert (crowd.servers[0].started, crowd.servers[1].started) == ([], ["E-2"])
