"""A supervisor that crashes at any call: the next one ends the job correctly, once, and leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy
from cloudgpu.tests.standins.long_mode import LONG

MOMENTS = {"after": True} | ({"before": False} if LONG else {})
"""Crash after or before a call's effect. Nothing changes between two changing calls, so `before` equals `after` the
previous one."""

SUCCEED = Life(run_s=3)
FAIL = Life(run_s=3, end="failed", exit_code=3, reason="exit code 3")
VANISH = Life(run_s=3, end="vanish")


class Crash(BaseException):
    """Crash of the supervisor's process."""


class Crasher:
    """Wrapper of a supervisor's dependencies that crashes at the n-th call, before or after it takes effect."""

    def __init__(self, at: int, after: bool) -> None:
        self.at = at
        self.after = after
        self.calls = 0
        self.trace: list[str] = []

    def wrap(self, what: str, it: object) -> object:
        return _Wrapped(self, what, it)

    def call(self, name: str, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        self.calls += 1
        self.trace.append(name)
        if self.calls != self.at:
            return function(*args, **kwargs)
        if self.after:
            function(*args, **kwargs)
        raise Crash(name)


class _Wrapped:
    def __init__(self, crasher: Crasher, what: str, it: object) -> None:
        self._crasher, self._what, self._it = crasher, what, it

    def __getattr__(self, name: str) -> object:
        function = getattr(self._it, name)
        if not callable(function):
            return function
        return lambda *args, **kwargs: self._crasher.call(f"{self._what}.{name}", function, *args, **kwargs)


Scenario = Callable[[World], str]


def _recovers(world: World) -> str:
    world.cloud.script = lives(VANISH, SUCCEED)
    return world.submit(make_offer(nodes=2))


def _is_refused(world: World) -> str:
    world.cloud.full = {"a-1"}
    world.cloud.partial_launch = True
    return world.submit(make_offer(nodes=2, zone="a-1"), make_offer(nodes=2, zone="a-2"))


def _fails(world: World) -> str:
    world.cloud.script = lives(Life(run_s=1e6), nodes=[((n, "worker-1.1"), FAIL) for n in (1, 2)])
    return world.submit(make_offer(nodes=2))


def _is_stopped(world: World) -> str:
    world.cloud.script = lives(Life(run_s=1e6))
    return world.submit(policy=make_policy(duration_s=20))


def _replaces_a_lost_node(world: World) -> str:
    world.cloud.script = lives(Life(run_s=20), nodes=[((1, "worker-1.1"), VANISH)])
    return world.submit(make_offer(nodes=2), policy=make_policy(preemptions=1))


def _goes_on_without_it(world: World) -> str:
    """Two nodes are lost, one after the other; their replacements boot slowly."""
    lost = {
        (1, "worker-1.1"): Life(run_s=3, end="taken"),
        (1, "worker-2.1"): Life(run_s=12, end="vanish", answer="failure"),
    }
    late = {(1, node): Life(boot_s=5, run_s=40) for node in ("worker-1.2", "worker-2.2")}
    world.cloud.script = lives(Life(run_s=60, answer="failure"), nodes=(lost | late).items())
    return world.submit(make_offer(nodes=3), policy=make_policy(least_nodes=2, failures=1, preemptions=2))


def _cannot_replace_it(world: World) -> str:
    """A node is lost when its zone is full."""

    def script(attempt: int, node: str) -> Life:
        world.cloud.full = {"a-1"} if attempt == 1 and node == "worker-1.1" else world.cloud.full
        return VANISH if (attempt, node) == (1, "worker-1.1") else Life(run_s=20)

    world.cloud.script = script
    return world.submit(make_offer(nodes=2, zone="a-1"), make_offer(nodes=2, zone="a-2"))


def _is_stopped_while_it_heals(world: World) -> str:
    lost = {(1, "worker-1.1"): VANISH, (1, "worker-1.2"): Life(boot_s=1e6)}
    world.cloud.script = lives(Life(run_s=1e6), nodes=lost.items())
    return world.submit(make_offer(nodes=2), policy=make_policy(duration_s=20))


def _replaces_a_silent_node(world: World) -> str:
    """A frozen node may resume, and must not run beside its replacement."""
    world.cloud.script = lives(Life(run_s=300), nodes=[((1, "worker-0.1"), Life(run_s=3, end="freeze"))])
    return world.submit(make_offer(nodes=2))


def _moves(world: World) -> str:
    """The machine is lost in one cloud, the second has none, and the job continues in the third, each with a separate
    job dir."""
    world.cloud.stores, world.cloud.full = True, {"b-1"}
    world.cloud.script = lives(VANISH, SUCCEED)
    offers = [make_offer(zone=zone)._replace(cloud=cloud) for cloud, zone in (("aws", "a-1"), ("gcp", "b-1"))]
    return world.submit(*offers, offers[0]._replace(cloud="azure", zone="c-1"), apart=True)


SCENARIOS: dict[str, tuple[Scenario, str, list[str]]] = {
    "recovers": (_recovers, "succeeded", ["lost", "succeeded"]),
    "is refused": (_is_refused, "succeeded", ["refused", "succeeded"]),
    "fails": (_fails, "failed", ["failed", "failed"]),
    "is stopped": (_is_stopped, "stopped", ["stopped"]),
    "replaces a lost node": (_replaces_a_lost_node, "succeeded", ["succeeded"]),
    "goes on without it": (_goes_on_without_it, "succeeded", ["succeeded"]),
    "cannot replace it": (_cannot_replace_it, "succeeded", ["lost", "succeeded"]),
    "is stopped while it heals": (_is_stopped_while_it_heals, "stopped", ["lost"]),
    "moves": (_moves, "succeeded", ["lost", "refused", "succeeded"]),
    "replaces a silent node": (_replaces_a_silent_node, "succeeded", ["succeeded"]),
}


def _run_with_crash(folder: Path, template: Path, name: str, crasher: Crasher) -> tuple[World, str]:
    """Run a scenario with a supervisor that crashes and one that takes over."""
    scenario, _, _ = SCENARIOS[name]
    world = World(folder, template, wrap=crasher.wrap)
    job_id = scenario(world)
    for owner in ("elsewhere/1/a", "elsewhere/2/b"):
        try:
            world.drive(world.supervisor(owner))
            break
        except Crash:
            continue
    return world, job_id


def _crash_points(trace: list[str], *, after: bool) -> list[int]:
    """Return the calls to crash at: every second changing call, the others for the other moment; every call in the long
    mode."""
    if LONG:
        return list(range(1, len(trace) + 1))
    changing = {"store.apply", "cloud.launch", "cloud.terminate", "dir.create", "dir.put", "dir.upload"}
    return [at for at, call in enumerate(trace, start=1) if call in changing][after::2]


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("after", MOMENTS.values(), ids=MOMENTS)
def test_a_supervisor_that_dies_at_any_call_loses_nothing(
    tmp_path: Path, template: Path, name: str, after: bool
) -> None:
    whole = Crasher(0, after)
    _run_with_crash(tmp_path / "whole", template, name, whole)
    for at in _crash_points(whole.trace, after=after):
        world, job_id = _run_with_crash(tmp_path / str(at), template, name, Crasher(at, after))
        job, ended = world.job(job_id), [attempt.outcome for attempt in world.attempts(job_id)]
        where = f"crash at call {at}, {whole.trace[at - 1]}"
        assert (job.state, ended) == SCENARIOS[name][1:], where
        world.check_clean()
        asked = [(request.token, request.nodes) for request in world.cloud.launches]
        assert len(asked) == len(set(asked)), where
        assert len(world.store.events(job_id)) >= len(ended) + 2
        world.store.close()
        shutil.rmtree(tmp_path / str(at))
