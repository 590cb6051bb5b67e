"""Node states derived from an observed custom job, and the choice among several jobs of one launch."""

from __future__ import annotations

import dataclasses

import pytest

from cloudgpu.provisioners.base import NodeState
from cloudgpu.provisioners.vertex.job_cache import JobState, in_order, sighting

BASE = JobState(
    name="projects/1/locations/us-central1/customJobs/7",
    state="FAILED",
    tags={"cloudgpu-token": "t"},
    replicas={"chief-0.1": "workerpool0-0", "worker-0.1": "workerpool1-0"},
    market="on-demand",
    created=100.0,
    started=False,
    ended=200.0,
    code=8,
    message="",
)
NO_CAPACITY = "Resources are insufficient in region: us-central1. Try a different region"
QUOTA = "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_cpus"
EXITED = "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."


@pytest.mark.parametrize(
    ("state", "phase", "queued"),
    [
        ("QUEUED", "pending", True),
        ("PENDING", "pending", True),
        ("RUNNING", "running", False),
        ("CANCELLING", "running", False),
        ("PAUSED", "running", False),
        ("SOMETHING_NEW", "running", False),
        ("SUCCEEDED", "gone", False),
        ("CANCELLED", "gone", False),
    ],
)
def test_states(state: str, phase: str, queued: bool) -> None:
    seen = dataclasses.replace(BASE, state=state, code=0).as_node("chief-0.1")
    assert (seen.phase, seen.queued, seen.refused, seen.reclaimed) == (phase, queued, None, False)
    assert seen.detail == ("" if state == "RUNNING" else state)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, NO_CAPACITY, "capacity"),
        (8, QUOTA, "quota"),
        (7, "Permission 'iam.serviceAccounts.actAs' denied on service account x", "auth"),
        (5, "Container image gcr.io/p/x was not found", "invalid"),
        (3, "Accelerator NVIDIA_L4 is not available", "not_offered"),
    ],
)
def test_what_failed_before_it_ran_was_refused(code: int, message: str, kind: str) -> None:
    seen = dataclasses.replace(BASE, code=code, message=message).as_node("worker-0.1")
    assert seen.refused is not None and seen.phase == "gone"
    assert seen.refused.error_class == kind
    assert "us-central1" in str(seen.refused) and message in str(seen.refused)


def test_a_job_that_never_got_machines_was_refused() -> None:
    expired = dataclasses.replace(BASE, state="EXPIRED", code=0)
    seen = expired.as_node("chief-0.1")
    assert seen.phase == "gone" and seen.refused is not None
    assert (seen.refused.error_class, seen.refused.scope) == ("capacity", "region")
    assert dataclasses.replace(expired, started=True).as_node("chief-0.1").refused is None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (13, "Internal error occurred for the current attempt"),
        (8, "nobody knows what is exhausted"),
        (3, EXITED),
        (0, ""),
    ],
)
def test_what_may_have_run_or_may_pass_is_no_refusal(code: int, message: str) -> None:
    seen = dataclasses.replace(BASE, code=code, message=message).as_node("chief-0.1")
    assert (seen.refused, seen.reclaimed, seen.phase) == (None, False, "gone")


def test_what_ran_and_lost_its_machines_was_taken() -> None:
    ran = dataclasses.replace(BASE, started=True)
    assert dataclasses.replace(ran, message=NO_CAPACITY).as_node("chief-0.1") == NodeState(
        "chief-0.1", "gone", f"FAILED: {NO_CAPACITY}", reclaimed=True
    )
    for code, message in ((3, EXITED), (8, QUOTA), (13, "Internal error")):
        seen = dataclasses.replace(ran, code=code, message=message).as_node("chief-0.1")
        assert (seen.refused, seen.reclaimed) == (None, False)


def test_from_googles_answer() -> None:
    from google.cloud import aiplatform_v1

    job = aiplatform_v1.CustomJob.from_json(
        """{"name": "projects/1/locations/us-central1/customJobs/7", "state": "JOB_STATE_FAILED",
        "createTime": "1970-01-01T00:01:40Z", "endTime": "1970-01-01T00:03:20Z",
        "error": {"code": 8, "message": "no\\nroom"},
        "labels": {"cloudgpu-token": "t", "cloudgpu-market": "spot", "cloudgpu-pool0": "chief-0-1", "other": "x",
                   "cloudgpu-pool1": "worker-0-1"}}"""
    )
    seen = sighting(job)
    assert (seen.token, seen.region, seen.message) == ("t", "us-central1", "no room")
    assert dataclasses.replace(seen, tags=BASE.tags) == dataclasses.replace(BASE, market="spot", message="no room")
    assert seen.machines()["worker-0.1"] == "projects/1/locations/us-central1/customJobs/7/workerpool1-0"


def test_an_order_that_everybody_comes_to() -> None:
    jobs = [dataclasses.replace(BASE, name=name, created=created) for name, created in (("b", 1), ("a", 1), ("c", 0))]
    assert [one.name for one in in_order(jobs)] == ["c", "a", "b"]
