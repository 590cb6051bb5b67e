"""Jobs with a dedicated machine group: the supervisor leaves lost machines to the group, and counts paid time."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest

from cloudgpu.control.reconcile.decisions import GRACE_S
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.jobdir import Heartbeat, node_key
from cloudgpu.provisioners.base import Allocation, NodeState, ProvisionError, TerminateResult
from cloudgpu.tests.standins.cloud import FakeClock, Life, Machine, StoringCloud, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy

HOUR = 3_600.0
PRICE = Decimal("3.6")


class GroupCloud(StoringCloud):
    """Fake cloud with groups: a lost machine is pending until its group replaces it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.ended: set[str] = set()

    def _state(self, node: str, machine: Machine | None) -> NodeState:
        state = super()._state(node, machine)
        waits = state.phase == "gone" and machine is not None and not machine.done and state.refused is None
        if waits and machine is not None and machine.request.token not in self.ended:
            return NodeState(node, "pending", "waits for a machine of its group", queued=True)
        return state

    def terminate(self, allocation: Allocation) -> TerminateResult:
        ended = super().terminate(allocation)
        self.ended.add(allocation.token)
        return ended


@pytest.fixture
def world(world: World) -> World:
    world.cloud = GroupCloud(world.clock)
    return world


def submit(world: World, nodes: int, life: Life, lost: Life | None = None, *, grouped: bool = True) -> str:
    last = f"worker-{nodes - 1}.1"
    world.cloud.script = lives(life, nodes=[((1, last), lost)] if lost else [])
    offer = make_offer(nodes=nodes, zone="z-1")._replace(cloud="aws", price=PRICE)
    return world.submit(offer, policy=make_policy(grouped=grouped))


def begin(world: World, job_id: str) -> None:
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")


def attempt_of(world: World, job_id: str) -> Attempt:
    (attempt,) = world.attempts(job_id)
    return attempt


def test_the_launch_request_says_whether_it_is_grouped(world: World) -> None:
    for grouped in (True, False):
        world.finish(submit(world, 2, Life(), grouped=grouped))
    assert [request.grouped for request in world.cloud.launches] == [True, False]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_lost_machine_is_left_to_its_group(world: World, nodes: int) -> None:
    """The attempt stays running and paid for, and no other machine is requested."""
    job_id = submit(world, nodes, Life(run_s=HOUR), Life(run_s=60.0, end="vanish"))
    begin(world, job_id)
    launched = attempt_of(world, job_id).launched
    assert launched is not None
    world.drive(world.supervisor(), until=lambda: world.clock.now() > launched + HOUR / 2)
    attempt = attempt_of(world, job_id)
    assert (world.job(job_id).state, attempt.state, attempt.launched) == ("running", "running", launched)
    assert [machine.node for machine in world.cloud.machines] == [f"worker-{index}.1" for index in range(nodes)]
    assert len(world.cloud.launches) == 1


def test_half_a_group_that_waited_is_paid_for(world: World) -> None:
    """The first machine existed until the second was given up."""
    late = ProvisionError("capacity", "1 machines are there, 2 are needed", scope="zone")
    waiting = Life(run_s=10 * HOUR, end="serve")
    job_id = submit(world, 2, waiting, dataclasses.replace(waiting, queued_s=HOUR / 2, refused=late))
    world.drive(world.supervisor(), until=lambda: attempt_of(world, job_id).state == "ended")
    attempt = attempt_of(world, job_id)
    assert (attempt.outcome, attempt.cause) == ("refused", "capacity")
    assert attempt.cost is not None and attempt.cost >= PRICE / 2


def test_a_machine_that_was_lost_before_its_program_began_is_paid_for(world: World) -> None:
    """Also by a supervisor that has never observed it."""
    job_id = submit(world, 1, Life(boot_s=HOUR, run_s=2 * HOUR))
    world.drive(world.supervisor(), until=lambda: attempt_of(world, job_id).state == "running")
    (machine,) = world.cloud.machines
    beat = Heartbeat(sequence=1, time=world.clock.now(), phase="setup")
    machine.job_dir.put(node_key(1, machine.node, "heartbeat.json"), beat.to_bytes())
    machine.gone = True
    launched = attempt_of(world, job_id).launched
    assert launched is not None
    world.drive(world.supervisor(), until=lambda: world.clock.now() > launched + HOUR / 2)
    assert (world.job(job_id).state, attempt_of(world, job_id).launched) == ("starting", launched)


def test_one_machine_that_was_refused_in_the_end_was_not_free(world: World) -> None:
    """The group's machines may have started and ended until then."""
    late = ProvisionError("capacity", "0 machines are there, 1 is needed", scope="zone")
    job_id = submit(world, 1, Life(queued_s=HOUR / 100, refused=late))
    world.drive(world.supervisor(), until=lambda: attempt_of(world, job_id).state == "ended")
    assert attempt_of(world, job_id).launched is not None


def test_what_waits_for_machines_is_cancelled_at_once(world: World) -> None:
    """No program runs that could save within the grace period."""
    job_id = submit(world, 2, Life(queued_s=10 * HOUR))
    world.drive(world.supervisor(), until=lambda: attempt_of(world, job_id).state == "running")
    began = world.clock.now()
    assert world.store.set_goal(job_id, "cancel", "cancel", began)
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "cancelled")
    attempt = attempt_of(world, job_id)
    assert world.clock.now() - began < GRACE_S["cancel"] / 2
    assert (attempt.outcome, attempt.reason) == ("stopped", "worker-0.1: ended while it waited for machines")
