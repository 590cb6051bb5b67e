"""Tests of the Compute Engine stand-in: it answers Google's own clients over HTTP like Compute Engine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.transport.requests import AuthorizedSession
from google.cloud import compute_v1 as cv
from google.oauth2 import service_account

from cloudgpu.runtime.notices.gcp import looks
from cloudgpu.tests.standins.faults import HANG, HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gce.filters import FilterError, compiled
from cloudgpu.tests.standins.gce.machines import InstanceState
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp

TYPE, GPU = "n1-standard-4", "nvidia-tesla-t4"
ZONE, OTHER = "us-central1-a", "us-central1-b"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
ALL = "https://www.googleapis.com/auth/cloud-platform"
PATIENT_S = 180.0
SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "automaticRestart": False}
Body = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp(boot=True) as gcp:
        yield gcp


class Project:
    """Google's clients for the stand-in, and the instance that most tests create."""

    def __init__(self, gcp: Gcp, folder: Path) -> None:
        self.url, self.control, self._folder = gcp.url, GceControl(gcp.url), folder
        self.session = self.session_of(SUBMITTER)
        options: dict[str, Any] = {"credentials": self.session.credentials, "client_options": {"api_endpoint": gcp.url}}
        self.instances = cv.InstancesClient(**options)
        self.zone_operations = cv.ZoneOperationsClient(**options)
        self.global_operations = cv.GlobalOperationsClient(**options)
        self.firewalls = cv.FirewallsClient(**options)
        self.disks = cv.DisksClient(**options)
        self.regions = cv.RegionsClient(**options)

    def session_of(self, email: str, *scopes: str) -> AuthorizedSession:
        key = self.control.key_file(email, self._folder / "key.json")
        made = service_account.Credentials.from_service_account_file(str(key), scopes=list(scopes or (ALL,)))  # type: ignore[no-untyped-call]
        return AuthorizedSession(made)  # type: ignore[no-untyped-call]

    def insert(self, name: str = "one", zone: str = ZONE, request_id: str = "", **more: Any) -> cv.Operation:
        """Insert an instance and return the completed operation."""
        return self.finish(self.begin(name, zone, request_id, **more), zone)

    def begin(self, name: str = "one", zone: str = ZONE, request_id: str = "", **more: Any) -> cv.Operation:
        request = cv.InsertInstanceRequest(
            project=PROJECT,
            zone=zone,
            instance_resource=cv.Instance.from_json(json.dumps(body(name, zone, **more))),
            request_id=request_id or str(uuid.uuid4()),
        )
        return self.instances.insert_unary(request=request, timeout=180, retry=None)

    def finish(self, operation: cv.Operation, zone: str = ZONE) -> cv.Operation:
        return self.zone_operations.wait(project=PROJECT, zone=zone, operation=operation.name, timeout=130)

    def delete(self, name: str = "one", zone: str = ZONE) -> cv.Operation:
        return self.finish(self.instances.delete_unary(project=PROJECT, zone=zone, instance=name, timeout=180), zone)

    def get(self, name: str = "one", zone: str = ZONE) -> cv.Instance:
        return self.instances.get(project=PROJECT, zone=zone, instance=name, timeout=180, retry=None)

    def raw(self, method: str, path: str, value: Any = None, **query: str) -> tuple[int, Any]:
        """Send a request to the JSON API; return status and body."""
        answer = self.session.request(  # type: ignore[no-untyped-call]
            method, f"{self.url}/compute/v1/projects/{path}", json=value, params=query, timeout=180
        )
        return answer.status_code, answer.json()

    def refusal(self, **more: Any) -> tuple[int, str, str]:
        """Insert an instance that must be refused; return status, reason and message."""
        status, answer = self.raw(
            "POST", f"{PROJECT}/zones/{ZONE}/instances", body(**{"name": "one", "zone": ZONE, **more})
        )
        assert "error" in answer, answer
        return status, answer["error"]["errors"][0]["reason"], answer["error"]["message"]

    def machine(self, name: str = "one") -> InstanceState:
        return next(one for one in reversed(self.control.instances()) if one.name == name)

    def events(self, name: str = "one") -> list[str]:
        """Return the types of an instance's operations, oldest first."""
        wanted = f'targetLink eq ".*/instances/{name}"'
        request = cv.AggregatedListGlobalOperationsRequest(project=PROJECT, filter=wanted)
        pages = self.global_operations.aggregated_list(request, timeout=180)
        return [operation.operation_type for _, scope in pages for operation in scope.operations]


def body(name: str, zone: str, *, script: str = "", **changes: Any) -> Body:
    """Return the body of instances.insert; `changes` replace fields, and None removes one."""
    made: Body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{TYPE}",
        "guestAccelerators": [{"acceleratorType": f"zones/{zone}/acceleratorTypes/{GPU}", "acceleratorCount": 1}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": True},
        "serviceAccounts": [{"email": MACHINE, "scopes": [ALL]}],
        "labels": {"of": "tests"},
    }
    if script:
        made["metadata"] = {"items": [{"key": "startup-script", "value": f"#!/bin/sh\n{script}\n"}]}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def scheduled(**changes: Any) -> Body:
    return {"onHostMaintenance": "TERMINATE", **changes}


@pytest.fixture
def project(server: Gcp, tmp_path: Path) -> Project:
    server.control.reset()
    return Project(server, tmp_path)


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENT_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


# -- faults


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (error("rateLimitExceeded", 403, "Rate Limit Exceeded"), exceptions.Forbidden, "rateLimitExceeded"),
        (error("backendError", 503), exceptions.ServiceUnavailable, "backendError"),
        (HTML, exceptions.ServiceUnavailable, None),
    ],
)
def test_an_error_in_the_services_own_form(project: Project, fault: Fault, kind: Any, reason: str | None) -> None:
    project.control.fail("instances.get", fault)
    with pytest.raises(kind) as caught:
        project.get()
    assert [one["reason"] for one in caught.value.errors] == ([reason] if reason else [])
    with pytest.raises(exceptions.NotFound):  # a fault occurs once by default
        project.get()


def test_a_rule_skips_and_counts_and_looks_at_parameters(project: Project) -> None:
    where = {"zone": OTHER, "machineType": "n1-*"}
    project.control.fail("instances.insert", error("backendError", 503), where=where, skip=1)
    project.insert("a", ZONE)
    project.insert("b", OTHER)
    with pytest.raises(exceptions.ServiceUnavailable):
        project.insert("c", OTHER)
    project.insert("d", OTHER)
    faults = [(call.zone, call.fault, call.caller) for call in project.control.calls("instances.insert")]
    assert faults == [(z, f, SUBMITTER) for z, f in ((ZONE, ""), (OTHER, ""), (OTHER, "error"), (OTHER, ""))]


@pytest.mark.parametrize(("fault", "there"), [(RESET, 0), (LOSE, 1)])
def test_a_reset_connection_did_nothing_and_a_lost_answer_everything(
    project: Project, fault: Fault, there: int
) -> None:
    project.control.fail("instances.insert", fault)
    with pytest.raises(Exception, match=r"Connection|Remote"):
        project.begin()
    wait_for(lambda: len(project.control.instances()) == there)


def test_a_hang_lasts(project: Project) -> None:
    project.control.fail("instances.get", HANG)
    with pytest.raises(Exception, match="timed out"):
        project.instances.get(project=PROJECT, zone=ZONE, instance="x", timeout=0.3, retry=None)
    with pytest.raises(exceptions.NotFound):  # other requests are served meanwhile
        project.get()


@pytest.mark.parametrize(("fault", "rules"), [(KILL_BEFORE, 0), (KILL_AFTER, 1)])
def test_the_caller_is_killed(project: Project, server: Gcp, tmp_path: Path, fault: Fault, rules: int) -> None:
    project.control.fail("firewalls.insert", fault)
    program = (
        "import os, google.auth\nfrom google.cloud import compute_v1 as cv\n"
        "o = {'api_endpoint': os.environ['CLOUDGPU_GCP_ENDPOINT']}\n"
        "c = cv.FirewallsClient(credentials=google.auth.default()[0], client_options=o)\n"
        "r = cv.Firewall(name='f', denied=[cv.Denied(I_p_protocol='all')])\n"
        "c.insert_unary(project=os.environ['GOOGLE_CLOUD_PROJECT'], firewall_resource=r, timeout=180)\n"
    )
    environ = server.environ(tmp_path / "keys")
    ended = subprocess.run([sys.executable, "-c", program], env=environ, timeout=180, check=False)
    assert ended.returncode == -9
    assert len(project.control.resources("firewalls")) == rules


def test_unimplemented_methods_answer_501_and_are_not_retried(project: Project) -> None:
    for path in (f"{PROJECT}/zones/{ZONE}/nodeGroups", "nonsense/of/a/path"):
        status, answer = project.raw("GET", path)
        assert (status, answer["error"]["code"]) == (501, 501), answer
        assert "not implemented" in answer["error"]["message"]


# -- authentication and permissions


def test_tokens_of_real_keys_only(project: Project) -> None:
    url = f"{project.url}/compute/v1/projects/{PROJECT}/zones"
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic eA=="}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=180)
        assert caught.value.code == 401
        assert json.load(caught.value)["error"]["status"] == "UNAUTHENTICATED"
    assert project.session.get(url, timeout=180).status_code == 200
    project.control.revoke(SUBMITTER)
    project.session.get(url, timeout=180)  # google-auth gets a new token
    assert [call.status for call in project.control.calls("zones.list")] == [401, 401, 401, 200, 401, 200]


def test_an_unsigned_assertion_gets_no_token(project: Project, tmp_path: Path) -> None:
    from google.auth.exceptions import RefreshError
    from google.auth.transport.requests import Request

    key = json.loads(project.control.key_file(SUBMITTER, tmp_path / "key.json").read_text())
    for change in ({"private_key_id": "0" * 40}, {"client_email": "someone@else.iam.gserviceaccount.com"}):
        made = service_account.Credentials.from_service_account_info({**key, **change}, scopes=[ALL])  # type: ignore[no-untyped-call]
        with pytest.raises(RefreshError, match="invalid_grant"):
            made.refresh(Request())


def test_scopes_limit_a_token(project: Project) -> None:
    storage = project.session_of(SUBMITTER, "https://www.googleapis.com/auth/devstorage.read_write")
    answer = storage.get(f"{project.url}/compute/v1/projects/{PROJECT}/zones", timeout=180)
    assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (403, "insufficientPermissions")


def test_permissions_are_obeyed_once_enforced(project: Project) -> None:
    needed = ["compute.instances.get", "compute.zoneOperations.get"]
    project.insert()
    project.control.enforce({SUBMITTER: [{"permissions": needed, "where": f"*/{ZONE}/*"}]})
    assert project.get().name == "one"
    with pytest.raises(exceptions.Forbidden, match=r"Required 'compute\.instances\.delete' permission"):
        project.delete()
    with pytest.raises(exceptions.Forbidden, match=r"Required 'compute\.instances\.get' permission"):
        project.get("one", OTHER)
    assert (SUBMITTER, "compute.instances.delete") in project.control.used()
    project.control.enforce(None)
    project.delete()


# -- operations and request ids


def test_an_insertion_is_an_operation(project: Project) -> None:
    project.control.set_times(operation=600.0)
    begun = project.begin()
    assert (begun.status, begun.operation_type, begun.user) == (cv.Operation.Status.RUNNING, "insert", SUBMITTER)
    assert project.get().status == "PROVISIONING"
    with pytest.raises(exceptions.BadRequest, match="is not ready"):
        project.delete()
    project.control.set_times(operation=0.02)
    project.control.run_delayed()
    done = project.finish(begun)
    assert (done.status, done.progress, done.name) == (cv.Operation.Status.DONE, 100, begun.name)
    assert project.get().status == "RUNNING"
    assert project.delete().status == cv.Operation.Status.DONE
    with pytest.raises(exceptions.NotFound):
        project.get()
    assert project.events() == ["insert", "delete"]


def test_wait_may_end_before_the_operation(project: Project) -> None:
    project.control.set_times(operation=600.0, wait=0.1)
    operation = project.begin()
    assert project.finish(operation).status == cv.Operation.Status.RUNNING
    project.control.run_delayed()
    assert project.finish(operation).status == cv.Operation.Status.DONE


def test_a_request_id_is_answered_with_the_operation_of_then(project: Project) -> None:
    identity = str(uuid.uuid4())
    first = project.insert(request_id=identity)
    assert project.begin(request_id=identity).name == first.name == project.begin("two", request_id=identity).name
    assert first.client_operation_id == identity
    project.delete()
    assert project.begin(request_id=identity).name == first.name  # and creates no machine
    assert project.control.resources("instances") == []
    elsewhere = project.insert(zone=OTHER, request_id=identity)
    assert elsewhere.name != first.name
    for wrong in ("nonsense", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(exceptions.BadRequest, match="requestId"):
            project.begin("three", request_id=wrong)


def test_the_same_name_again_is_refused_until_it_is_gone(project: Project) -> None:
    project.control.set_times(stopping=600.0)
    project.insert()
    assert project.refusal()[:2] == (409, "alreadyExists")
    deleting = project.instances.delete_unary(project=PROJECT, zone=ZONE, instance="one", timeout=180)
    assert project.get().status == "STOPPING"
    assert project.refusal()[:2] == (409, "alreadyExists")
    project.control.set_times(stopping=0.0)
    project.control.run_delayed()
    project.finish(deleting)
    project.insert()
    assert project.control.resources("disks")[0]["name"] == "one"


def test_lists_may_lag(project: Project) -> None:
    project.control.set_times(lag=60.0)
    project.insert()
    request = cv.AggregatedListInstancesRequest(project=PROJECT)
    assert [one for _, scope in project.instances.aggregated_list(request) for one in scope.instances] == []
    assert project.get().name == "one"


# -- capacity, quotas, reservations


def first_error(operation: cv.Operation) -> Any:
    return operation.error.errors[0]


def test_no_capacity_names_the_zones_that_have_some(project: Project) -> None:
    project.control.set_capacity(TYPE, ZONE, "spot", 1)
    project.control.set_capacity(TYPE, OTHER, "spot", 0)
    project.insert("one", scheduling=scheduled(**SPOT))
    failed = project.insert("two", scheduling=scheduled(**SPOT))
    assert (first_error(failed).code, failed.http_error_status_code) == (
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        503,
    )
    infos = [one.error_info for one in first_error(failed).error_details if one.error_info.metadatas]
    assert infos[0].reason == "resource_availability"
    assert infos[0].metadatas["zonesAvailable"] == "us-central1-c,us-central1-f"
    assert infos[0].metadatas["attachment"] == f"{GPU}:1"
    with pytest.raises(exceptions.NotFound):
        project.get("two")
    assert [one["name"] for one in project.control.resources("disks")] == ["one"]
    assert project.insert("three").error == cv.Error()  # capacity of another market
    project.delete("one")
    assert project.insert("four", scheduling=scheduled(**SPOT)).error == cv.Error()


@pytest.mark.parametrize(
    ("region", "metric", "family", "changes"),
    [
        ("us-central1", "NVIDIA_T4_GPUS", "", {}),
        ("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS", "", {"scheduling": scheduled(**SPOT)}),
        ("us-central1", "CPUS", "", {}),
        ("global", "GPUS_ALL_REGIONS", "", {}),
        (
            "us-central1",
            "GPUS_PER_GPU_FAMILY",
            "NVIDIA_H100",
            {"machineType": f"zones/{ZONE}/machineTypes/a3-highgpu-8g", "guestAccelerators": None},
        ),
    ],
)
def test_quotas(project: Project, region: str, metric: str, family: str, changes: Body) -> None:
    project.control.set_quota(region, metric, 0.0, family=family)
    failed = project.insert(**changes)
    assert (first_error(failed).code, failed.http_error_status_code) == ("QUOTA_EXCEEDED", 403)
    where = "globally" if region == "global" else f"in region {region}"
    assert first_error(failed).message == f"Quota '{metric}' exceeded.  Limit: 0.0 {where}."
    assert project.control.instances() == []


def test_a_region_has_limits_and_usage(project: Project) -> None:
    project.control.set_quota("us-central1", "NVIDIA_T4_GPUS", 8.0)
    project.insert()
    quotas = {
        one.metric: (one.limit, one.usage) for one in project.regions.get(project=PROJECT, region="us-central1").quotas
    }
    assert quotas["NVIDIA_T4_GPUS"] == (8.0, 1.0)
    assert quotas["CPUS"][1] == 4.0


def test_reservations(project: Project) -> None:
    def affinity(name: str) -> Body:
        key = "compute.googleapis.com/reservation-name"
        return {"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [name]}}

    project.control.reserve("ours", TYPE, ZONE, 1)
    project.control.reserve("anyones", TYPE, ZONE, 1, specific=False)
    project.control.reserve("another", "n1-standard-8", ZONE, 1)
    project.control.set_capacity(TYPE, ZONE, "on-demand", 0)
    assert "Could not find the given reservation" in project.refusal(**affinity("none"))[2]
    assert "specificReservationRequired is not set" in project.refusal(**affinity("anyones"))[2]
    assert project.refusal(**affinity("another"))[0] == 400
    assert project.insert("one", **affinity("ours")).error == cv.Error()
    assert project.machine().market == "reservation"
    assert "does not have available resources" in first_error(project.insert("two", **affinity("ours"))).message


def test_a_flex_start_request_waits_for_capacity(project: Project) -> None:
    project.control.set_capacity(TYPE, ZONE, "flex-start", 0)
    flex = scheduled(
        provisioningModel="FLEX_START",
        automaticRestart=False,
        instanceTerminationAction="DELETE",
        maxRunDuration={"seconds": "3600"},
    )
    waiting = project.begin(scheduling=flex, params={"requestValidForDuration": {"seconds": "7200"}})
    wait_for(lambda: project.get().status == "PENDING")
    project.control.set_capacity(TYPE, ZONE, "flex-start", None)
    assert project.finish(waiting).error == cv.Error()
    assert project.get().resource_status.scheduling.termination_timestamp

    project.control.set_capacity(TYPE, ZONE, "flex-start", 0)
    given_up = project.begin("two", scheduling=flex)
    wait_for(lambda: project.get("two").status == "PENDING")
    project.delete("two")
    assert project.finish(given_up).http_error_status_code == 409
    short = project.insert("three", scheduling=flex, params={"requestValidForDuration": {"seconds": "1"}})
    assert short.http_error_status_code == 503


# -- requests refused at once

ARM = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64"
REFUSED: dict[str, tuple[Body, int, str]] = {
    "an unknown field": ({"scheduling": scheduled(maxRun=5)}, 400, "'maxRun' was unexpected"),
    "a misspelt value": ({"scheduling": scheduled(provisioningModel="SPOTTY")}, 400, "SPOTTY"),
    "a number that is none": ({"guestAccelerators": [{"acceleratorCount": "one"}]}, 400, "acceleratorCount"),
    "no such type": ({"machineType": f"zones/{ZONE}/machineTypes/n9"}, 400, "does not exist in zone 'us-central1-a'"),
    "another zone's type": ({"machineType": f"zones/{OTHER}/machineTypes/{TYPE}"}, 400, "machineType"),
    "no type": ({"machineType": None}, 400, "Required field"),
    "no such accelerator": (
        {"guestAccelerators": [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/k80", "acceleratorCount": 1}]},
        404,
        "was not found",
    ),
    "an accelerator that is not attached": (
        {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-4"},
        400,
        "not compatible",
    ),
    "live migration": ({"scheduling": {"onHostMaintenance": "MIGRATE"}}, 400, "do not support live migration"),
    "a spot machine that restarts": ({"scheduling": scheduled(**{**SPOT, "automaticRestart": True})}, 400, "SPOT"),
    "an end without a limit": (
        {"scheduling": scheduled(instanceTerminationAction="DELETE")},
        400,
        "provisioning model",
    ),
    "a limit without an end": ({"scheduling": scheduled(maxRunDuration={"seconds": "60"})}, 400, "TerminationAction"),
    "no disk": ({"disks": []}, 400, "At least one disk"),
    "no image": ({"disks": [{"boot": True, "initializeParams": {}}]}, 400, "sourceImage"),
    "no such image": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": f"{IMAGE}-9"}}]},
        404,
        "was not found",
    ),
    "another architecture": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": ARM}}]},
        400,
        "architecture: ARM64",
    ),
    "too small a disk": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "5"}}]},
        400,
        "cannot be smaller than the image size",
    ),
    "no network": ({"networkInterfaces": []}, 400, "At least one network interface"),
    "no such network": ({"networkInterfaces": [{"network": "global/networks/x"}]}, 400, "cannot be found"),
    "a bad name": ({"name": "-x"}, 400, "'-x' does not match"),
    "a bad label": ({"labels": {"of": "Tests"}}, 400, "resource.labels"),
    "no such account": ({"serviceAccounts": [{"email": "x@y.iam.gserviceaccount.com"}]}, 400, "serviceAccount"),
    "too long a value": ({"metadata": {"items": [{"key": "k", "value": "x" * 262_145}]}}, 400, "too large"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(project: Project, what: str) -> None:
    changes, expected, words = REFUSED[what]
    status, _, message = project.refusal(**changes)
    assert status == expected, message
    assert words in message
    assert project.control.instances() == []


def test_places_that_are_not_there(project: Project) -> None:
    assert project.raw("GET", f"{PROJECT}/zones/mars-1-a/instances")[0] == 400
    assert project.raw("GET", f"another-project/zones/{ZONE}/instances")[0] == 404
    assert project.raw("GET", f"{PROJECT}/zones/{ZONE}/instances", None, maxResult="5")[0] == 400


# -- lists


def test_filters_and_pages(project: Project) -> None:
    for number in range(3):
        project.insert(f"n{number}", (ZONE, OTHER)[number % 2], labels={"number": str(number)})

    def names(text: str, **more: Any) -> list[str]:
        request = cv.AggregatedListInstancesRequest(project=PROJECT, filter=text, **more)
        return sorted(one.name for _, scope in project.instances.aggregated_list(request) for one in scope.instances)

    assert names("") == ["n0", "n1", "n2"] == names("", max_results=1)
    assert len(project.control.calls("instances.aggregatedList")) == 4
    assert names("labels.number = 1") == ["n1"]
    assert names("labels.number:* AND name != n0", max_results=1) == ["n1", "n2"]
    assert names('(labels.number="0") OR (name eq "n[12]")') == ["n0", "n1", "n2"]
    with pytest.raises(exceptions.BadRequest, match="filter"):
        names("labels.number =")
    request = cv.AggregatedListInstancesRequest(project=PROJECT)
    empty = dict(project.instances.aggregated_list(request))["zones/us-central1-c"]
    assert empty.warning.code == "NO_RESULTS_ON_PAGE"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("a.b = x", True),
        ("a.b != x", False),
        ("a.c != x", True),
        ("n > 4 AND n <= 5", True),
        ("NOT n = 5", False),
        ("flag = true", True),
        ('a.b eq "x|y"', True),
        ('a.b ne "x"', False),
        ("a.b:*", True),
        ("a.c:*", False),
        ("list.k = 2", True),
        ("a.b = x (n = 6 OR n = 5)", True),
    ],
)
def test_filter(text: str, fits: bool) -> None:
    assert compiled(text)({"a": {"b": "x"}, "n": 5, "flag": True, "list": [{"k": 1}, {"k": 2}]}) is fits


@pytest.mark.parametrize("text", ["a =", "(a = b", "a b c", "a = b)"])
def test_filter_that_is_none(text: str) -> None:
    with pytest.raises(FilterError):
        compiled(text)


# -- firewalls and disks


def test_firewalls(project: Project) -> None:
    rule = cv.Firewall(name="f", denied=[cv.Denied(I_p_protocol="all")], target_tags=["ours"], description="{}")
    project.firewalls.insert_unary(project=PROJECT, firewall_resource=rule, timeout=180)
    (there,) = project.firewalls.list(project=PROJECT, timeout=180)
    assert (there.priority, there.direction, list(there.source_ranges)) == (1_000, "INGRESS", ["0.0.0.0/0"])
    with pytest.raises(exceptions.Conflict):
        project.firewalls.insert_unary(project=PROJECT, firewall_resource=rule, timeout=180)
    done = project.firewalls.delete_unary(project=PROJECT, firewall="f", timeout=180)
    project.global_operations.wait(project=PROJECT, operation=done.name, timeout=130)
    with pytest.raises(exceptions.NotFound):
        project.firewalls.delete_unary(project=PROJECT, firewall="f", timeout=180)


def test_a_disk_that_does_not_go_with_its_machine_stays(project: Project) -> None:
    kept = {"boot": True, "autoDelete": False, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "40"}}
    project.insert(disks=[kept])
    status, answer = project.raw("DELETE", f"{PROJECT}/zones/{ZONE}/disks/one")
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "resourceInUseByAnotherResource")
    project.delete()
    assert [(one.name, one.size_gb) for one in project.disks.list(project=PROJECT, zone=ZONE)] == [("one", 40)]
    project.finish(project.disks.delete_unary(project=PROJECT, zone=ZONE, disk="one"))
    assert project.control.resources("disks") == []


# -- machines


def ask_metadata(machine: InstanceState, path: str) -> str:
    request = urllib.request.Request(
        f"{machine.metadata}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
    )
    return str(urllib.request.urlopen(request, timeout=180).read().decode())


def test_the_metadata_server_knows_its_instance(project: Project) -> None:
    project.insert(script="true")
    machine = project.machine()
    assert ask_metadata(machine, "instance/name") == "one"
    assert ask_metadata(machine, "instance/zone").rpartition("/")[2] == ZONE
    assert ask_metadata(machine, "instance/id") == machine.identity
    assert ask_metadata(machine, "instance/attributes/startup-script").startswith("#!/bin/sh")
    assert ask_metadata(machine, "instance/scheduling/automatic-restart") == "TRUE"
    assert ask_metadata(machine, "project/project-id") == PROJECT
    assert "service-accounts/\n" in ask_metadata(machine, "instance/")
    whole = json.loads(ask_metadata(machine, "instance/service-accounts/default/?recursive=true"))
    assert whole == {"aliases": ["default"], "email": MACHINE, "scopes": [ALL]}
    for path, headers, status in (
        ("instance/nonsense", {"Metadata-Flavor": "Google"}, 404),
        ("instance/name", {}, 403),
        ("instance/name", {"Metadata-Flavor": "Google", "X-Forwarded-For": "x"}, 403),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            request = urllib.request.Request(f"{machine.metadata}/computeMetadata/v1/{path}", headers=headers)
            urllib.request.urlopen(request, timeout=180)
        assert caught.value.code == status


def test_googles_library_on_a_machine_is_its_service_account(project: Project) -> None:
    """The machine's program deletes its own instance with the credentials of google.auth.default()."""
    program = (
        "import google.auth, google.auth.transport.requests as r\n"
        "c, p = google.auth.default()\n"
        "s = r.AuthorizedSession(c)\n"
        f"print(p, s.delete('{project.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/one').status_code)\n"
    )
    project.insert(script=f'{sys.executable} -c "{program}" > said 2>&1')
    wait_for(lambda: not project.machine().running)
    (call,) = project.control.calls("instances.delete")
    assert (call.caller, call.status) == (MACHINE, 200)
    wait_for(lambda: project.control.resources("instances") == [])


def test_a_startup_script_runs_on_every_boot_on_a_disk_that_stays(project: Project) -> None:
    project.insert(script="mkdir -p /var/lib/x && echo boot >> /var/lib/x/boots && sleep 600")
    boots = Path(project.machine().root, "var/lib/x/boots")
    wait_for(lambda: boots.exists() and boots.read_text())
    project.finish(project.instances.reset_unary(project=PROJECT, zone=ZONE, instance="one"))
    wait_for(lambda: boots.read_text() == "boot\nboot\n")
    assert project.machine().trouble == []


def test_a_failing_startup_script_is_reported(project: Project) -> None:
    project.insert(script="echo no >&2; exit 3")
    wait_for(lambda: project.machine().trouble)
    assert "ended with 3" in project.machine().trouble[0]
    output = project.instances.get_serial_port_output(project=PROJECT, zone=ZONE, instance="one")
    assert output.contents == "no\n"


def test_without_an_address_there_is_no_way_to_google_but_private_access(project: Project) -> None:
    inside = [{"network": "global/networks/default"}]
    project.insert("one", networkInterfaces=inside, script="true")
    assert "Private Google Access" in project.machine("one").trouble[0]
    project.control.set_private_access("us-central1")
    project.insert("two", networkInterfaces=inside, script="echo booted")
    wait_for(lambda: project.machine("two").console == "booted\n")
    assert project.machine("two").trouble == [] and not project.machine("two").external


SERVICE = """
mkdir -p /etc/systemd/system
cat > /etc/systemd/system/x.service <<'end'
[Service]
ExecStart=/bin/sh -c "trap 'echo asked to end; exit 0' TERM; echo up; while :; do sleep 0.1; done"
TimeoutStopSec=180
end
systemctl daemon-reload
systemctl start x.service
"""
LINGERING = SERVICE.replace("exit 0", "while [ ! -e go ]; do sleep 0.1; done; exit 0")
"""Service that delays the shutdown until the file `go` exists, so that tests can query the machine meanwhile."""


def test_preemption(project: Project) -> None:
    """The notice and the ACPI shutdown come together; a machine that does not shut down in time is powered off."""
    project.insert(script=LINGERING, scheduling=scheduled(**SPOT))
    wait_for(lambda: "up" in project.machine().console)
    project.control.set_times(stopping=600.0)
    project.control.preempt("one", 180.0)
    assert ask_metadata(project.machine(), "instance/preempted") == "TRUE"
    assert project.get().status == "STOPPING"
    wait_for(lambda: "asked to end" in project.machine().console)
    Path(project.machine().root, "go").touch()
    wait_for(lambda: project.machine().reason == "compute.instances.preempted")
    wait_for(lambda: project.events() == ["insert", "compute.instances.preempted"])
    assert project.get().status == "STOPPING"
    project.control.run_delayed()
    assert project.control.resources("instances") == [] == project.control.resources("disks")


def test_a_preempted_machine_that_is_to_stop_stays(project: Project) -> None:
    project.insert(scheduling=scheduled(provisioningModel="SPOT", automaticRestart=False))
    project.control.preempt("one", 0.2)
    wait_for(lambda: project.get().status == "TERMINATED")
    assert len(project.control.resources("disks")) == 1


def test_maintenance_is_announced_and_the_machine_comes_back(project: Project) -> None:
    project.insert(script=SERVICE)
    wait_for(lambda: "up" in project.machine().console)
    project.control.maintain("one", 600.0, repair=600.0, shutdown=180.0)
    announced = json.loads(ask_metadata(project.machine(), "instance/upcoming-maintenance"))
    assert announced["maintenanceStatus"] == "PENDING"
    assert ask_metadata(project.machine(), "instance/maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
    project.control.run_delayed()
    wait_for(lambda: project.get().status == "REPAIRING")
    project.control.run_delayed()
    wait_for(lambda: project.machine().console.count("up\n") == 2)
    assert ask_metadata(project.machine(), "instance/maintenance-event") == "NONE"
    assert "asked to end" in project.machine().console
    restarts = ["compute.instances.terminateOnHostMaintenance", "compute.instances.automaticRestart"]
    assert project.events() == ["insert", *restarts]


def test_the_products_notices_see_it(project: Project) -> None:
    project.insert(script=LINGERING, scheduling=scheduled(**SPOT))
    wait_for(lambda: "up" in project.machine().console)
    said: list[str] = []
    environ = {"GCE_METADATA_HOST": project.machine().metadata.partition("://")[2]}
    watched = {look.name: look for look in looks(environ, said.append)}["preempted"]
    assert list(watched.look()) == []
    threading.Timer(0.3, lambda: project.control.preempt("one", 180.0)).start()
    assert [notice.kind for notice in wait_for(watched.look)] == ["preempted"]


@pytest.mark.parametrize("restarts", [True, False])
def test_a_host_that_fails(project: Project, restarts: bool) -> None:
    project.insert(script=SERVICE, scheduling=scheduled(automaticRestart=restarts))
    wait_for(lambda: "up" in project.machine().console)
    project.control.crash("one")
    if restarts:
        wait_for(lambda: project.machine().console.count("up\n") == 2)
        assert project.events() == ["insert", "compute.instances.hostError", "compute.instances.automaticRestart"]
    else:
        wait_for(lambda: project.get().status == "TERMINATED")
    assert "asked to end" not in project.machine().console


def test_a_machine_that_powers_itself_off_is_stopped_and_its_disk_stays(project: Project) -> None:
    project.insert(script="poweroff; sleep 60")
    wait_for(lambda: project.get().status == "TERMINATED")
    assert project.events() == ["insert", "compute.instances.guestTerminate"]
    assert len(project.control.resources("disks")) == 1
    project.delete()
    assert project.control.resources("disks") == []


def test_a_run_that_is_over(project: Project) -> None:
    limited = scheduled(automaticRestart=True, instanceTerminationAction="DELETE", maxRunDuration={"seconds": "30"})
    project.insert(scheduling=limited)
    resource = project.get()
    assert resource.resource_status.scheduling.termination_timestamp > resource.creation_timestamp
    project.control.end_run("one")
    wait_for(lambda: project.control.resources("instances") == [] == project.control.resources("disks"))
    assert project.machine().reason == "compute.instances.scheduledTermination"
    assert project.refusal(scheduling={**limited, "maxRunDuration": {"seconds": "5"}})[0] == 400


def test_stop_and_start(project: Project) -> None:
    project.insert(script=SERVICE)
    wait_for(lambda: "up" in project.machine().console)
    project.finish(project.instances.stop_unary(project=PROJECT, zone=ZONE, instance="one"))
    assert project.get().status == "TERMINATED" and "asked to end" in project.machine().console
    project.finish(project.instances.start_unary(project=PROJECT, zone=ZONE, instance="one"))
    wait_for(lambda: project.machine().console.count("up\n") == 2)


def test_what_a_deleted_machine_had_running_is_gone(project: Project) -> None:
    project.insert(script="sleep 1000 & echo $! > pid; wait")
    pid = Path(project.machine().root, "pid")
    wait_for(lambda: pid.exists() and pid.read_text().strip())
    number = pid.read_text().strip()
    project.delete()
    wait_for(lambda: not Path(f"/proc/{number}").exists())
