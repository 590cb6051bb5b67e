"""Contract tests of provisioners, each run with its target's stand-in.

A new target needs a class in tests/contract/targets and a row of TARGETS.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners import Allocation, LaunchRequest, Owner, Provisioner, ProvisionError, launchable
from cloudgpu.provisioners.checks.results import CheckRequest, CheckResult
from cloudgpu.provisioners.checks.runner import run_steps
from cloudgpu.provisioners.shared import tags as names
from cloudgpu.provisioners.target import code_of, target_of
from cloudgpu.tests.standins.clocks import StillClock
from cloudgpu.tests.standins.faults import HANG, HTML, LOSE, RESET, Fault, error

from .targets.aws import AwsStandin
from .targets.azure import AzureStandin
from .targets.cluster import ClusterStandin
from .targets.gcp import GcpStandin
from .targets.processes import LocalStandin, ShedStandin
from .targets.standin import EXPIRES, OWNER, TIMEOUT_S, Standin, refused, until, wait_for_phases
from .targets.vertex import VertexGrpcStandin, VertexStandin

pytestmark = pytest.mark.timeout(600)

TARGETS: dict[str, type[Standin]] = {
    "aws": AwsStandin,
    "gcp": GcpStandin,
    "azure": AzureStandin,
    "vertex": VertexStandin,
    "vertex grpc": VertexGrpcStandin,
    "local": LocalStandin,
    "cluster": ClusterStandin,
    "shed": ShedStandin,
}
PAIR, SECOND, REPLACED = ("worker-0.1", "worker-1.1"), "worker-1.1", ("worker-0.1", "worker-1.2")
REPEATED = ("throttled", "transient", "expired")
"""Error classes that a launch retries."""
OTHER_SERVICES = ("login", "oauth2", "s3", "storage")
"""Services whose calls do not count as the provisioner's: logins and the job dir."""
UNANSWERED = pytest.mark.parametrize("fault", [LOSE, RESET, HTML], ids=lambda fault: fault.kind)


def where(*able: str) -> pytest.MarkDecorator:
    """Run a test for the targets whose stand-ins have all of these members."""
    rows = [name for name, kind in TARGETS.items() if kind.overrides(*able)]
    return pytest.mark.parametrize("running", rows, indirect=True, scope="module")


@pytest.fixture(scope="module", params=TARGETS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    with TARGETS[request.param](tmp_path_factory.mktemp(request.param.replace(" ", "-"))) as standin:
        yield standin


@pytest.fixture
def standin(running: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    running.reset(monkeypatch)
    return running


@pytest.fixture
def provisioner(standin: Standin) -> Provisioner:
    return standin.new_provisioner()


def end(standin: Standin, allocation: Allocation) -> None:
    """Terminate a launch and check that no resource is left."""
    standin.watcher.terminate(allocation)
    assert not standin.left()


def refusal(standin: Standin, asked: LaunchRequest) -> ProvisionError:
    """Return the error of a launch, raised at once or in its nodes' states. Checks that no resource is left."""
    provisioner = standin.new_provisioner()
    try:
        allocation = provisioner.launch(asked)
    except ProvisionError as error:
        until(lambda: not standin.left())
        return error
    states = wait_for_phases(standin, allocation, "gone")
    end(standin, allocation)
    [why, *_] = [state.refused for state in states if state.refused is not None]
    return why


def cut_off(standin: Standin, asked: LaunchRequest) -> None:
    """Launch while responses to the call that starts machines are lost; it may succeed by finding them in a listing."""
    standin.control.fail(standin.start, LOSE, times=None)
    try:
        standin.new_provisioner().launch(asked)
    except ProvisionError as error:
        assert error.error_class == "transient"
    standin.control.heal()


def settled(standin: Standin, allocation: Allocation, machines: int) -> None:
    """Observe a launch until it has this number of machines, as duplicates for a node are ended."""

    def are() -> bool:
        standin.expire_polls()
        assert "gone" not in {state.phase for state in standin.watcher.observe(allocation)}
        return standin.alive() == machines

    until(are)


def test_every_target_is_tested() -> None:
    assert {kind.target for kind in TARGETS.values()} == launchable() | {"shed"}


class TestLife:
    def test_from_nothing_to_nothing(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(*PAIR)
        allocation = provisioner.launch(asked)
        assert (allocation.target, allocation.job_id, allocation.token) == (standin.target, asked.job_id, asked.token)
        assert list(allocation.machines) == list(PAIR) and len({*allocation.machines.values()}) == 2
        assert Allocation.from_json(json.loads(json.dumps(allocation.to_json()))) == allocation
        states = wait_for_phases(standin, allocation, standin.runs)
        assert [state.node for state in states] == list(PAIR)
        assert not any(state.reclaimed or state.restarting or state.refused for state in states)
        until(lambda: standin.alive() == 2)
        assert [one.token for one in provisioner.find(OWNER)] == [asked.token]
        for _ in range(2):
            end(standin, allocation)
        assert {state.phase for state in wait_for_phases(standin, allocation, "gone")} == {"gone"}
        assert provisioner.find(OWNER) == [] and standin.started() == 2

    @where("tags")
    def test_everything_is_tagged_and_expires(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(*PAIR)
        provisioner.launch(asked)
        found = standin.tags()
        assert found
        for name, tags in found.items():
            wanted = {**names.launch_tags(asked), names.EXPIRES: str(int(EXPIRES))}
            assert wanted.items() <= tags.items(), (name, tags)

    def test_launches_are_apart(self, standin: Standin, provisioner: Provisioner) -> None:
        first, second = (provisioner.launch(standin.request()) for _ in range(2))
        until(lambda: standin.alive() == 2)
        provisioner.terminate(first)
        wait_for_phases(standin, second, standin.runs)
        assert [one.token for one in standin.watcher.find(OWNER)] == [second.token]
        until(lambda: standin.alive() == 1)
        end(standin, second)


class TestIdempotent:
    def test_the_same_token_is_the_same_machines(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(*PAIR)
        first = provisioner.launch(asked)
        for again in (provisioner.launch(asked), standin.new_provisioner().launch(asked)):
            assert (again.machines, again.token) == (first.machines, first.token)
        wait_for_phases(standin, first, standin.runs)
        until(lambda: standin.alive() == 2)
        assert standin.started() == 2

    def test_from_another_process(self, standin: Standin, provisioner: Provisioner, tmp_path: Path) -> None:
        asked = standin.request()
        (tmp_path / "asked").write_bytes(pickle.dumps((standin.target, asked, OWNER)))
        script = (
            "import json, pickle, sys\n"
            "from cloudgpu.provisioners import get_provisioner\n"
            "target, asked, owner = pickle.load(open(sys.argv[1], 'rb'))\n"
            "made = get_provisioner(target)\n"
            "machines = made.launch(asked).machines\n"
            "print(json.dumps([machines, [one.token for one in made.find(owner)]]))\n"
        )
        first = provisioner.launch(asked)
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "asked")], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == [first.machines, [asked.token]]
        assert standin.started() == 1

    def test_at_once(self, standin: Standin) -> None:
        asked = dataclasses.replace(standin.request(*PAIR), may_be_retry=True)

        def launch(provisioner: Provisioner) -> Allocation | None:
            try:
                return provisioner.launch(asked)
            except ProvisionError as error:  # retried below with the same token
                assert error.error_class in ("transient", "throttled"), error
                return None

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(launch, [standin.new_provisioner() for _ in range(3)]))
        allocation = standin.new_provisioner().launch(asked)
        settled(standin, allocation, 2)
        end(standin, allocation)

    def test_after_its_end(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request()
        end(standin, provisioner.launch(asked))
        again = standin.new_provisioner().launch(asked)
        if standin.revives:
            wait_for_phases(standin, again, standin.runs)
        else:
            wait_for_phases(standin, again, "gone")
            assert standin.alive() == 0
        end(standin, again)


class TestUnanswered:
    @UNANSWERED
    @where("start")
    def test_the_launch_is_repeated(self, standin: Standin, provisioner: Provisioner, fault: Fault) -> None:
        asked = standin.request()
        standin.control.fail(standin.start, fault, times=2)
        allocation = provisioner.launch(asked)
        assert standin.control.calls(standin.start)[0].fault == fault.kind
        until(lambda: standin.alive() == 1)
        end(standin, allocation)
        assert standin.started() == 1

    @where("start")
    def test_the_caller_dies_and_the_next_one_goes_on(self, standin: Standin) -> None:
        asked = standin.request(*PAIR)
        cut_off(standin, asked)
        allocation = standin.new_provisioner().launch(dataclasses.replace(asked, may_be_retry=True, lifetime_s=1_800))
        settled(standin, allocation, 2)
        end(standin, allocation)

    @where("start")
    def test_the_caller_dies_and_it_is_found(self, standin: Standin) -> None:
        asked = standin.request()
        cut_off(standin, asked)
        [found] = standin.watcher.find(OWNER)
        assert (found.job_id, found.attempt, found.token) == (asked.job_id, asked.attempt, asked.token)
        assert standin.watcher.find(Owner("somebody-else")) == []
        end(standin, dataclasses.replace(found, machines={}))
        assert standin.watcher.find(OWNER) == []

    @where("start")
    def test_it_is_ended_though_it_is_not_known_what_there_is(self, standin: Standin) -> None:
        asked = standin.request(*PAIR)
        cut_off(standin, asked)
        [found] = standin.watcher.find(OWNER)
        wait_for_phases(standin, found, "running")
        ended = standin.watcher.terminate(standin.unanswered(asked))
        assert ended is not None and ended.has_started
        assert not standin.left()

    @where("start")
    def test_what_never_reached_the_provider_has_not_started(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(*PAIR)
        standin.control.fail(standin.start, RESET, times=None)
        assert refused(provisioner, asked).error_class == "transient"
        standin.control.heal()
        ended = standin.watcher.terminate(standin.unanswered(asked))
        assert ended is not None and not ended.has_started
        assert not standin.left()

    @UNANSWERED
    @where("start")
    def test_every_call_of_a_life_fails_once(self, standin: Standin, fault: Fault) -> None:
        for action in self.actions(standin):
            standin.control.fail(action, fault)
        self.live(standin)
        assert fault.kind in {call.fault for call in standin.control.calls()}

    _actions: ClassVar[dict[str, list[str]]] = {}

    def actions(self, standin: Standin) -> list[str]:
        """Return the actions that live() calls, cached by target."""
        if standin.target not in self._actions:
            self._actions[standin.target] = sorted(self.live(standin))
        return self._actions[standin.target]

    @staticmethod
    def live(standin: Standin) -> set[str]:
        """Launch, observe and terminate two machines; return the actions called."""
        asked, before, provisioner = standin.request(*PAIR), standin.started(), standin.new_provisioner()
        standin.control.forget()
        allocation = provisioner.launch(asked)
        provisioner.observe(allocation)
        until(lambda: standin.alive() >= 2)
        provisioner.terminate(allocation)
        called = {call.action for call in standin.control.calls() if call.service not in OTHER_SERVICES}
        assert not standin.left()
        assert standin.started() <= before + 4
        return called

    @pytest.mark.parametrize("seed", range(2))
    @where("delay_listings", "calls_of_launch", "limit")
    def test_whatever_goes_wrong_no_node_has_two_machines(self, standin: Standin, seed: int) -> None:
        actions = self.actions(standin)
        dice = random.Random(seed)
        if standin.zones and dice.random() < 0.4:
            standin.limit(dice.choice([0, 1, 2]))
        faults = [LOSE, RESET, HTML, standin.refusals["transient"], standin.refusals["throttled"]]
        for _ in range(8):
            times, skip = dice.choice([1, 2, None]), dice.randint(0, 4)
            standin.control.fail(dice.choice(actions), dice.choice(faults), times=times, skip=skip)
        asked = standin.request(*(f"worker-{rank}.1" for rank in range(dice.choice([1, 2, 3]))))
        allocation = standin.unanswered(asked)
        for _ in range(3):
            try:
                allocation = standin.new_provisioner().launch(dataclasses.replace(asked, may_be_retry=True))
                settled(standin, allocation, len(asked.nodes))
                break
            except ProvisionError as error:
                assert error.error_class in {"transient", "throttled", "capacity"}
            standin.control.heal()
        standin.control.heal()
        end(standin, allocation)


class TestLateListings:
    @where("delay_listings")
    def test_what_is_not_shown_is_not_gone_nor_launched_twice(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request()
        standin.delay_listings()
        allocation = provisioner.launch(asked)
        for one in (provisioner, standin.new_provisioner()):
            assert {state.phase for state in one.observe(allocation)} <= {"pending", "running"}
        again = provisioner.launch(asked)
        assert again.machines == allocation.machines or not standin.once
        standin.show_listings()
        settled(standin, allocation, 1)
        end(standin, allocation)
        assert standin.started() == 1 or not standin.once

    @where("delay_listings")
    def test_an_answer_is_lost_as_well(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = dataclasses.replace(standin.request(), may_be_retry=True)
        standin.delay_listings()
        standin.control.fail(standin.start, LOSE, times=1 if standin.target == "vertex" else None)
        try:
            provisioner.launch(asked)
        except ProvisionError as error:
            assert error.error_class == "transient"
        standin.control.heal()
        try:
            standin.new_provisioner().launch(asked)
        except ProvisionError as error:
            assert error.error_class == "transient"
        standin.show_listings()
        allocation = standin.new_provisioner().launch(asked)
        settled(standin, allocation, 1)
        end(standin, allocation)


class TestAllOrNone:
    @where("limit")
    def test_room_for_some_is_none(self, standin: Standin) -> None:
        standin.limit(1)
        assert refusal(standin, standin.request(*PAIR)).error_class == "capacity"
        standin.limit(2)
        allocation = standin.new_provisioner().launch(standin.request(*PAIR))
        wait_for_phases(standin, allocation, standin.runs)
        assert standin.alive() == 2

    @where("limit", "zones")
    def test_zones_with_room_are_named_as_offers_do(self, standin: Standin, provisioner: Provisioner) -> None:
        standin.limit(0)
        why = refusal(standin, standin.request())
        assert (why.error_class, why.scope) == ("capacity", "zone")
        assert {*why.hints} <= {*standin.zones} - {standin.zone}
        assert f"start worker-0.1 (on-demand {standin.machine_type})" in str(why)
        assert len(standin.control.calls(standin.start)) == 1, "no capacity is an answer"
        assert refusal(standin, standin.request()).error_class == "capacity"
        standin.limit(1)
        assert provisioner.launch(standin.request()).machines

    @where("limit", "zones")
    def test_many_are_asked_for_at_once_but_not_before_one_was_got(self, standin: Standin) -> None:
        standin.limit(0)
        many = [f"worker-{rank}.1" for rank in range(6)]
        assert refusal(standin, standin.request(*many)).error_class == "capacity"
        assert len(standin.control.calls(standin.start)) == 1
        standin.limit(5)
        assert refusal(standin, standin.request(*many)).error_class == "capacity"
        standin.limit(6)
        allocation = standin.new_provisioner().launch(standin.request(*many))
        assert list(allocation.machines) == many and standin.alive() == 6

    @where("limit", "zones")
    def test_without_a_zone_all_of_the_region_are_tried(self, standin: Standin) -> None:
        for zone in standin.zones:
            standin.limit(0, "spot", zone)
        why = refusal(standin, standin.request(zone=None, market="spot"))
        assert (why.error_class, why.scope) == ("capacity", "region")
        standin.limit(2, "spot", standin.zones[1])
        asked = standin.request(*PAIR, zone=None, market="spot")
        allocation = standin.new_provisioner().launch(asked)
        assert allocation.machines == standin.new_provisioner().launch(asked).machines
        assert standin.alive() == 2

    @where("limit", "zones")
    def test_a_zone_where_some_machines_have_booted_is_the_last_of_an_attempt(self, standin: Standin) -> None:
        """They may have claimed their nodes in the job dir, so machines in another zone could not claim them."""
        for zone in standin.zones:
            standin.limit(1, "spot", zone)
        asked = standin.request(*PAIR, zone=None, market="spot")
        assert refusal(standin, asked).error_class == "capacity"
        assert standin.started() == 1
        for zone in standin.zones:
            standin.limit(2, "spot", zone)
        assert standin.new_provisioner().launch(dataclasses.replace(asked, attempt=2)).machines


class TestLosing:
    @where("crash")
    def test_a_lost_node_is_gone_and_not_started_again(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(*PAIR, market="spot")
        allocation = provisioner.launch(asked)
        wait_for_phases(standin, allocation, "running")
        standin.crash(allocation.machines[SECOND])
        wait_for_phases(standin, allocation, "running", "gone")
        again = standin.new_provisioner().launch(asked)
        assert again.machines == allocation.machines
        until(lambda: standin.alive() == 1)
        replaced = standin.new_provisioner().launch(dataclasses.replace(asked, nodes=standin.request(*REPLACED).nodes))
        assert replaced.machines[PAIR[0]] == allocation.machines[PAIR[0]]
        wait_for_phases(standin, replaced, "running")
        until(lambda: standin.alive() == 2)
        end(standin, replaced)

    @where("crash")
    def test_some_are_removed_and_nothing_else(self, standin: Standin, provisioner: Provisioner) -> None:
        allocation = provisioner.launch(standin.request(*PAIR))
        for _ in range(2):
            standin.watcher.remove(allocation, [SECOND])
        wait_for_phases(standin, allocation, "running", "gone")
        until(lambda: standin.alive() == 1)
        provisioner.remove(allocation, [])
        until(lambda: standin.alive() == 1)

    @where("crash", "limit", "zones")
    def test_a_replacement_that_cannot_be_had_leaves_the_others(
        self, standin: Standin, provisioner: Provisioner
    ) -> None:
        asked = standin.request(*PAIR, "worker-2.1")
        allocation = provisioner.launch(asked)
        standin.watcher.remove(allocation, [SECOND, "worker-2.1"])
        until(lambda: standin.alive() == 1)
        standin.limit(2)
        asked = dataclasses.replace(asked, nodes=standin.request(*REPLACED, "worker-2.2").nodes)
        assert refused(standin.new_provisioner(), asked).error_class == "capacity"
        until(lambda: standin.alive() == 1)
        standin.limit(3)
        asked = dataclasses.replace(asked, nodes=standin.request(PAIR[0], "worker-1.3", "worker-2.3").nodes)
        again = standin.new_provisioner().launch(asked)
        assert again.machines[PAIR[0]] == allocation.machines[PAIR[0]] and standin.alive() == 3

    @where("preempt")
    def test_what_the_provider_has_taken_is_said_to_be(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request(market="spot")
        allocation = provisioner.launch(asked)
        standin.preempt(allocation.machines["worker-0.1"])
        [state] = wait_for_phases(standin, allocation, "gone")
        assert state.reclaimed and state.refused is None and standin.taken in state.detail
        ended = standin.watcher.terminate(standin.unanswered(asked))
        assert ended is not None and ended.has_started
        assert not standin.left()


class TestEnding:
    def test_of_what_never_was(self, standin: Standin, provisioner: Provisioner) -> None:
        asked = standin.request()
        ended = provisioner.terminate(standin.unanswered(asked))
        assert ended is None or not ended.has_started
        assert not standin.left() and provisioner.find(OWNER) == []

    @where("end_slowly")
    def test_it_is_over_when_it_returns(self, standin: Standin, provisioner: Provisioner) -> None:
        allocation = provisioner.launch(standin.request(*PAIR))
        standin.end_slowly()
        ended = provisioner.terminate(allocation)
        assert (standin.alive(), standin.left() or None) == (0, None)
        assert ended is not None and ended.has_started


class TestErrors:
    @where("start")
    def test_a_refusal_has_its_class_and_leaves_nothing(self, standin: Standin, provisioner: Provisioner) -> None:
        for error_class, fault in standin.refusals.items():
            asked = standin.request()
            standin.control.forget()
            standin.control.fail(standin.start, fault, times=None)
            error = refused(provisioner, asked)
            assert error.error_class in REPEATED or len(standin.control.calls(standin.start)) == 1
            assert (error.error_class, error.code) == (error_class, fault.code)
            assert " ".join(fault.message.split()).rstrip(".") in str(error)
            standin.control.heal()
            if not error.is_final:
                allocation = standin.new_provisioner().launch(asked)
                until(lambda: standin.alive() == 1)
                end(standin, allocation)
            until(lambda: not standin.left())

    @where("calls_of_launch")
    def test_whatever_call_is_denied_nothing_is_left(self, standin: Standin) -> None:
        """A launch may succeed if the denied call only reads a quota or a price."""
        standin.control.forget()
        first = standin.new_provisioner().launch(standin.request())
        actions = {call.action for call in standin.control.calls() if call.service not in OTHER_SERVICES}
        end(standin, first)
        for action in sorted(actions):
            asked = standin.request()
            standin.control.fail(action, standin.refusals["auth"], times=None)
            try:
                allocation = standin.new_provisioner().launch(asked)
            except ProvisionError as error:
                assert error.error_class == "auth" and error.code in str(error), (action, error)
                standin.control.heal()
                until(lambda: not standin.left())
            else:
                standin.control.heal()
                end(standin, allocation)

    @where("start")
    def test_throttling_is_waited_for(self, standin: Standin, provisioner: Provisioner) -> None:
        slower = standin.refusals.get("throttled") or standin.refusals["transient"]
        standin.control.fail(standin.start, slower, times=2)
        assert provisioner.launch(standin.request()).machines
        until(lambda: standin.alive() == 1)

    @where("limit_quota")
    def test_too_small_a_quota_is_told_before_anything_is_made(
        self, standin: Standin, provisioner: Provisioner
    ) -> None:
        standin.limit_quota(1)
        error = refused(provisioner, standin.request(*PAIR, lifetime_s=30 * 86_400))
        assert (error.error_class, error.scope) == ("quota", "region")
        assert not standin.control.calls(standin.start) and not standin.left()

    @where("stranger")
    def test_machines_are_not_gone_because_the_credentials_are_of_another_account(
        self, standin: Standin, provisioner: Provisioner
    ) -> None:
        asked = standin.request()
        allocation = provisioner.launch(asked)
        mine = provisioner.account()
        assert allocation.account == mine != ""
        with pytest.MonkeyPatch.context() as elsewhere:
            stranger: Any = standin.stranger(elsewhere)
            verbs = [stranger.observe, stranger.terminate, lambda one: stranger.remove(one, list(one.machines))]
            verbs += [lambda _: stranger.launch(dataclasses.replace(asked, account=mine))]
            verbs += [lambda _: stranger.check_account(mine)]
            if hasattr(stranger, "explain"):
                verbs.append(lambda one: stranger.explain(one, "worker-0.1"))
            for verb in verbs:
                for one in (allocation, dataclasses.replace(allocation, machines=allocation.machines)):
                    with pytest.raises(ProvisionError) as caught:
                        verb(one)
                    assert (caught.value.error_class, caught.value.code) == ("auth", "OtherAccount")
        assert (
            standin.new_provisioner().launch(dataclasses.replace(asked, account=mine)).machines == allocation.machines
        )
        until(lambda: standin.alive() == 1)

    @where("break_credentials")
    def test_credentials_that_were_refused_are_read_again(self, standin: Standin) -> None:
        provisioner = standin.of_settings()
        with pytest.MonkeyPatch.context() as wrong:
            standin.break_credentials(wrong)
            error = refused(provisioner, standin.request())
            assert (error.error_class, error.scope) == ("auth", "cloud")
        assert provisioner.launch(standin.request()).machines

    @where("endpoint")
    def test_an_endpoint_that_is_not_encrypted_is_refused(
        self, standin: Standin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = standin.request()
        monkeypatch.setenv(*standin.endpoint)
        error = refused(standin.new_provisioner(), asked)
        assert error.error_class == "invalid" and "not encrypted" in str(error)

    @where("reserve")
    def test_a_reservation_is_launched_into_or_nothing_is_made(
        self, standin: Standin, provisioner: Provisioner
    ) -> None:
        asked = standin.request(*PAIR, market="reservation")
        for places in (0, 1):
            if places:
                standin.reserve(places)
            assert refused(provisioner, asked).error_class == "capacity"
            assert not standin.left() and not standin.control.calls(standin.start)


class TestPrice:
    def test_what_is_not_known_is_none(self, standin: Standin, provisioner: Provisioner) -> None:
        """price() never raises."""
        for market in ("spot", "on-demand", "flex-start"):
            role = RoleOffer("worker", 2, "no-such-type", None, Fraction(0), None, None, None)
            place = (standin.target, standin.region, standin.zone, market)
            offer = Offer(*place, (role,), 100.0, Decimal(0), None, None)
            assert provisioner.price(offer) is None
            if standin.start:
                standin.control.fail("*", HTML, times=None)
                assert standin.new_provisioner().price(offer) is None
                standin.control.heal()


class TestCheck:
    """The checks of `cloudgpu check`."""

    def test_all_is_well_and_nothing_is_changed(self, standin: Standin) -> None:
        results = checked(standin, 180.0)
        assert results and {one.status for one in results} <= {"ok", "warning"}, results
        assert all(one.message and "\n" not in one.message for one in results)
        json.dumps([one.values for one in results])
        assert not standin.started()
        if standin.reads:
            assert standin.control.calls(standin.reads) and not standin.control.calls(f"!{standin.reads}")

    @where("break_credentials")
    def test_what_is_wrong_with_credentials_is_said_once(
        self, standin: Standin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        standin.break_credentials(monkeypatch)
        results = checked(standin, 180.0)
        [wrong] = [one for one in results if one.status == "error"]
        assert wrong.subject == "credentials" and wrong.fix
        assert results[-1].status == "skipped" and "credentials first" in results[-1].message

    @where("reads")
    def test_a_service_that_hangs_costs_the_timeout(self, standin: Standin) -> None:
        standin.control.fail("*", HANG, times=None)
        begun = time.monotonic()
        results = checked(standin, 1.0)
        assert time.monotonic() - begun < TIMEOUT_S
        assert "no answer within 1 s" in [one.message for one in results if one.status == "error"]

    @where("reads")
    def test_every_answer_is_an_error(self, standin: Standin) -> None:
        """No fault of a service is a traceback, or counts as well."""
        for fault in (HTML, error("AccessDenied", 403, "no\x1b[31m"), error("weird", 418), error("odd", 200)):
            standin.control.heal()
            standin.control.fail("*", fault, where={"service": "!login|oauth2|sts"}, times=None)
            results = checked(standin, 2.0)
            assert {one.status for one in results} & {"error", "warning"}, (fault, results)


def checked(standin: Standin, timeout_s: float) -> list[CheckResult]:
    """Return the results of a target's checks."""
    found = target_of(standin.target)
    assert found is not None and found.check, f"{standin.target} has no checks"
    return run_steps(code_of(standin.target, found.check)(CheckRequest()), timeout_s)


class TestManyJobs:
    @where("calls_of_look")
    def test_a_look_is_shared(self, standin: Standin, provisioner: Provisioner) -> None:
        jobs = [provisioner.launch(standin.request()) for _ in range(3)]
        for one in jobs:
            wait_for_phases(standin, one, standin.runs)
        watcher = standin.new_provisioner(StillClock())
        standin.control.forget()
        with ThreadPoolExecutor(8) as pool:
            states = list(pool.map(watcher.observe, jobs * 12))
        assert all(state.phase == standin.runs for [state] in states)
        calls = [call.action for call in standin.control.calls() if call.service not in OTHER_SERVICES]
        assert len(calls) <= standin.calls_of_look, calls

    @where("calls_of_launch")
    def test_launches_and_ends_at_once(self, standin: Standin, provisioner: Provisioner) -> None:
        jobs = [standin.request() for _ in range(6)]
        standin.control.forget()
        with ThreadPoolExecutor(len(jobs)) as pool:
            allocations = list(pool.map(provisioner.launch, jobs))
            until(lambda: standin.alive() == len(jobs) == standin.started())
            assert len(standin.control.calls()) <= 1 + standin.calls_of_launch * len(jobs)
            list(pool.map(provisioner.terminate, allocations))
        assert not standin.left()
