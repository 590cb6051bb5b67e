"""Invalid objects in a fleet's folder: they are skipped, and machines and supervisors continue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import FLEET_KEY, WATCH_KEY, Beat, Order, member_key, order_key
from cloudgpu.protocol.fleet.view import View
from cloudgpu.provisioners import Allocation
from cloudgpu.provisioners.cluster.provisioner import ClusterProvisioner
from cloudgpu.provisioners.stacks import clusters as known
from cloudgpu.runtime.fleet.contact import Contact
from cloudgpu.tests.standins.fleets import FleetFolder, cluster_at

ODD_KEYS = [
    "orders/00000001/claims/worker-0.x",
    "orders/00000001/claims/worker-9.1/x",
    "orders/00000001/claims/worker-0",
    "orders/00000001/freed/worker-9.1/x",
    "orders/00000001/claims/worker-0.99999999999999999999",
    "orders/x/end.json",
    "orders/end.json",
    "orders/99999999999/order.json",
    "members/beat.json",
    "members/failed.json",
    "members/a/b/beat.json",
]
WRONG = [b"[", b"5", b"{}", b"\xff", b"[" * 100_000, b'{"nodes": 5, "machine": [], "reason": {}, "silent_s": "x"}']


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    made = FleetFolder(tmp_path / "clusters" / "big")
    made.machine("a")
    made.machine("b")
    made.order("1", "worker-0.1", "worker-1.1")
    made.claim(1, "worker-0.1", "a")
    return made


def write(folder: FleetFolder, key: str, data: bytes) -> None:
    (folder.path / key).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / key).write_bytes(data)


def fresh(folder: FleetFolder) -> View:
    return Fleet(folder.fleet.url).view()


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_that_are_no_fleets_are_passed_over(folder: FleetFolder, key: str) -> None:
    write(folder, key, b"{}")
    for _ in range(2):
        assert folder.states(1) == ["held", "free"]
    assert sorted(fresh(folder).alive) == ["a", "b"]


@pytest.mark.parametrize("data", WRONG)
def test_an_order_that_is_none_holds_up_no_other(folder: FleetFolder, data: bytes) -> None:
    write(folder, order_key(2), data)
    assert folder.order("3", "worker-0.1") == 3, "its number is taken"
    assert [one.number for one in fresh(folder).orders] == [1, 3]
    assert fresh(folder).unreadable == {2: None}


@pytest.mark.parametrize("data", WRONG)
def test_what_is_wrong_in_an_order_harms_that_node_only(folder: FleetFolder, data: bytes) -> None:
    write(folder, order_key(1, "claims/worker-0.1"), data)
    states = [(place.state, place.machine) for place in fresh(folder).orders[0].places]
    assert states == [("lost", ""), ("free", "")], "the next machine takes its place"
    write(folder, order_key(1, "claims/worker-1.1"), b'{"machine":"b","nonce":"b","time":1}')
    write(folder, order_key(1, "freed/worker-1.1"), data)
    assert [place.outcome for place in fresh(folder).orders[0].places] == ["", "error"]
    write(folder, order_key(1, "end.json"), data)
    assert fresh(folder).orders[0].is_over, "that there is such an object is what counts"


def test_names_that_no_node_has_make_no_order(folder: FleetFolder) -> None:
    for number, node in enumerate(("worker-0", "worker-0.x", "-rf.1/../x", "a b.1", "w.0"), start=2):
        order = Order("job", 1, str(number), "me", "file:///x", "", "", "", [node], None, 0.0)
        folder.fleet.put(order_key(number), order)
    assert [one.number for one in fresh(folder).orders] == [1]


@pytest.mark.parametrize("data", WRONG)
def test_settings_that_are_none_change_nothing(folder: FleetFolder, data: bytes) -> None:
    assert folder.fleet.view().settings.silent_s == 100.0
    write(folder, FLEET_KEY, data)
    folder.age(FLEET_KEY, -5.0)
    # {} is a fleet.json with defaults only; the other contents are invalid.
    assert folder.fleet.view().settings.silent_s == (120.0 if data == b"{}" else 100.0)


class Broken(Fleet):
    """A folder that raises unexpected errors."""

    failing = True

    def view(self) -> View:
        if self.failing:
            raise RuntimeError("a bug")
        return super().view()


def test_the_contact_survives_everything(folder: FleetFolder) -> None:
    fleet, said = Broken(folder.fleet.url), list[str]()
    contact = Contact(fleet, "c", said.append)
    try:
        wait_for(lambda: said)
        contact.poll_now()
        fleet.failing = False
        contact.poll_now()
        wait_for(lambda: contact.polls)
    finally:
        contact.stop()
    assert said == ["RuntimeError: a bug"], "once"


@pytest.mark.parametrize("key", [*ODD_KEYS, order_key(1), order_key(1, "claims/worker-0.1"), FLEET_KEY])
def test_a_machine_goes_on_looking_whatever_is_in_the_folder(folder: FleetFolder, key: str) -> None:
    write(folder, key, b'{"look_s": -5, "nodes": 5}')
    contact = Contact(folder.fleet, "c", print)
    try:
        wait_for(lambda: contact.polls)
        before = contact.polls
        contact.poll_now()
        wait_for(lambda: contact.polls > before)
    finally:
        contact.stop()


def test_a_job_whose_order_was_overwritten_is_ended_all_the_same(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Machines that had read the order still run it; a new supervisor cannot read it, and ends it by its number."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    known.save(cluster_at(folder.fleet.url, 2))
    machines = {"worker-0.1": "big/00000001/worker-0", "worker-1.1": "big/00000001/worker-1"}
    details, provisioner = {"fleet_dir": folder.fleet.url}, ClusterProvisioner()
    allocation = Allocation("cluster", "job", 1, "1", machines, region="big", owner="me", details=details)
    assert folder.states(1) == ["held", "free"]
    write(folder, order_key(1), b"torn")
    assert {state.phase for state in provisioner.observe(allocation)} == {"running"}
    provisioner.terminate(allocation)
    assert (folder.path / order_key(1, "end.json")).exists()
    member = folder.fleet.view().find(1)
    assert member is not None and member.end is not None, "whoever had read the order sees its end"
    assert {state.phase for state in provisioner.observe(allocation)} == {"running"}, "they may not have seen it yet"
    folder.age(order_key(1, "end.json"), 300.0)
    folder.fleet.mark(WATCH_KEY, Beat(0.0))
    assert {state.phase for state in provisioner.observe(allocation)} == {"gone"}


def wait_for(met: Any) -> None:
    until = time.monotonic() + 180
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_member_whose_name_is_odd_is_listed_as_it_is(folder: FleetFolder) -> None:
    folder.machine("c.d-1")
    assert member_key("c.d-1") in {member_key(name) for name in folder.fleet.view().alive}
