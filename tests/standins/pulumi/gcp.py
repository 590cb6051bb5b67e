"""Stand-in for pulumi_gcp's provider: the resources of cloudgpu's stacks, on the stand-in for Google Cloud.

The environment provides its address and the caller: CLOUDGPU_GCP_ENDPOINT, GOOGLE_CLOUD_PROJECT, and a key file. Bodies
are built as in the `expand…` functions of the Terraform provider for Google Cloud, which pulumi_gcp wraps; the services
reject fields that are not in Google's discovery documents. Copied behaviour: an IAM policy is read, changed and written
as a whole; a deleted role is undeleted; a bucket with `forceDestroy` is emptied first; `region`, `project` and similar
inputs are repeated as outputs.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from .provider import AllBut, CheckError, Kind, Made, Provider
from .wire import UNKNOWN, Props

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TIMEOUT_S = 180.0


class ApiError(Exception):
    """Error response of a Google API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"googleapi: Error {status}: {message}")
        self.status = status


class Cloud:
    """Thread-safe HTTP client for one project."""

    def __init__(self) -> None:
        self.endpoint = os.environ["CLOUDGPU_GCP_ENDPOINT"].rstrip("/")
        self.project = os.environ["GOOGLE_CLOUD_PROJECT"]
        self._region = ""

    def configure(self, settings: Props) -> None:
        self.project = settings.get("project") or self.project
        self._region = settings.get("region") or ""

    def region(self, inputs: Props) -> str:
        """Return the resource's or the provider's region. Raises CheckError."""
        found = inputs.get("region") or self._region
        if not found:
            raise CheckError("region", "Cannot determine region: set in this resource, or set provider-level 'region'")
        return str(found)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call an API; return the response's JSON. Raises ApiError."""
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        credentials, _ = google.auth.default(scopes=[_SCOPE])
        with AuthorizedSession(credentials) as session:  # type: ignore[no-untyped-call]
            url = f"{self.endpoint}{path}"
            answer = session.request(method, url, json=body, params=query, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, _message(answer))
        return answer.json() if answer.content else {}

    def find(self, path: str, **query: Any) -> Any:
        """Return a resource, or None if it does not exist."""
        try:
            return self.call("GET", path, **query)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def drop(self, path: str) -> Any:
        """Delete a resource; a missing one is fine."""
        try:
            return self.call("DELETE", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    # -- Compute Engine

    def compute(self, scope: str, collection: str, name: str = "") -> str:
        return f"/compute/v1/projects/{self.project}/{scope}/{collection}" + (f"/{name}" if name else "")

    def ordered(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Start an operation and wait until it is done. Raises ApiError."""
        operation = self.call(method, path, body, requestId=str(uuid.uuid4()), **query)
        until = time.monotonic() + _TIMEOUT_S
        where = "/" + operation["selfLink"].split("/", 3)[3]
        while operation["status"] != "DONE":
            if time.monotonic() > until:
                raise ApiError(504, f"timeout while waiting for {operation['operationType']}")
            operation = self.call("POST", f"{where}/wait")
        if "error" in operation:
            first = operation["error"]["errors"][0]
            raise ApiError(int(operation.get("httpErrorStatusCode", 400)), f"{first['code']}: {first['message']}")
        return operation

    def dropped(self, path: str) -> None:
        """Delete a Compute Engine resource if it exists, and wait. Raises ApiError."""
        if self.find(path) is not None:
            self.ordered("DELETE", path)


def _message(answer: Any) -> str:
    try:
        error = answer.json()["error"]
        reasons = ", ".join(str(one.get("reason")) for one in error.get("errors", []))
        return f"{error['message']}{f', {reasons}' if reasons else ''}"
    except (ValueError, KeyError, TypeError):
        return str(answer.text)


# --- networks ---------------------------------------------------------------------------------------------------------


class Compute(Kind[Cloud]):
    """Resource of one Compute Engine collection, global or regional."""

    collection = ""
    regional = False
    fields: Mapping[str, str] = {}
    """Input -> field of the API with the same value."""
    computed = frozenset({"selfLink", "project"})

    def body(self, inputs: Props) -> Props:
        return {field: inputs[name] for name, field in self.fields.items() if inputs.get(name) is not None}

    def path(self, state: Props, name: str = "") -> str:
        scope = f"regions/{self.cloud.region(state)}" if self.regional else "global"
        return self.cloud.compute(scope, self.collection, name or str(state["name"]))

    def create(self, name: str, inputs: Props) -> Made:
        self.cloud.ordered("POST", self.path(inputs).rpartition("/")[0], self.body(inputs))
        identity = self.path(inputs).removeprefix("/compute/v1/")
        return Made(identity, self.shown(self.cloud.call("GET", self.path(inputs)), inputs))

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(self.path(state))
        return None if found is None else self.shown(found, state)

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.cloud.ordered("PATCH", self.path(new), self.body(new))
        return self.shown(self.cloud.call("GET", self.path(new)), new)

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.dropped(self.path(state))

    def shown(self, found: Props, state: Props) -> Props:
        """Return outputs: the API's fields under the inputs' names."""
        same = {
            name: _spelt(found[field], state[name])
            for name, field in self.fields.items()
            if field in found and name in state
        }
        region = {"region": self.cloud.region(state)} if self.regional else {}
        return {**same, **region, "selfLink": found["selfLink"], "project": self.cloud.project}


def _spelt(found: Any, state: Any) -> Any:
    """Return a link as the program spells it: the provider ignores differences in spelling (CompareSelfLink…)."""
    links = isinstance(found, str) and isinstance(state, str) and "projects/" in state
    return state if links and found.rpartition("projects/")[2] == state.rpartition("projects/")[2] else found


class Network(Compute):
    type = "gcp:compute/network:Network"
    collection = "networks"
    inputs = frozenset({"name", "description", "autoCreateSubnetworks"})
    replaces = inputs
    autoname = "name"
    fields = {name: name for name in inputs}  # noqa: RUF012


class Subnetwork(Compute):
    type = "gcp:compute/subnetwork:Subnetwork"
    collection, regional = "subnetworks", True
    inputs = frozenset({"name", "network", "region", "ipCidrRange", "privateIpGoogleAccess"})
    required = frozenset({"network"})
    replaces = AllBut({"privateIpGoogleAccess"})
    autoname = "name"
    fields = {name: name for name in inputs - {"region"}}  # noqa: RUF012


class Firewall(Compute):
    type = "gcp:compute/firewall:Firewall"
    collection = "firewalls"
    _lists = frozenset({"sourceRanges", "sourceTags", "targetTags"})
    inputs = frozenset({"name", "network", "description", "direction", "priority", "allows", "denies", *_lists})
    required = frozenset({"network"})
    replaces = frozenset({"name", "network", "direction"})
    autoname = "name"
    fields = {name: name for name in inputs - {"allows", "denies"}}  # noqa: RUF012

    def body(self, inputs: Props) -> Props:
        made = super().body(inputs)
        for name, field in (("allows", "allowed"), ("denies", "denied")):
            if name in inputs:
                made[field] = [{"IPProtocol": one["protocol"], **_with(one, "ports")} for one in inputs[name]]
        return made


class Router(Compute):
    type = "gcp:compute/router:Router"
    collection, regional = "routers", True
    inputs = frozenset({"name", "network", "region"})
    required = frozenset({"network"})
    replaces = inputs
    autoname = "name"
    fields = {"name": "name", "network": "network"}  # noqa: RUF012


class RouterNat(Kind[Cloud]):
    """NAT configuration, which is part of a router."""

    type = "gcp:compute/routerNat:RouterNat"
    inputs = frozenset({"name", "router", "region", "natIpAllocateOption", "sourceSubnetworkIpRangesToNat"})
    required = frozenset({"router", "sourceSubnetworkIpRangesToNat"})
    replaces = frozenset({"name", "router", "region"})
    autoname = "name"

    def _router(self, state: Props) -> str:
        return self.cloud.compute(f"regions/{self.cloud.region(state)}", "routers", str(state["router"]))

    def create(self, name: str, inputs: Props) -> Made:
        self._write(inputs, {name: inputs[name] for name in self.inputs - {"router", "region"} if name in inputs})
        return Made(f"{self.cloud.project}/{self.cloud.region(inputs)}/{inputs['router']}/{inputs['name']}")

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(self._router(state)) or {}
        own = [one for one in found.get("nats", []) if one["name"] == state["name"]]
        return {name: own[0][name] for name in self.inputs if name in own[0]} if own else None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.create("", new)
        return {}

    def delete(self, identity: str, state: Props) -> None:
        if self.cloud.find(self._router(state)) is not None:
            self._write(state, None)

    def _write(self, state: Props, nat: Props | None) -> None:
        known = self.cloud.call("GET", self._router(state)).get("nats", [])
        others = [one for one in known if one["name"] != state["name"]]
        self.cloud.ordered("PATCH", self._router(state), {"nats": [*others, *([nat] if nat else [])]})


class ResourcePolicy(Compute):
    type = "gcp:compute/resourcePolicy:ResourcePolicy"
    collection, regional = "resourcePolicies", True
    inputs = frozenset({"name", "region", "description", "groupPlacementPolicy"})
    replaces = inputs
    autoname = "name"
    fields = {name: name for name in inputs - {"region"}}  # noqa: RUF012


# --- fleets -----------------------------------------------------------------------------------------------------------


class InstanceTemplate(Compute):
    """Immutable instance template."""

    type = "gcp:compute/instanceTemplate:InstanceTemplate"
    collection = "instanceTemplates"
    inputs = frozenset(
        {
            "description",
            "disks",
            "guestAccelerators",
            "instanceDescription",
            "labels",
            "machineType",
            "metadata",
            "name",
            "namePrefix",
            "networkInterfaces",
            "reservationAffinity",
            "resourcePolicies",
            "scheduling",
            "serviceAccount",
            "shieldedInstanceConfig",
            "tags",
        }
    )
    required = frozenset({"disks", "machineType"})
    replaces = AllBut()
    computed = frozenset({"selfLink", "selfLinkUnique", "project", "name"})
    _numbers = itertools.count(1)

    def create(self, name: str, inputs: Props) -> Made:
        suffix = f"{time.strftime('%Y%m%d%H%M%S')}{next(self._numbers):08d}{uuid.uuid4().hex[:4]}"
        called = inputs.get("name") or f"{inputs.get('namePrefix', name)}{suffix}"
        properties = instance_properties(inputs)
        body = {"name": called, "properties": properties, **_with(inputs, "description")}
        self.cloud.ordered("POST", self.cloud.compute("global", "instanceTemplates"), body)
        state = {**inputs, "name": called}
        found = self.cloud.call("GET", self.path(state))
        return Made(self.path(state).removeprefix("/compute/v1/"), self.shown(found, state))

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(self.path(state))
        return None if found is None else self.shown(found, state)

    def shown(self, found: Props, state: Props) -> Props:
        unique = f"{found['selfLink']}?uniqueId={found['id']}"
        result = {"selfLink": found["selfLink"], "selfLinkUnique": unique, "project": self.cloud.project}
        return {**result, "name": found["name"]}


def instance_properties(inputs: Props) -> Props:
    """Return the API's `instanceProperties` for the inputs of an InstanceTemplate. Source: terraform-provider-google,
    resource_compute_instance_template (expandDisks, expandScheduling, expandNetworkInterfaces …)."""
    interfaces = []
    for one in inputs.get("networkInterfaces", []):
        configs = [{"type": "ONE_TO_ONE_NAT", **config} for config in one.get("accessConfigs", [])]
        interfaces.append({**one, **({"accessConfigs": configs} if configs else {})})
    made = {
        "machineType": inputs["machineType"],
        "disks": [_disk(one) for one in inputs["disks"]],
        "networkInterfaces": interfaces,
        "scheduling": _scheduling(inputs.get("scheduling", {})),
        **_with(inputs, "labels", "shieldedInstanceConfig"),
    }
    if "instanceDescription" in inputs:
        made["description"] = inputs["instanceDescription"]
    if "guestAccelerators" in inputs:
        made["guestAccelerators"] = [
            {"acceleratorType": one["type"], "acceleratorCount": one["count"]} for one in inputs["guestAccelerators"]
        ]
    if "metadata" in inputs:
        made["metadata"] = {"items": [{"key": key, "value": value} for key, value in inputs["metadata"].items()]}
    if "serviceAccount" in inputs:
        made["serviceAccounts"] = [inputs["serviceAccount"]]
    if "tags" in inputs:
        made["tags"] = {"items": inputs["tags"]}
    if "resourcePolicies" in inputs:
        made["resourcePolicies"] = [inputs["resourcePolicies"].rpartition("/")[2]]
    if "reservationAffinity" in inputs:
        result = inputs["reservationAffinity"]
        made["reservationAffinity"] = {
            "consumeReservationType": result["type"],
            **result.get("specificReservation", {}),
        }
    return made


def _disk(told: Props) -> Props:
    inside = {"diskName", "diskSizeGb", "diskType", "labels", "sourceImage"}
    made = {name: value for name, value in told.items() if name not in inside}
    return {**made, "initializeParams": {name: told[name] for name in inside if name in told}}


def _scheduling(told: Props) -> Props:
    made = {"preemptible": False, **told}
    if made.get("provisioningModel") == "SPOT" and not made["preemptible"]:
        raise CheckError("scheduling", "preemptible must be true where provisioning_model is SPOT")
    if "localSsdRecoveryTimeouts" in made:
        (made["localSsdRecoveryTimeout"],) = made.pop("localSsdRecoveryTimeouts")
    return made


class Group(Compute):
    type = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
    collection, regional = "instanceGroupManagers", True
    inputs = frozenset(
        {
            "baseInstanceName",
            "distributionPolicyTargetShape",
            "distributionPolicyZones",
            "instanceLifecyclePolicy",
            "listManagedInstancesResults",
            "name",
            "namedPorts",
            "region",
            "targetSize",
            "updatePolicy",
            "versions",
            "waitForInstances",
        }
    )
    required = frozenset({"baseInstanceName", "versions"})
    replaces = frozenset({"baseInstanceName", "distributionPolicyZones", "name", "region"})
    computed = frozenset({"selfLink", "project", "instanceGroup", "fingerprint"})
    autoname = "name"
    fields = {  # noqa: RUF012
        name: name
        for name in (
            "name",
            "baseInstanceName",
            "targetSize",
            "instanceLifecyclePolicy",
            "listManagedInstancesResults",
            "namedPorts",
        )
    }

    def body(self, inputs: Props) -> Props:
        policy = dict(inputs.get("updatePolicy", {}))
        for name in ("maxSurge", "maxUnavailable"):
            if f"{name}Fixed" in policy:
                policy[name] = {"fixed": policy.pop(f"{name}Fixed")}
        zones = [{"zone": f"zones/{one}"} for one in inputs.get("distributionPolicyZones") or []]
        shape = _with({"targetShape": inputs.get("distributionPolicyTargetShape")}, "targetShape")
        made = {**super().body(inputs), "updatePolicy": policy, "versions": inputs["versions"]}
        return {**made, "distributionPolicy": {**shape, **({"zones": zones} if zones else {})}}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        """Patch the group; ports and size use separate calls, as in the provider. Omitted ports are left unchanged."""
        apart = {"targetSize", "namedPorts"}
        body = {name: value for name, value in self.body(new).items() if name not in ("name", *apart)}
        if any(old.get(name) != new.get(name) for name in self.inputs - apart):
            self.cloud.ordered("PATCH", self.path(new), body)
        ports = new.get("namedPorts")
        if ports is not None and old.get("namedPorts") != ports:
            path = self.path(new).replace("/instanceGroupManagers/", "/instanceGroups/")
            self.cloud.ordered("POST", f"{path}/setNamedPorts", {"namedPorts": ports})
        if old.get("targetSize") != new.get("targetSize"):
            self.cloud.ordered("POST", f"{self.path(new)}/resize", size=new.get("targetSize", 0))
        return self.shown(self.cloud.call("GET", self.path(new)), new)

    def shown(self, found: Props, state: Props) -> Props:
        result = {name: found[name] for name in ("instanceGroup", "fingerprint")}
        return {**super().shown(found, state), **result, "targetSize": found.get("targetSize", 0)}


# --- buckets ----------------------------------------------------------------------------------------------------------


class Bucket(Kind[Cloud]):
    type = "gcp:storage/bucket:Bucket"
    inputs = frozenset(
        {
            "forceDestroy",
            "labels",
            "lifecycleRules",
            "location",
            "name",
            "publicAccessPrevention",
            "softDeletePolicy",
            "uniformBucketLevelAccess",
        }
    )
    required = frozenset({"location"})
    replaces = frozenset({"name", "location"})
    computed = frozenset({"selfLink", "project", "url"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        body = {**self._body(inputs), "name": inputs["name"], "location": inputs["location"]}
        self.cloud.call("POST", "/storage/v1/b", body, project=self.cloud.project)
        return Made(inputs["name"], self._shown(inputs))

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(f"/storage/v1/b/{identity}")
        if found is None:
            return None
        result = {**self._shown(state), "location": found["location"], "labels": found.get("labels")}
        if "iamConfiguration" in found:
            result["publicAccessPrevention"] = found["iamConfiguration"].get("publicAccessPrevention")
        return result

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.cloud.call("PATCH", f"/storage/v1/b/{identity}", self._body(new))
        return self._shown(new)

    def delete(self, identity: str, state: Props) -> None:
        path = f"/storage/v1/b/{identity}"
        if self.cloud.find(path) is None:
            return
        objects = self.cloud.call("GET", f"{path}/o").get("items", [])
        if objects and not state.get("forceDestroy"):
            text = f"Error trying to delete bucket {identity} without `force_destroy` set to true"
            raise ApiError(409, text)
        while objects:
            for one in objects:
                self.cloud.drop(f"{path}/o/{quote(one['name'], safe='')}")
            objects = self.cloud.call("GET", f"{path}/o").get("items", [])
        self.cloud.drop(path)

    def _body(self, inputs: Props) -> Props:
        access = {"uniformBucketLevelAccess": {"enabled": bool(inputs.get("uniformBucketLevelAccess"))}}
        access |= _with(inputs, "publicAccessPrevention")
        made: Props = {**_with(inputs, "labels"), "iamConfiguration": access}
        if "lifecycleRules" in inputs:
            made["lifecycle"] = {"rule": inputs["lifecycleRules"]}
        if "softDeletePolicy" in inputs:
            seconds = inputs["softDeletePolicy"]["retentionDurationSeconds"]
            made["softDeletePolicy"] = {"retentionDurationSeconds": str(seconds)}
        return made

    def _shown(self, inputs: Props) -> Props:
        link = f"https://www.googleapis.com/storage/v1/b/{inputs['name']}"
        return {"selfLink": link, "project": self.cloud.project, "url": f"gs://{inputs['name']}"}


# --- policies ---------------------------------------------------------------------------------------------------------


class Member(Kind[Cloud]):
    """One member of one role in an IAM policy, under one condition."""

    inputs = frozenset({"member", "role", "condition"})
    required = frozenset({"member", "role"})
    replaces = AllBut()
    computed = frozenset({"etag"})

    def policy(self, state: Props) -> Props:
        raise NotImplementedError

    def put(self, state: Props, policy: Props) -> None:
        raise NotImplementedError

    def resource(self, state: Props) -> str:
        raise NotImplementedError

    def create(self, name: str, inputs: Props) -> Made:
        self._change(inputs, lambda members: [*members, inputs["member"]])
        title = inputs.get("condition", {}).get("title", "")
        return Made("/".join((self.resource(inputs), inputs["role"], inputs["member"], title)), {"etag": "a"})

    def read(self, identity: str, state: Props) -> Props | None:
        if state["member"] not in self._binding(self.policy(state), state).get("members", []):
            return None
        return {"etag": "a"}

    def delete(self, identity: str, state: Props) -> None:
        try:
            self._change(state, lambda members: [one for one in members if one != state["member"]])
        except ApiError as error:
            if error.status != 404:
                raise

    def _change(self, state: Props, change: Callable[[list[str]], list[str]]) -> None:
        """Read, change and write the policy; retry if another writer was faster."""
        for _ in range(20):
            policy = self.policy(state)
            binding = self._binding(policy, state)
            others = [one for one in policy.get("bindings", []) if one is not binding]
            members = change([one for one in binding["members"] if one != state["member"]])
            bindings = [*others, {**binding, "members": members}] if members else others
            try:
                return self.put(state, {**policy, "version": 3, "bindings": bindings})
            except ApiError as error:
                if error.status not in (409, 412):
                    raise
        raise ApiError(409, "the policy is changed by others all the time")

    def _binding(self, policy: Props, state: Props) -> Props:
        condition = {"condition": state["condition"]} if state.get("condition") else {}
        for one in policy.get("bindings", []):
            if one["role"] == state["role"] and one.get("condition") == state.get("condition"):
                return one  # type: ignore[no-any-return]
        return {"role": state["role"], "members": [], **condition}


class BucketMember(Member):
    type = "gcp:storage/bucketIAMMember:BucketIAMMember"
    inputs = Member.inputs | {"bucket"}
    required = Member.required | {"bucket"}

    def policy(self, state: Props) -> Props:
        found = self.cloud.call("GET", f"/storage/v1/b/{self._name(state)}/iam", optionsRequestedPolicyVersion=3)
        return {key: value for key, value in found.items() if key != "kind"}

    def put(self, state: Props, policy: Props) -> None:
        self.cloud.call("PUT", f"/storage/v1/b/{self._name(state)}/iam", policy)

    def resource(self, state: Props) -> str:
        return f"b/{self._name(state)}"

    def _name(self, state: Props) -> str:
        return str(state["bucket"]).removeprefix("b/")


class ProjectMember(Member):
    type = "gcp:projects/iAMMember:IAMMember"
    inputs = Member.inputs | {"project"}
    required = Member.required | {"project"}

    def policy(self, state: Props) -> Props:
        body = {"options": {"requestedPolicyVersion": 3}}
        return self.cloud.call("POST", f"/v1/projects/{state['project']}:getIamPolicy", body)  # type: ignore[no-any-return]

    def put(self, state: Props, policy: Props) -> None:
        self.cloud.call("POST", f"/v1/projects/{state['project']}:setIamPolicy", {"policy": policy})

    def resource(self, state: Props) -> str:
        return str(state["project"])


class AccountMember(Member):
    type = "gcp:serviceaccount/iAMMember:IAMMember"
    inputs = Member.inputs | {"serviceAccountId"}
    required = Member.required | {"serviceAccountId"}

    def policy(self, state: Props) -> Props:
        return self.cloud.call("POST", f"/v1/{state['serviceAccountId']}:getIamPolicy")  # type: ignore[no-any-return]

    def put(self, state: Props, policy: Props) -> None:
        self.cloud.call("POST", f"/v1/{state['serviceAccountId']}:setIamPolicy", {"policy": policy})

    def resource(self, state: Props) -> str:
        return str(state["serviceAccountId"])


class Account(Kind[Cloud]):
    type = "gcp:serviceaccount/account:Account"
    inputs = frozenset({"accountId", "displayName", "description", "project"})
    required = frozenset({"accountId"})
    replaces = frozenset({"accountId", "project"})
    computed = frozenset({"email", "member", "name", "uniqueId"})

    def create(self, name: str, inputs: Props) -> Made:
        result = _with(inputs, "displayName", "description")
        body = {"accountId": inputs["accountId"], "serviceAccount": result}
        made = self.cloud.call("POST", f"/v1/projects/{self.cloud.project}/serviceAccounts", body)
        return Made(made["name"], self._shown(made))

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(f"/v1/{identity}")
        return None if found is None else self._shown(found)

    def update(self, identity: str, old: Props, new: Props) -> Props:
        result = _with(new, "displayName", "description")
        body = {"serviceAccount": result, "updateMask": ",".join(result)}
        return self._shown(self.cloud.call("PATCH", f"/v1/{identity}", body))

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.drop(f"/v1/{identity}")

    def _shown(self, found: Props) -> Props:
        result = {name: found[name] for name in ("email", "name", "uniqueId")}
        return {**result, "member": f"serviceAccount:{found['email']}", "project": found["projectId"]}


class CustomRole(Kind[Cloud]):
    type = "gcp:projects/iAMCustomRole:IAMCustomRole"
    inputs = frozenset({"roleId", "title", "description", "permissions", "project", "stage"})
    required = frozenset({"roleId", "title", "permissions"})
    replaces = frozenset({"roleId", "project"})
    computed = frozenset({"name", "deleted"})

    def check(self, inputs: Props) -> Props:
        return {"stage": "GA", **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        path, role = f"/v1/projects/{self.cloud.project}/roles", self._role(inputs)
        known = self.cloud.find(f"{path}/{inputs['roleId']}")
        if known is not None and known.get("deleted"):
            self.cloud.call("POST", f"{path}/{inputs['roleId']}:undelete", {})
            made = self.cloud.call("PATCH", f"{path}/{inputs['roleId']}", role)
        else:
            made = self.cloud.call("POST", path, {"roleId": inputs["roleId"], "role": role})
        return Made(made["name"], {"name": made["name"], "deleted": False})

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.find(f"/v1/{identity}")
        if found is None or found.get("deleted"):
            return None
        return {"name": found["name"], "permissions": found["includedPermissions"]}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.cloud.call("PATCH", f"/v1/{identity}", self._role(new))
        return {"name": identity}

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.drop(f"/v1/{identity}")

    def _role(self, inputs: Props) -> Props:
        return {"includedPermissions": inputs["permissions"], **_with(inputs, "title", "description", "stage")}


# --- scheduled resources ----------------------------------------------------------------------------------------------


class Located(Kind[Cloud]):
    """Resource in a location."""

    collection = ""
    replaces = frozenset({"name", "project", "region"})
    autoname = "name"
    fields: frozenset[str] = frozenset()

    def path(self, inputs: Props) -> str:
        return f"projects/{self.cloud.project}/locations/{self.cloud.region(inputs)}/{self.collection}"

    def read(self, identity: str, state: Props) -> Props | None:
        return None if self.cloud.find(f"/v1/{identity}") is None else {}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        body = self.body(new)
        self.cloud.call("PATCH", f"/v1/{identity}", body, updateMask=",".join(body))
        return {}

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.drop(f"/v1/{identity}")

    def body(self, inputs: Props) -> Props:
        return {name: inputs[name] for name in self.fields if inputs.get(name) is not None}


class Workflow(Located):
    type = "gcp:workflows/workflow:Workflow"
    collection = "workflows"
    fields = frozenset({"description", "labels", "serviceAccount", "sourceContents"})
    inputs = fields | {"name", "project", "region", "deletionProtection"}
    computed = frozenset({"state", "revisionId"})

    def create(self, name: str, inputs: Props) -> Made:
        self.cloud.call("POST", f"/v1/{self.path(inputs)}", self.body(inputs), workflowId=inputs["name"])
        return Made(f"{self.path(inputs)}/{inputs['name']}", {"state": "ACTIVE", "revisionId": "000001-a"})

    def delete(self, identity: str, state: Props) -> None:
        if state.get("deletionProtection", True):
            raise ApiError(400, f"cannot destroy workflow {identity} without setting deletion_protection=false")
        super().delete(identity, state)


class Schedule(Located):
    type = "gcp:cloudscheduler/job:Job"
    collection = "jobs"
    fields = frozenset({"description", "schedule", "timeZone", "attemptDeadline"})
    inputs = fields | {"name", "project", "region", "httpTarget"}
    computed = frozenset({"state"})

    def create(self, name: str, inputs: Props) -> Made:
        identity = f"{self.path(inputs)}/{inputs['name']}"
        self.cloud.call("POST", f"/v1/{self.path(inputs)}", {**self.body(inputs), "name": identity})
        return Made(identity, {"state": "ENABLED"})

    def body(self, inputs: Props) -> Props:
        return {**super().body(inputs), "httpTarget": inputs["httpTarget"]}


# --- the provider -----------------------------------------------------------------------------------------------------


def _with(inputs: Props, *names: str) -> Props:
    """Return the given inputs among these names."""
    return {name: inputs[name] for name in names if inputs.get(name) not in (None, UNKNOWN)}


KINDS = (
    Network,
    Subnetwork,
    Firewall,
    Router,
    RouterNat,
    ResourcePolicy,
    InstanceTemplate,
    Group,
    Bucket,
    BucketMember,
    ProjectMember,
    AccountMember,
    Account,
    CustomRole,
    Workflow,
    Schedule,
)


def provider() -> Provider:
    """Return a provider for the stand-in that the environment points to."""
    return Provider("gcp", cloud=Cloud(), kinds=KINDS)
