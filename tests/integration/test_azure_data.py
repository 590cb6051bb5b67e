"""Tests of checkpoints, logs, inputs and outputs in Blob Storage: real writers and agents against Azurite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.runtime.checkpoint.writer.client import finish_earlier

from ..standins.agents import World, until, world
from ..standins.azurite import ACCOUNT, shared
from ..standins.azurite.front import Front
from ..standins.faults import HTML, LOSE, RESET, Fault, error
from ..standins.local_jobs import home, submit_text
from ..standins.staging import Training, verified_steps, verify

__all__ = ["home", "world"]

pytestmark = pytest.mark.timeout(600)

MB = 1 << 20
CONTAINER = "jobs-of-tests"
URL = f"az://{CONTAINER}@{ACCOUNT}/jobs/a-1"


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with shared(CONTAINER) as blobs, Front(blobs) as made:
        for name, value in (blobs.environ() | {"AZURE_STORAGE_ENDPOINT": made.url}).items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def remote(world: World, front: Front) -> World:
    """Return a world whose job dir is in Blob Storage."""
    world.dir = JobDir(URL)
    return world


class TestJobDir:
    @pytest.mark.parametrize("fault", [LOSE, RESET, HTML, error("ServerBusy", 503)], ids=str)
    def test_a_claim_is_won_whatever_becomes_of_the_answer(self, front: Front, fault: Fault) -> None:
        front.fail("blob.put", fault)
        assert JobDir(URL).create("claim", b"mine")
        assert not JobDir(URL).create("claim", b"another's")
        assert [call.status for call in front.calls("blob.put", "claim")][-1] == 409

    @pytest.mark.parametrize(
        ("code", "status", "says"),
        [
            ("AuthorizationPermissionMismatch", 403, r"docs/reference/azure-permissions.md.*…/containers/blobs/read"),
            ("AuthorizationFailure", 403, "the storage account's firewall does not let this address in"),
            ("KeyBasedAuthenticationNotPermitted", 403, "the storage account allows no keys"),
            ("AccountIsDisabled", 403, "the storage account is disabled"),
        ],
    )
    def test_a_refusal_says_what_to_do(self, front: Front, code: str, status: int, says: str) -> None:
        JobDir(URL).put("there", b"x")
        front.fail("blob.get|blob.head", error(code, status), times=None)
        with pytest.raises(JobDirError, match=says):
            JobDir(URL).get("there")


class TestCheckpoints:
    def test_they_are_kept_and_verify(self, front: Front) -> None:
        one = Training(URL, size=17 * MB + 3)
        for step in range(3):
            assert one.save(step, keep=2).committed
        assert finish_earlier(one.store, 0, 60)
        assert verified_steps(one.store) == [2, 1]
        assert set(JobDir(URL).folders("checkpoints")) == {str(one.name(1)), str(one.name(2))}
        one.client.close()

    @pytest.mark.parametrize("fault", [HTML, error("ServerBusy", 503), error("OperationTimedOut", 500)], ids=str)
    def test_a_service_that_is_overloaded_is_asked_again(self, front: Front, fault: Fault) -> None:
        one = Training(URL, size=9 * MB)
        front.fail("*", fault, times=2)
        front.fail("block.put|blocks.commit|blob.put", fault, times=2, skip=3)
        assert one.save(1).committed
        assert sum(bool(call.fault) for call in front.calls()) == 4
        verify(one.store, one.name(1))
        one.client.close()

    @pytest.mark.parametrize("action", ["block.put", "blob.put"])
    def test_a_lost_acknowledgement_is_no_failure(self, front: Front, action: str) -> None:
        one = Training(URL, size=9 * MB)
        front.fail(action, LOSE)
        assert one.save(1).committed
        assert [call.fault for call in front.calls(action) if call.fault] == ["lose"]
        assert verified_steps(one.store) == [1]
        one.client.close()

    def test_a_lost_acknowledgement_of_a_whole_upload(self, front: Front) -> None:
        """The retry finds the blocks already committed, so this save fails; the next one succeeds."""
        one = Training(URL, size=9 * MB)
        front.fail("blocks.commit", LOSE)
        one.save(1)
        assert one.save(2, keep=1).committed
        assert finish_earlier(one.store, 0, 60)
        assert verified_steps(one.store) == [2]
        one.client.close()

    def test_a_commit_whose_answer_is_lost_counts(self, front: Front) -> None:
        one = Training(URL, size=MB)
        front.fail("blob.put", LOSE, where={"name": "*COMMIT*"})
        assert one.save(1).committed
        assert next(call.fault for call in front.calls("blob.put", "COMMIT")) == "lose"
        assert verified_steps(one.store) == [1]
        one.client.close()

    def test_a_refusal_fails_the_save_with_its_reason(self, front: Front) -> None:
        one = Training(URL, size=9 * MB)
        front.fail("block.put|blob.put", error("AuthorizationPermissionMismatch", 403), times=None)
        assert "docs/reference/azure-permissions.md" in (one.save(1).error or "")
        front.heal()
        assert one.save(2).committed
        assert verified_steps(one.store) == [2]
        one.client.close()


class TestNode:
    def test_inputs_and_outputs(self, remote: World) -> None:
        large = os.urandom(MB) * 33
        data = f"az://{CONTAINER}@{ACCOUNT}/data"
        JobDir(data).put("digits/deep/a", b"seven\n")
        JobDir(data).put("digits/large", large)
        remote.job("cp -r data copied; cat data/deep/a", inputs={"data": f"{data}/digits"}, outputs=["copied"])
        result = remote.run()
        assert result.outcome == "succeeded", result.reason
        assert remote.dir.list("outputs") == ["outputs/copied/deep/a", "outputs/copied/large"]
        assert remote.dir.get("outputs/copied/large") == large

    def test_inputs_that_are_not_there_end_the_job_with_a_reason(self, remote: World) -> None:
        nowhere = f"az://{CONTAINER}@{ACCOUNT}/nowhere"
        remote.job("true", inputs={"data": nowhere})
        result = remote.run()
        assert (result.outcome, result.reason) == ("error", f"there is nothing at {nowhere}")

    def test_a_service_that_fails_for_a_while_costs_nothing(self, remote: World, front: Front) -> None:
        remote.job("echo one; sleep 6; echo two")
        agent = remote.start(0)
        until(lambda: "one" in [line.text for line in LogReader(remote.dir).read()[0]])
        front.fail("*", HTML, times=12)
        assert agent.wait(120) == 0
        assert [line.text for line in LogReader(remote.dir).read()[0] if line.stream == "stdout"] == ["one", "two"]


class TestSubmission:
    def test_the_account_is_written_into_the_job(
        self, front: Front, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The account comes from an environment variable that the job's machines do not have."""
        JobDir(f"az://{CONTAINER}@{ACCOUNT}/data").put("digits/a", b"seven\n")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        text = f"name: digits\njob_dir: az://{CONTAINER}/jobs/\nrun: cat data/a\ninputs: {{data: az://{CONTAINER}/data/digits}}\n"
        job = submit_text(text, tmp_path)
        job.wait(timeout_s=120)
        assert job.job_dir == f"az://{CONTAINER}@{ACCOUNT}/jobs/{job.id}"
        assert job.state == "succeeded", job.reason
        record = JobRecord.from_bytes(JobDir(job.job_dir).get(JOB_KEY))
        assert record.inputs == {"data": f"az://{CONTAINER}@{ACCOUNT}/data/digits"}
        assert "seven" in [line.text for line in LogReader(JobDir(job.job_dir)).read()[0]]

    def test_one_whose_account_is_not_known_is_refused(self, front: Front, home: Path, tmp_path: Path) -> None:
        with pytest.raises(JobDirError, match="set AZURE_STORAGE_ACCOUNT"):
            submit_text(f"name: digits\njob_dir: az://{CONTAINER}/jobs\nrun: 'true'\n", tmp_path, supervise=False)
