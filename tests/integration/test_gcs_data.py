"""A job's data in Cloud Storage: checkpoints, log, inputs and outputs, with real writers and agents, over the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.runtime.checkpoint.writer.client import finish_earlier

from ..standins.agents import World, until, world
from ..standins.faults import HTML, LOSE, Fault, error
from ..standins.gcp import Gcp
from ..standins.gcs import GcsControl
from ..standins.staging import Training, verified_steps, verify

__all__ = ["world"]

pytestmark = pytest.mark.timeout(600)

MB = 1 << 20
BUCKET = "jobs-of-tests"
URL = f"gs://{BUCKET}/jobs/a-1"


@pytest.fixture
def gcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcp]:
    with Gcp() as made:
        for name, value in made.environ(tmp_path / "settings").items():
            monkeypatch.setenv(name, value)
        GcsControl(made.url).make_bucket(BUCKET)
        yield made


@pytest.fixture
def remote(world: World, gcp: Gcp) -> World:
    """Move the nodes' job dir to Cloud Storage."""
    world.dir = JobDir(URL)
    return world


class TestCheckpoints:
    def test_they_are_kept_and_verify(self, gcp: Gcp) -> None:
        one = Training(URL, size=17 * MB + 3)
        for step in range(3):
            assert one.save(step, keep=2).committed
        assert finish_earlier(one.store, 0, 60)
        assert verified_steps(one.store) == [2, 1]
        store = GcsControl(gcp.url)
        assert {key.split("/")[3] for key in store.objects(BUCKET)} == {str(one.name(1)), str(one.name(2))}
        assert store.uploads() == 0
        one.client.close()

    @pytest.mark.parametrize("fault", [HTML, error("SlowDown", 503), error("SlowDown", 429)], ids=str)
    def test_a_service_that_is_overloaded_is_asked_again(self, gcp: Gcp, fault: Fault) -> None:
        one = Training(URL, size=9 * MB)
        gcp.control.fail("*", fault, times=2)
        gcp.control.fail("multipartUploads.*|objects.insert", fault, times=2, skip=3)
        assert one.save(1).committed
        assert sum(bool(call.fault) for call in gcp.control.calls()) == 4
        verify(one.store, one.name(1))
        one.client.close()

    @pytest.mark.parametrize("action", ["multipartUploads.create", "multipartUploads.uploadPart", "objects.insert"])
    def test_a_lost_acknowledgement_is_no_failure(self, gcp: Gcp, action: str) -> None:
        one = Training(URL, size=9 * MB)
        gcp.control.fail(action, LOSE, times=1)
        assert one.save(1).committed
        assert [call.fault for call in gcp.control.calls(action) if call.fault] == ["lose"]
        assert verified_steps(one.store) == [1]
        one.client.close()

    def test_a_lost_acknowledgement_of_a_whole_upload(self, gcp: Gcp) -> None:
        """A retry finds no such upload: this save may fail, but the next one works."""
        one = Training(URL, size=9 * MB)
        gcp.control.fail("multipartUploads.complete", LOSE, times=1)
        one.save(1)
        assert one.save(2, keep=1).committed
        assert finish_earlier(one.store, 0, 60)
        assert verified_steps(one.store) == [2]
        one.client.close()

    def test_a_commit_whose_answer_is_lost_counts(self, gcp: Gcp) -> None:
        one = Training(URL, size=MB)
        gcp.control.fail("objects.insert", LOSE, where={"name": "*COMMIT*"}, times=1)
        assert one.save(1).committed
        assert len(gcp.control.calls("objects.insert", name="*COMMIT*")) == 2
        assert verified_steps(one.store) == [1]
        one.client.close()

    def test_a_refusal_fails_the_save_with_its_reason(self, gcp: Gcp) -> None:
        one = Training(URL, size=9 * MB)
        gcp.control.fail("multipartUploads.*", error("AccessDenied", 403), times=None)
        assert "docs/reference/gcp-permissions.md (AccessDenied" in (one.save(1).error or "")
        gcp.control.heal()
        assert one.save(2).committed
        assert verified_steps(one.store) == [2]
        one.client.close()


class TestNode:
    def test_nothing_is_replaced_faster_than_the_service_allows(self, remote: World, gcp: Gcp) -> None:
        """The service allows one update per second of each object. The growing log and the heartbeat must keep to
        that."""
        remote.job("for i in $(seq 60); do echo line $i; sleep 0.1; done")
        remote.dir.list("")
        GcsControl(gcp.url).limit_updates(1.0)
        agent = remote.start(0)
        assert agent.wait(120) == 0
        lines = [line.text for line in LogReader(remote.dir).read()[0] if line.stream == "stdout"]
        assert lines == [f"line {number}" for number in range(1, 61)]
        calls = gcp.control.calls("objects.insert", name="*/log/*")
        assert len(calls) > 3
        assert sum(call.status == 429 for call in calls) <= 2  # the last lines are written without delay

    def test_inputs_and_outputs(self, remote: World) -> None:
        large = os.urandom(MB) * 33
        JobDir(f"gs://{BUCKET}/data").put("digits/deep/a", b"seven\n")
        JobDir(f"gs://{BUCKET}/data").put("digits/large", large)
        inputs = {"data": f"gs://{BUCKET}/data/digits"}
        remote.job("cp -r data copied; cat data/deep/a", inputs=inputs, outputs=["copied"])
        result = remote.run()
        assert result.outcome == "succeeded", result.reason
        assert remote.dir.list("outputs") == ["outputs/copied/deep/a", "outputs/copied/large"]
        assert remote.dir.get("outputs/copied/large") == large

    def test_inputs_that_are_not_there_end_the_job_with_a_reason(self, remote: World) -> None:
        remote.job("true", inputs={"data": f"gs://{BUCKET}/nowhere"})
        result = remote.run()
        assert (result.outcome, result.reason) == ("error", f"there is nothing at gs://{BUCKET}/nowhere")

    def test_a_service_that_fails_for_a_while_costs_nothing(self, remote: World, gcp: Gcp) -> None:
        remote.job("echo one; sleep 6; echo two")
        agent = remote.start(0)
        until(lambda: "one" in [line.text for line in LogReader(remote.dir).read()[0]])
        gcp.control.fail("objects.*", HTML, times=12)
        assert agent.wait(120) == 0
        assert [line.text for line in LogReader(remote.dir).read()[0] if line.stream == "stdout"] == ["one", "two"]
