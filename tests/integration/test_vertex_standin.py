"""The Vertex AI stand-in keeps its word, over both wires, to Google's client as it is: tests of the product rest on it.

Every test but a few runs over REST and over gRPC: one state machine has to give the same to both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import aiplatform_v1
from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
from google.cloud.aiplatform_v1.services.job_service.transports.grpc import JobServiceGrpcTransport
from google.oauth2.service_account import Credentials

from cloudgpu.tests.standins.faults import HANG, HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error
from cloudgpu.tests.standins.gcp import NUMBER, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.vertex.control import ENDED, JobState, VertexControl
from cloudgpu.tests.standins.vertex.service import GRPC_ENDPOINT, JOBS

REGION = "us-central1"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
TYPE = "n1-standard-8"
PATIENT_S = 180.0
GPUS = "aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus"
CREATE = f"{JOBS}.create"


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp(boot=True) as gcp:
        yield gcp


@pytest.fixture(scope="module")
def environ(server: Gcp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return server.environ(tmp_path_factory.mktemp("keys"))


def credentials_of(environ: dict[str, str]) -> Credentials:
    return Credentials.from_service_account_file(  # type: ignore[no-any-return, no-untyped-call]
        environ["GOOGLE_APPLICATION_CREDENTIALS"], scopes=["https://www.googleapis.com/auth/cloud-platform"]
    )


def make_client(wire: str, environ: dict[str, str]) -> JobServiceClient:
    if wire == "grpc":
        channel = grpc.insecure_channel(environ[GRPC_ENDPOINT])
        return JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))
    credentials = credentials_of(environ)
    options = {"api_endpoint": environ["CLOUDGPU_GCP_ENDPOINT"]}
    return JobServiceClient(transport="rest", client_options=options, credentials=credentials)


def sh(text: str) -> tuple[str, str, str]:
    return "sh", "-c", text


IDLE = sh("trap 'exit 0' TERM; while true; do sleep 0.1; done")
UNTIL_TOLD = "until [ -e told ]; do sleep 0.1; done"
"""What a container does until Vertex.tell()."""


class Vertex:
    """Google's client, and the job that most tests make."""

    def __init__(self, gcp: Gcp, wire: str, client: JobServiceClient) -> None:
        self.url, self.gcp, self.wire, self.client = gcp.url, gcp.control, wire, client
        self.control = VertexControl(gcp.control)

    def create(self, *words: str, timeout: float = 180.0, parent: str = PARENT, **more: Any) -> Any:
        job = aiplatform_v1.CustomJob(custom_job(*words, **more))
        return self.client.create_custom_job(parent=parent, custom_job=job, timeout=timeout)

    def get(self, job: Any) -> Any:
        return self.client.get_custom_job(name=job.name, timeout=180)

    def names(self, text: str = "", parent: str = PARENT, **more: Any) -> list[str]:
        request = {"parent": parent, "filter": text, **more}
        return [job.display_name for job in self.client.list_custom_jobs(request=request, timeout=180)]

    def wait(self, job: Any, *states: str) -> Any:
        """Until it is in one of these."""
        return wait_for(lambda: found if (found := self.get(job)).state.name[10:] in (states or ENDED) else None)

    def told(self, job: Any) -> JobState:
        return next(one for one in self.control.jobs() if one.name == job.name)

    def consoles(self, job: Any) -> list[str]:
        """What its containers have printed."""
        return [one.console for one in self.told(job).containers]

    def tell(self, job: Any) -> None:
        """Its containers, which run, to go on."""
        for one in self.told(job).containers:
            Path(one.root, "told").touch()


@pytest.fixture(params=["rest", "grpc"])
def vertex(request: pytest.FixtureRequest, server: Gcp, environ: dict[str, str]) -> Vertex:
    server.control.reset()
    return Vertex(server, request.param, make_client(request.param, environ))


def pool(*words: str, replicas: int = 1, machine: str = TYPE, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    machine_spec: dict[str, Any] = {"machine_type": machine}
    if gpus:
        machine_spec |= {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": gpus}
    container = {"image_uri": "example.com/image:1", "command": list(words or ("true",)), **spec}
    return {"machine_spec": machine_spec, "replica_count": replicas, "container_spec": container}


def custom_job(
    *words: str,
    name: str = "job",
    pools: list[dict[str, Any]] | None = None,
    spec: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    **scheduling: Any,
) -> dict[str, Any]:
    scheduling = {"disable_retries": True, **scheduling}
    job_spec = {"worker_pool_specs": pools or [pool(*words)], "scheduling": scheduling, **(spec or {})}
    return {"display_name": name, "job_spec": job_spec, "labels": labels or {}}


def refusal(call: Callable[[], Any]) -> tuple[int, str]:
    """HTTP's status, which is the same over both wires, and the message."""
    with pytest.raises(GoogleAPICallError) as caught:
        call()
    return int(caught.value.code or 0), str(caught.value)


def runs(pid: int) -> bool:
    """A zombie is what is left of a process whose parent does not ask how it ended."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENT_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


# -- a job's life


def test_a_job_runs_its_container_and_succeeds(vertex: Vertex) -> None:
    made = vertex.create(*sh(f"echo hello; {UNTIL_TOLD}"), labels={"cloudgpu-token": "abc"}, strategy="SPOT")
    assert made.name.startswith(f"projects/{NUMBER}/locations/{REGION}/customJobs/")
    assert made.state in (aiplatform_v1.JobState.JOB_STATE_QUEUED, aiplatform_v1.JobState.JOB_STATE_PENDING)
    assert vertex.wait(made, "RUNNING").start_time is not None
    vertex.tell(made)
    done = vertex.wait(made)
    assert (done.state.name, done.error.code) == ("JOB_STATE_SUCCEEDED", 0)
    assert done.create_time <= done.start_time <= done.end_time
    assert done.job_spec.scheduling.strategy == aiplatform_v1.Scheduling.Strategy.SPOT
    told = vertex.told(made)
    assert (told.market, told.trouble, told.labels) == ("spot", [], {"cloudgpu-token": "abc"})
    assert [(one.replica, one.code, one.console) for one in told.containers] == [("workerpool0-0", 0, "hello\n")]


def test_a_replica_that_fails_is_the_jobs_end(vertex: Vertex) -> None:
    job = vertex.create(pools=[pool(*IDLE), pool(*sh("sleep 0.2; exit 3"), replicas=2)])
    done = vertex.wait(job)
    assert done.state.name == "JOB_STATE_FAILED"
    assert done.error.code == 3
    assert "The replica workerpool1-" in done.error.message and "non-zero status of 3." in done.error.message
    assert not any(one.running for one in vertex.told(job).containers)


def test_the_primary_replicas_end_is_that_of_all(vertex: Vertex) -> None:
    stubborn = sh("trap 'echo asked; exit 9' TERM; echo ready; while true; do sleep 0.1; done")
    job = vertex.create(pools=[pool(*sh(UNTIL_TOLD)), pool(*stubborn)])
    wait_for(lambda: vertex.consoles(job) == ["", "ready\n"])
    vertex.tell(job)
    assert vertex.wait(job).state.name == "JOB_STATE_SUCCEEDED"
    assert [(one.code, one.console) for one in vertex.told(job).containers] == [(0, ""), (9, "ready\nasked\n")]


def test_cancel(vertex: Vertex) -> None:
    job = vertex.create(*sh(f"trap '{UNTIL_TOLD}; exit 0' TERM; while true; do sleep 0.1; done"))
    vertex.wait(job, "RUNNING")
    vertex.client.cancel_custom_job(name=job.name, timeout=180)
    assert vertex.get(job).state.name == "JOB_STATE_CANCELLING"
    vertex.client.cancel_custom_job(name=job.name, timeout=180)  # once more
    vertex.tell(job)
    done = vertex.wait(job)
    assert (done.state.name, done.error.code) == ("JOB_STATE_CANCELLED", 1)
    status, text = refusal(lambda: vertex.client.cancel_custom_job(name=job.name, timeout=180))
    assert status == 400 and "terminal state" in text


def test_only_what_has_ended_can_be_deleted(vertex: Vertex) -> None:
    job = vertex.create(*IDLE)
    status, text = refusal(lambda: vertex.client.delete_custom_job(name=job.name, timeout=180))
    assert status == 400 and "cannot be deleted" in text
    vertex.client.cancel_custom_job(name=job.name, timeout=180)
    vertex.wait(job)
    deleting: Any = vertex.client.delete_custom_job(name=job.name, timeout=180)
    deleting.result(180)
    assert refusal(lambda: vertex.get(job))[0] == 404
    assert vertex.names() == []


def test_the_timeout_ends_a_job(vertex: Vertex) -> None:
    job = vertex.create(*sh("trap 'exit 0' TERM; while true; do sleep 0.1; done"), timeout=180, **timeout_of(1))
    done = vertex.wait(job)
    assert done.state.name == "JOB_STATE_CANCELLED" and "timeout" in done.error.message


def timeout_of(seconds: int) -> dict[str, Any]:
    return {"spec": {"scheduling": {"disable_retries": True, "timeout": {"seconds": seconds}}}}


# -- containers


def test_what_a_container_finds(vertex: Vertex) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    pools = [pool(*IDLE), pool(), pool("python3", "-c", program, replicas=2), pool(*IDLE)]
    pools[1] = {}
    pools[2]["container_spec"]["env"] = [{"name": "LR", "value": "0.1"}]
    output = {"output_uri_prefix": "gs://bucket/folder"}
    job = vertex.create(pools=pools, spec={"base_output_directory": output})
    second = wait_for(
        lambda: next(
            (one for one in vertex.told(job).containers if one.replica == "workerpool2-1" and one.console), None
        )
    )
    found = json.loads(second.console)
    spec = json.loads(found["CLUSTER_SPEC"])
    assert {name: len(addresses) for name, addresses in spec["cluster"].items()} == {
        "workerpool0": 1, "workerpool2": 2, "workerpool3": 1,
    }  # fmt: skip
    assert (spec["task"]["type"], spec["task"]["index"], spec["environment"]) == ("workerpool2", 1, "cloud")
    tf_config = json.loads(found["TF_CONFIG"])
    assert set(tf_config["cluster"]) == {"chief", "ps"}
    assert (tf_config["task"]["type"], tf_config["task"]["index"]) == ("ps", 1)
    assert found["AIP_CHECKPOINT_DIR"] == "gs://bucket/folder/checkpoints/"
    assert found["AIP_MODEL_DIR"] == "gs://bucket/folder/model/"
    assert found["LR"] == "0.1"
    assert found["CLOUD_ML_JOB_ID"] == job.name.rpartition("/")[2]
    assert found["HOME"] == f"{second.root}/root"
    assert "VIRTUAL_ENV" not in found and "GOOGLE_APPLICATION_CREDENTIALS" not in found


def test_the_account_of_a_container(vertex: Vertex) -> None:
    program = (
        "import os, urllib.request as u\n"
        "url = f'http://{os.environ[\"GCE_METADATA_HOST\"]}/computeMetadata/v1/'\n"
        "get = lambda path: u.urlopen(u.Request(url + path, headers={'Metadata-Flavor': 'Google'})).read().decode()\n"
        "print(get('instance/service-accounts/default/email'), get('project/project-id'))\n"
        "print(get('instance/service-accounts/default/token'))\n"
    )
    account = f"trainer@{PROJECT}.iam.gserviceaccount.com"
    job = vertex.create("python3", "-c", program, spec={"service_account": account})
    default = vertex.create("python3", "-c", program)
    assert vertex.wait(job).state.name == vertex.wait(default).state.name == "JOB_STATE_SUCCEEDED"
    console = vertex.told(job).containers[0].console.splitlines()
    assert console[0] == f"{account} {PROJECT}"
    headers = {"Authorization": f"Bearer {json.loads(console[1])['access_token']}"}
    assert requests.get(f"{vertex.url}/v1/{PARENT}/customJobs", headers=headers, timeout=180).status_code == 200
    assert vertex.gcp.calls(f"{JOBS}.list", caller=account)
    assert "gcp-sa-aiplatform-cc" in vertex.told(default).containers[0].console


def test_commands_are_expanded_as_kubernetes_does(vertex: Vertex) -> None:
    words = pool("echo", "$(LR) $(NOBODY) $$(LR)", env=[{"name": "LR", "value": "0.1"}])
    job = vertex.create(pools=[words])
    vertex.wait(job)
    assert vertex.told(job).containers[0].console == "0.1 $(NOBODY) $(LR)\n"


def test_everything_in_a_container_ends_with_its_first_process(vertex: Vertex) -> None:
    job = vertex.create(*sh("setsid sh -c 'sleep 300' & echo $!"))
    vertex.wait(job)
    assert not runs(int(vertex.told(job).containers[0].console))


def test_a_first_process_that_does_not_handle_sigterm_does_not_get_it(vertex: Vertex) -> None:
    job = vertex.create(*sh(f"{UNTIL_TOLD}; sleep 2.5; echo through"))
    vertex.wait(job, "RUNNING")
    vertex.control.preempt(vertex.told(job).id, seconds=60.0)
    vertex.tell(job)
    done = vertex.wait(job)
    assert done.state.name == "JOB_STATE_FAILED"
    assert vertex.told(job).containers[0].console == "through\n"


def test_a_container_that_cannot_be_made(vertex: Vertex) -> None:
    job = vertex.create("/no/such/program")
    assert vertex.wait(job).state.name == "JOB_STATE_FAILED"
    assert "No such file" in vertex.told(job).containers[0].trouble[0]


# -- capacity, quota, what is offered


def test_no_capacity_is_told_by_a_job_that_has_failed(vertex: Vertex) -> None:
    vertex.control.set_capacity(TYPE, REGION, "spot", 1)
    first = vertex.create(*IDLE, strategy="SPOT")
    vertex.wait(first, "RUNNING")
    vertex.control.set_pending(600.0)
    second = vertex.create(*IDLE, strategy="SPOT")
    vertex.wait(second, "PENDING")
    vertex.control.set_pending(0.0)
    done = vertex.wait(second)
    assert (done.state.name, done.error.code) == ("JOB_STATE_FAILED", 8)
    assert done.error.message.startswith("Resources are insufficient in region: us-central1.")
    assert not done.start_time
    elsewhere = vertex.create(*IDLE, parent=PARENT.replace(REGION, "us-east1"), strategy="SPOT")
    on_demand = vertex.create(*IDLE)
    assert vertex.wait(elsewhere, "RUNNING") and vertex.wait(on_demand, "RUNNING")


def test_a_place_is_free_again_once_the_job_has_ended(vertex: Vertex) -> None:
    vertex.control.set_capacity(TYPE, REGION, "on-demand", 1)
    assert vertex.wait(vertex.create()).state.name == "JOB_STATE_SUCCEEDED"
    assert vertex.wait(vertex.create()).state.name == "JOB_STATE_SUCCEEDED"


def test_flex_start_waits_for_capacity(vertex: Vertex) -> None:
    vertex.control.set_capacity(TYPE, REGION, "flex-start", 0)
    job = vertex.create(strategy="FLEX_START", max_wait_duration={"seconds": 1_000})
    short = vertex.create(strategy="FLEX_START", max_wait_duration={"seconds": 1})
    assert vertex.wait(short).error.code == 8
    assert vertex.get(job).state.name == "JOB_STATE_PENDING"
    vertex.control.set_capacity(TYPE, REGION, "flex-start", 1)
    assert vertex.wait(job).state.name == "JOB_STATE_SUCCEEDED"


def test_quota(vertex: Vertex) -> None:
    vertex.control.set_quota(REGION, GPUS, 1)
    status, text = refusal(lambda: vertex.create(pools=[pool(gpus=2)]))
    assert status == 429 and f"The following quota metrics exceed quota limits: {GPUS}" in text
    first = vertex.create(*IDLE)
    vertex.wait(first, "RUNNING")
    second = vertex.create()
    spot = vertex.create(strategy="SPOT")  # has quotas of its own
    assert vertex.wait(spot).state.name == "JOB_STATE_SUCCEEDED"
    assert vertex.get(second).state.name == "JOB_STATE_QUEUED"
    vertex.client.cancel_custom_job(name=first.name, timeout=180)
    assert vertex.wait(second).state.name == "JOB_STATE_SUCCEEDED"


def test_a_type_that_is_not_offered_in_a_region(vertex: Vertex) -> None:
    vertex.control.withdraw(TYPE, REGION)
    assert refusal(vertex.create) == (400, message(vertex, f'Machine type "{TYPE}" is not supported.'))
    vertex.create(parent=PARENT.replace(REGION, "us-east1"))


def message(vertex: Vertex, text: str) -> str:
    if vertex.wire == "grpc":
        return f"400 {text}"
    return f"400 POST {vertex.url}/v1/{PARENT}/customJobs?%24alt=json%3Benum-encoding%3Dint: {text}"


def test_a_preempted_replica_gets_sigterm_and_its_job_fails(vertex: Vertex) -> None:
    saving = sh("trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.1; done")
    job = vertex.create(pools=[pool(*saving), pool(*saving)], strategy="SPOT")
    wait_for(lambda: vertex.consoles(job) == ["ready\n", "ready\n"])
    vertex.control.preempt(vertex.told(job).id, "workerpool1-0", 60.0)
    done = vertex.wait(job)
    assert (done.state.name, done.error.code) == ("JOB_STATE_FAILED", 8)
    assert vertex.consoles(job) == ["ready\nsaved\n", "ready\nsaved\n"]


def test_the_service_itself_fails(vertex: Vertex) -> None:
    job = vertex.create(*IDLE)
    vertex.wait(job, "RUNNING")
    vertex.control.fail_inside(vertex.told(job).id)
    assert vertex.wait(job).error.code == 13


# -- what is refused

T4 = {"machine_type": TYPE, "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no pool": ({"pools": [{}]}, "job_spec.worker_pool_specs[0].replica_count"),
    "a chief of two": ({"pools": [pool(replicas=2)]}, "The replica count of the first worker pool must be 1."),
    "five pools": ({"pools": [pool()] * 5}, "There must be 1 to 4 worker pools."),
    "no image": ({"pools": [pool(image_uri="")]}, "job_spec.worker_pool_specs[0].container_spec.image_uri"),
    "half an accelerator": (
        {"pools": [{**pool(), "machine_spec": {"machine_type": TYPE, "accelerator_type": "NVIDIA_TESLA_T4"}}]},
        "Both `accelerator_type` and `accelerator_count` should be specified or none.",
    ),
    "no such type": ({"pools": [pool(machine="n9-standard-8")]}, 'Machine type "n9-standard-8" is not supported.'),
    "not with this type": (
        {"pools": [pool(machine="a2-highgpu-1g")]},
        'Accelerator "NVIDIA_TESLA_T4" is not supported for machine type "a2-highgpu-1g".',
    ),
    "not so many": ({"pools": [pool(gpus=3)]}, "Accelerator count 3 is not supported"),
    "too few for the type": ({"pools": [pool(machine="n1-standard-32")]}, "Accelerator count 1 is not supported"),
    "an accelerator is part of it": ({"pools": [pool(machine="g2-standard-8", gpus=0)]}, "must have an accelerator"),
    "no name": ({"name": ""}, "display_name"),
    "a label in capitals": ({"labels": {"Owner": "x"}}, "Field: labels"),
    "a label with a dot": ({"labels": {"node": "worker-0.1"}}, "Field: labels"),
    "not in a bucket": (
        {"spec": {"base_output_directory": {"output_uri_prefix": "s3://bucket"}}},
        "is no Cloud Storage location",
    ),
    "a wait for nothing": ({"max_wait_duration": {"seconds": 1}}, "with the strategy FLEX_START only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(vertex: Vertex, case: str) -> None:
    given, expected = REFUSED[case]
    status, text = refusal(lambda: vertex.create(**given))
    assert status == 400
    assert expected in text
    assert vertex.control.jobs() == []


def test_all_that_is_wrong_is_told_at_once(vertex: Vertex) -> None:
    _, text = refusal(lambda: vertex.create(name="", pools=[pool(replicas=2)]))
    assert "List of found errors:\t1.Field: display_name;" in text
    assert "\t2.Field: job_spec.worker_pool_specs[0].replica_count;" in text


def test_places_and_projects(vertex: Vertex) -> None:
    assert refusal(lambda: vertex.create(parent=f"projects/{PROJECT}/locations/us-central9"))[0] == 404
    assert refusal(lambda: vertex.create(parent=f"projects/another/locations/{REGION}"))[0] == 403
    assert refusal(lambda: vertex.client.get_custom_job(name=f"{PARENT}/customJobs/17", timeout=180))[0] == 404


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"displayName": "x", "machineTyp": 1}, "machineTyp"),
        ({"displayName": 1}, "displayName"),
        ({"displayName": "x", "jobSpec": {"scheduling": {"strategy": "SPOTTY"}}}, "SPOTTY"),
        ({"displayName": "x", "jobSpec": {"workerPoolSpecs": [{"machineSpec": {"gpu": 1}}]}}, "gpu"),
    ],
)
def test_bodies_are_read_strictly(server: Gcp, environ: dict[str, str], given: dict[str, Any], expected: str) -> None:
    credentials = credentials_of(environ)
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    answer = session.post(f"{server.url}/v1/{PARENT}/customJobs", json=given, timeout=180)
    assert answer.status_code == 400
    assert expected in answer.json()["error"]["message"]


# -- lists


def test_filters(vertex: Vertex) -> None:
    for name, labels in (("a1", {"owner": "me", "token": "1"}), ("a2", {"owner": "me"}), ("b", {"owner": "you"})):
        vertex.wait(vertex.create(name=name, labels=labels))
    vertex.create(*IDLE, name="c")
    assert vertex.names() == ["c", "b", "a2", "a1"]
    assert vertex.names("labels.owner=me") == ["a2", "a1"]
    assert vertex.names('labels.owner="me" AND labels.token:*') == ["a1"]
    assert vertex.names('display_name:"a*"') == ["a2", "a1"]
    assert vertex.names('display_name="a1" OR labels.owner=you') == ["b", "a1"]
    assert vertex.names('NOT state="JOB_STATE_SUCCEEDED"') == ["c"]
    assert vertex.names('state="JOB_STATE_SUCCEEDED" AND (labels.owner=you OR labels.token="1")') == ["b", "a1"]
    assert vertex.names('create_time<"2020-01-01T00:00:00Z"') == []
    assert vertex.names("labels.owner=me", parent=PARENT.replace(REGION, "us-east1")) == []
    for wrong in ("owner=me", "labels.owner", 'state<"x"', "(labels.owner=me", "labels.owner=me AND"):
        assert refusal(lambda wrong=wrong: vertex.names(wrong))[0] == 400  # type: ignore[misc]


def test_pages(vertex: Vertex) -> None:
    for number in range(5):
        vertex.create(name=f"job{number}")
    assert vertex.names(page_size=2) == ["job4", "job3", "job2", "job1", "job0"]
    assert len(vertex.gcp.calls(f"{JOBS}.list")) == 3


def test_a_mask_leaves_fields_out(vertex: Vertex) -> None:
    made = vertex.create(labels={"a": "b"})
    request: dict[str, Any] = {"parent": PARENT, "read_mask": {"paths": ["name", "labels"]}}
    (found,) = vertex.client.list_custom_jobs(request=request, timeout=180)
    assert (found.name, found.labels, found.display_name) == (made.name, {"a": "b"}, "")
    assert not found.job_spec.worker_pool_specs
    request["read_mask"] = {"paths": ["nothing"]}
    assert refusal(lambda: vertex.client.list_custom_jobs(request=request, timeout=180))[0] == 400


def test_a_new_job_is_missing_in_lists_for_a_while(vertex: Vertex) -> None:
    vertex.control.set_lag(1.0)
    job = vertex.create()
    assert vertex.get(job).name == job.name
    assert vertex.names() == []
    wait_for(vertex.names)


# -- faults


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (error("UNAVAILABLE", 503, "The service is currently unavailable."), 503, None),
        (error("INTERNAL", 500, "Internal error encountered."), 500, None),
        (error("RESOURCE_EXHAUSTED", 429, f"exceed quota limits: {GPUS}"), 429, None),
        (error("RATE_LIMIT_EXCEEDED", 429, "Quota exceeded for quota metric"), 429, "RATE_LIMIT_EXCEEDED"),
        (error("IAM_PERMISSION_DENIED", 403, "Permission denied"), 403, "IAM_PERMISSION_DENIED"),
        (HTML, 503, None),
    ],
    ids=lambda value: value.code or value.kind if isinstance(value, Fault) else "",
)
def test_an_error_has_the_same_status_and_reason_over_both_wires(
    vertex: Vertex, fault: Fault, status: int, reason: str | None
) -> None:
    vertex.gcp.fail(CREATE, fault)
    with pytest.raises(GoogleAPICallError) as caught:
        vertex.create()
    assert (caught.value.code, caught.value.reason) == (status, reason)
    assert [call.fault for call in vertex.gcp.calls(CREATE)] == [fault.kind]
    vertex.create()  # it happened once


@pytest.mark.parametrize(("fault", "done"), [(RESET, 0), (LOSE, 1)], ids=["reset", "lose"])
def test_the_connection_is_dropped(vertex: Vertex, fault: Fault, done: int) -> None:
    vertex.gcp.fail(CREATE, fault)
    expected = requests.ConnectionError if vertex.wire == "rest" else GoogleAPICallError
    with pytest.raises(expected) as caught:
        vertex.create()
    assert getattr(caught.value, "code", None) in (None, 503)
    assert len(vertex.control.jobs()) == done


def test_a_call_that_hangs_ends_at_its_own_timeout(vertex: Vertex) -> None:
    vertex.gcp.fail(CREATE, HANG)
    begun = time.monotonic()
    with pytest.raises((GoogleAPICallError, requests.Timeout)):
        vertex.create(timeout=1.0)
    assert 0.9 < time.monotonic() - begun < PATIENT_S
    assert vertex.control.jobs() == []


@pytest.mark.parametrize(("fault", "done"), [(KILL_BEFORE, 0), (KILL_AFTER, 1)], ids=["before", "after"])
def test_the_caller_is_killed(vertex: Vertex, environ: dict[str, str], fault: Fault, done: int) -> None:
    vertex.gcp.fail(CREATE, fault)
    program = (
        "from cloudgpu.tests.integration.test_vertex_standin import *\n"
        f"client = make_client({vertex.wire!r}, dict(os.environ))\n"
        "client.create_custom_job(parent=PARENT, custom_job=custom_job(), timeout=180)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ}, timeout=120, check=False, capture_output=True
    )
    assert ended.returncode == -9, ended.stderr
    assert len(vertex.control.jobs()) == done


def test_rules_look_at_labels_region_and_caller(vertex: Vertex) -> None:
    vertex.gcp.fail(CREATE, error("X", 400), where={"region": "us-east1", "labels.token": "a*", "caller": SUBMITTER})
    vertex.create(labels={"token": "abc"})
    east = PARENT.replace(REGION, "us-east1")
    vertex.create(parent=east, labels={"token": "xyz"})
    assert refusal(lambda: vertex.create(parent=east, labels={"token": "abc"}))[0] == 400
    assert len(vertex.gcp.calls(CREATE, machineType=TYPE)) == 3


def test_what_is_not_modelled_is_told_as_such(vertex: Vertex) -> None:
    assert refusal(lambda: vertex.create(disable_retries=False))[0] == 501
    no_command = {**pool(), "container_spec": {"image_uri": "example.com/image"}}
    assert refusal(lambda: vertex.create(pools=[no_command]))[0] == 501


def test_other_services_of_vertex_are_not_there(server: Gcp, tmp_path: Path) -> None:
    answer = requests.get(f"{server.url}/v1/{PARENT}/pipelineJobs", timeout=180)
    assert (answer.status_code, "no route" in answer.text) == (501, True)


def test_permissions(vertex: Vertex) -> None:
    vertex.gcp.enforce({SUBMITTER: [{"permissions": ["aiplatform.customJobs.list"]}]})
    assert vertex.names() == []
    status, text = refusal(vertex.create)
    assert status == 403 and "'aiplatform.customJobs.create' denied" in text
    assert (SUBMITTER, "aiplatform.customJobs.create") in vertex.gcp.used()
    vertex.gcp.enforce(None)


def test_a_call_over_rest_needs_a_token(server: Gcp) -> None:
    assert requests.get(f"{server.url}/v1/{PARENT}/customJobs", timeout=180).status_code == 401


def test_reset_ends_what_runs(vertex: Vertex) -> None:
    job = vertex.create(*sh("sleep 300 & echo $!; wait"))
    pid = int(wait_for(lambda: containers[0].console if (containers := vertex.told(job).containers) else ""))
    vertex.gcp.reset()
    assert not runs(pid)
    assert vertex.names() == []
