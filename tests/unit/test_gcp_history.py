"""Operations that Compute Engine remembers: which call starts a node's machine next, and why a machine is gone."""

from __future__ import annotations

import datetime

import pytest
from google.cloud import compute_v1

from cloudgpu.provisioners import ProvisionError
from cloudgpu.provisioners.gcp.labels import instance_name
from cloudgpu.provisioners.gcp.lifecycle.launching import earlier_calls
from cloudgpu.provisioners.gcp.lifecycle.teardown import ended_id
from cloudgpu.provisioners.gcp.operations import Operation, parse_operation
from cloudgpu.provisioners.gcp.resources.instance_cache import end_of, seen_in

TOKEN, ZONE, NODE = "0123456789abcdef0123456789abcdef", "us-central1-a", "worker-0.1"
NAME = instance_name(TOKEN, NODE)
MACHINE = f"{ZONE}/{NAME}"
FULL = ProvisionError("capacity", "full", code="ZONE_RESOURCE_POOL_EXHAUSTED")


class History:
    """Operations on one machine name in one zone."""

    def __init__(self) -> None:
        self.done: list[Operation] = []

    @property
    def next_id(self) -> str:
        return earlier_calls(self.done, TOKEN, NODE, ZONE).request_id

    def add(
        self, kind: str, request_id: str = "", *, error: ProvisionError | None = None, finished: bool = True
    ) -> Operation:
        at = datetime.datetime.fromtimestamp(len(self.done), datetime.UTC)
        number = f"operation-{len(self.done)}"
        one = Operation(number, kind, request_id, NAME, ZONE, "somebody@p", at, finished, error)
        self.done.append(one)
        return one

    def insert(self, *, error: ProvisionError | None = None, finished: bool = True) -> Operation:
        return self.add("insert", self.next_id, error=error, finished=finished)


def test_the_first_call_has_always_the_same_id() -> None:
    before = earlier_calls([], TOKEN, NODE, ZONE)
    assert before == earlier_calls([], TOKEN, NODE, ZONE)
    assert before.insert is None and not before.was_started
    assert before.request_id != earlier_calls([], TOKEN, NODE, "us-central1-b").request_id


def test_a_call_that_is_not_done_yet_is_waited_for_and_not_repeated() -> None:
    history = History()
    running = history.insert(finished=False)
    found = earlier_calls(history.done, TOKEN, NODE, ZONE)
    assert found.insert == running and not found.was_started


def test_a_machine_that_was_started_and_is_lost_is_not_started_again() -> None:
    history = History()
    history.insert()
    history.add("compute.instances.preempted")
    history.add("delete")
    assert earlier_calls(history.done, TOKEN, NODE, ZONE).was_started


def test_after_a_refusal_there_is_another_id_for_the_old_one_would_be_answered_with_the_refusal() -> None:
    history = History()
    ids = {history.next_id}
    for _ in range(3):
        history.insert(error=FULL)
        assert not earlier_calls(history.done, TOKEN, NODE, ZONE).was_started
        ids.add(history.next_id)
    assert len(ids) == 4


def test_a_machine_that_was_ended_with_all_of_its_launch_may_be_started_again() -> None:
    history = History()
    first = history.insert()
    history.add("delete", ended_id(TOKEN, MACHINE, first.name))
    before = earlier_calls(history.done, TOKEN, NODE, ZONE)
    assert before.insert is None and before.request_id != first.request_id
    again = history.insert()
    assert earlier_calls(history.done, TOKEN, NODE, ZONE).insert == again


def test_other_machines_and_other_peoples_calls_do_not_matter() -> None:
    history = History()
    history.add("insert", "11111111-2222-3333-4444-555555555555")
    history.add("insert")
    assert earlier_calls(history.done, TOKEN, NODE, ZONE) == earlier_calls([], TOKEN, NODE, ZONE)
    history.insert()
    assert earlier_calls(history.done, TOKEN, NODE, "us-central1-b").insert is None
    assert earlier_calls(history.done, TOKEN, "worker-1.1", ZONE).insert is None


def test_what_took_a_machine() -> None:
    for kind in ("compute.instances.preempted", "compute.instances.hostError"):
        history = History()
        history.insert()
        history.add(kind)
        history.add("delete")
        state = end_of(NODE, history.done)
        assert state is not None and state.phase == "gone" and state.reclaimed and kind in state.detail


def test_who_deleted_it() -> None:
    history = History()
    history.insert()
    assert end_of(NODE, history.done) is None, "nothing says that it is gone"
    history.add("delete")
    state = end_of(NODE, history.done)
    assert state is not None and not state.reclaimed and state.detail == "deleted by somebody@p"


def test_what_was_done_to_an_earlier_machine_of_the_name_does_not_count() -> None:
    history = History()
    first = history.insert()
    history.add("compute.instances.preempted")
    history.add("delete", ended_id(TOKEN, MACHINE, first.name))
    history.insert()
    assert end_of(NODE, history.done) is None


def test_a_machine_that_never_came_out_of_the_queue_was_refused() -> None:
    history = History()
    history.insert(error=FULL)
    state = end_of(NODE, history.done)
    assert state is not None and state.refused is FULL and not state.reclaimed
    history.insert(error=ProvisionError("transient", "an internal error"))
    state = end_of(NODE, history.done)
    assert state is not None and state.phase == "gone" and state.refused is None


def test_zones_with_capacity_are_read_from_a_refusals_details() -> None:
    metadatas = {"vmType": "g2-standard-4", "zone": ZONE, "zonesAvailable": "us-central1-b,us-central1-f"}
    operation = compute_v1.Operation(
        name="operation-1",
        status="DONE",
        operation_type="insert",
        insert_time="2026-11-01T01:30:00.000-07:00",
        zone=f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}",
        target_link=f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}/instances/{NAME}",
        http_error_status_code=503,
        error={
            "errors": [
                {
                    "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                    "message": "The zone does not have enough resources available",
                    "error_details": [
                        {"help_": {"links": []}},
                        {"error_info": {"reason": "resource_availability", "metadatas": metadatas}},
                    ],
                }
            ]
        },
    )
    found = parse_operation(operation, "start worker-0.1")
    assert (found.zone, found.instance, found.finished) == (ZONE, NAME, True)
    assert found.at == datetime.datetime(2026, 11, 1, 8, 30, tzinfo=datetime.UTC)
    assert found.error is not None
    assert (found.error.error_class, found.error.scope) == ("capacity", "zone")
    assert found.error.hints == ("us-central1-b", "us-central1-f")


def test_an_operation_that_failed_without_saying_what_is_told_by_its_status() -> None:
    operation = compute_v1.Operation(
        name="operation-1", status="DONE", http_error_status_code=503, http_error_message="SERVICE UNAVAILABLE"
    )
    error = parse_operation(operation, "start worker-0.1").error
    assert error is not None and error.error_class == "transient"
    fine = compute_v1.Operation(name="operation-1", status="DONE", http_error_status_code=0)
    assert parse_operation(fine).error is None


def test_a_zone_that_cannot_be_reached_is_not_taken_for_empty_and_concerns_its_own_region_only() -> None:
    empty = compute_v1.InstancesScopedList(warning={"code": "NO_RESULTS_ON_PAGE"})
    down = compute_v1.InstancesScopedList(warning={"code": "UNREACHABLE", "message": "try later"})
    there = compute_v1.InstancesScopedList(instances=[{"name": NAME, "zone": f"zones/{ZONE}", "status": "RUNNING"}])
    seen = seen_in([(f"zones/{ZONE}", there), ("zones/us-central1-b", empty), ("zones/us-east1-b", down)])
    assert list(seen.of("us-central1")) == [f"{ZONE}/{NAME}"]
    for region in ("us-east1", ""):
        with pytest.raises(ProvisionError, match="us-east1-b cannot be reached: try later") as caught:
            seen.of(region)
        assert caught.value.error_class == "transient"
