"""Inputs and outputs of a real node: inputs exist before the setup, and outputs are copied however the program ends."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import pytest

from cloudgpu.protocol.jobdir import AttemptRecord, JobDir, attempt_key
from cloudgpu.protocol.outputs import find_outputs
from cloudgpu.runtime.agent import agent as agent_module

from ..standins import s3
from ..standins.agents import World, until, world

__all__ = ["world"]

WRITE = "mkdir -p results/deep && echo loss > results/deep/loss.txt && echo model > model.pt"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


def test_inputs_are_there_before_the_setup(world: World, store: s3.S3) -> None:
    store.objects["data/digits/a"] = b"seven\n"
    world.job("cat data/a", setup="cat data/a", inputs={"data": "s3://bucket/data/digits"})
    assert world.run().outcome == "succeeded"
    assert world.texts() == ["seven", "seven"]


def test_inputs_that_are_not_there_end_the_job_with_a_reason(world: World, store: s3.S3) -> None:
    world.job("true", inputs={"data": "s3://bucket/nowhere"})
    result = world.run()
    assert (result.outcome, result.reason) == ("error", "there is nothing at s3://bucket/nowhere")


@pytest.mark.parametrize("end", ["true", "exit 3"])
def test_outputs_are_copied_however_the_program_ends(world: World, end: str) -> None:
    world.job(f"{WRITE}; {end}", outputs=["results", "model.pt", "missing"])
    assert world.run().outcome == ("succeeded" if end == "true" else "failed")
    assert world.dir.get("outputs/results/deep/loss.txt") == b"loss\n"
    assert world.dir.get("outputs/model.pt") == b"model\n"
    assert world.dir.list("outputs") == ["outputs/model.pt", "outputs/results/deep/loss.txt"]
    assert world.result().missing_outputs == ["missing"]
    assert any(text.startswith("outputs: there is no missing") for text in world.texts("agent"))
    found = {output.path: output for output in find_outputs(world.dir).found}
    assert found["model.pt"].sha256 == {hashlib.sha256(b"model\n").hexdigest()}
    assert {output.attempt for output in found.values()} == {1}


def test_a_required_output_that_is_missing_fails_the_program(world: World) -> None:
    world.job(WRITE, outputs=["results", "nope", "model.pt"], required_outputs=["nope", "model.pt"])
    result = world.run()
    assert (result.outcome, result.exit_code, result.final) == ("failed", 0, True)
    assert result.reason == "required outputs are missing: nope"
    assert world.dir.exists("outputs/model.pt")


def test_a_required_output_that_cannot_be_written_is_missing(world: World, store: s3.S3) -> None:
    world.dir = JobDir(store.url)
    store.fail("PUT", "outputs/model.pt", status=403, code="AccessDenied")
    world.job(WRITE, outputs=["results", "model.pt"], required_outputs=["model.pt"])
    assert world.run().reason == "required outputs are missing: model.pt"
    assert any("outputs/model.pt could not be written" in text for text in world.texts("agent"))


def test_a_failure_of_the_program_comes_before_a_missing_output(world: World) -> None:
    world.job("exit 3", outputs=["nope"], required_outputs=["nope"])
    result = world.run()
    assert (result.outcome, result.exit_code, result.final) == ("failed", 3, False)


def test_what_came_with_the_code_is_no_output(world: World) -> None:
    code = dict.fromkeys(("results/kept", "results/same", "results/replaced", "old/only"), "old")
    run = "printf new > results/replaced; cp results/same x; mv x results/moved; printf made > results/made"
    world.job(run, code=code, outputs=["results", "old", "results/kept"])
    assert world.run().outcome == "succeeded"
    assert world.dir.list("outputs") == ["outputs/results/made", "outputs/results/moved", "outputs/results/replaced"]
    assert world.dir.get("outputs/results/replaced") == b"new"
    assert world.result().missing_outputs == ["old", "results/kept"]


def test_what_an_earlier_attempt_or_the_program_itself_wrote_is_not_missing(world: World) -> None:
    write = "from cloudgpu.runtime import write_output; write_output('metrics.json', '{}')"
    world.job([sys.executable, "-c", write], outputs=["metrics.json", "results"], required_outputs=["results"])
    world.dir.put("outputs/results/loss.txt", b"of attempt 0")
    assert world.run().outcome == "succeeded"
    assert world.result().missing_outputs == []


def test_the_checksums_of_many_outputs_do_not_cost_the_time_to_copy_them(world: World) -> None:
    run = "head -c 300000000 /dev/zero > model.pt; trap 'exit 75' TERM; touch there; while :; do sleep 0.1; done"
    world.job(run, outputs=["model.pt"])
    agent = world.start(0)
    until((world.home() / "code/there").exists)
    world.stop(12.0)
    assert agent.wait(180) == agent_module.DONE
    assert world.dir.size("outputs/model.pt") == 300_000_000
    assert any("the time is too short for the checksums of 1 files" in text for text in world.texts("agent"))


@pytest.mark.parametrize("stopped", [True, False])
def test_outputs_are_copied_when_the_node_is_stopped_or_preempted(world: World, stopped: bool) -> None:
    world.job(f"trap 'exit 75' TERM; {WRITE}; while :; do sleep 0.1; done", outputs=["results"])
    agent = world.start(0)
    until((world.home() / "code/model.pt").exists)
    if stopped:
        world.stop(20.0)
    else:
        world.notice(20.0)
    assert agent.wait(180) == agent_module.DONE
    assert world.result().outcome == ("stopped" if stopped else "preempted")
    assert world.dir.get("outputs/results/deep/loss.txt") == b"loss\n"


def test_links_are_not_copied(world: World) -> None:
    world.job(f"{WRITE}; ln -s /etc/passwd results/link; ln -s . results/round", outputs=["results"])
    world.run()
    assert world.dir.list("outputs") == ["outputs/results/deep/loss.txt"]


def test_a_machine_that_was_superseded_copies_nothing(world: World) -> None:
    world.job(f"{WRITE}; while [ ! -e ../go ]; do sleep 0.05; done", outputs=["results"])
    agent = world.start(0)
    until((world.home() / "code/model.pt").exists)
    world.dir.put(attempt_key(2), AttemptRecord(2, {}, []).to_bytes())
    (world.home() / "go").touch()
    assert agent.wait(180) in (agent_module.DONE, agent_module.SUPERSEDED)
    assert world.dir.list("outputs") == []


def test_outputs_that_take_too_long_do_not_cost_the_result(
    world: World, store: s3.S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.dir = JobDir(store.url)
    store.fail("PUT", "outputs/", hang=True)
    world.job(f"trap 'exit 75' TERM; {WRITE}; while :; do sleep 0.1; done", outputs=["results"])
    agent = world.start(0)
    until((world.home() / "code/model.pt").exists)
    world.stop(6.0)
    assert agent.wait(180) == agent_module.DONE
    assert world.result().outcome == "stopped"
    assert any("could not be written in time" in text for text in world.texts("agent"))
