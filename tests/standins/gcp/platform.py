"""IAM's service accounts and roles, the project's policy, Cloud Scheduler's jobs and Workflows' workflows.

Resources are stored, checked against the discovery documents, and returned. Schedules do not run, and policies do not
affect calls: only `enforce` does. As in the API references, a deleted role can be undeleted for a week, during which
its id cannot be reused; writing a policy requires the etag with which it was read, and version 3 if a binding has a
condition.
"""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..faults import Call
from .discovery import Match, discovery
from .project import Project
from .service import RefusedError, Request, Response, Service, answer_json, error_one_platform

Resource = dict[str, Any]
_ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
_ROLE_ID = re.compile(r"[A-Za-z0-9_.]{3,64}")


class Policies:
    """IAM policies by resource."""

    def __init__(self) -> None:
        self._known: dict[str, Resource] = {}
        self._count = 0

    def get(self, name: str) -> Resource:
        return self._known.get(name, {"version": 1, "etag": "BwAAAAAAAAA=", "bindings": []})

    def put(self, name: str, policy: Mapping[str, Any]) -> Resource:
        """Store a policy. Raises RefusedError."""
        if policy.get("etag", self.get(name)["etag"]) != self.get(name)["etag"]:
            text = "There were concurrent policy changes. Please retry the whole read-modify-write with backoff."
            raise RefusedError("ABORTED", 409, text)
        conditional = any("condition" in one for one in policy.get("bindings", []))
        if conditional and policy.get("version") != 3:
            raise RefusedError("INVALID_ARGUMENT", 400, "Policies with conditions must have version 3.")
        self._count += 1
        etag = base64.b64encode(self._count.to_bytes(8, "big")).decode()
        kept = {key: value for key, value in policy.items() if key in ("bindings", "version")}
        self._known[name] = {"version": 1, "bindings": [], **kept, "etag": etag}
        return self._known[name]

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def table(self) -> dict[str, Resource]:
        return {name: one for name, one in self._known.items() if one["bindings"]}


class Rest(Service):
    """API of stored resources: method's id -> function of the path's parameters, the query and the body."""

    api: str

    def __init__(self, project: Project) -> None:
        self.project = project
        self.lock = threading.RLock()
        self.kept: dict[str, Resource] = {}
        """Full name -> resource."""
        self.methods: Mapping[str, Callable[[Match, Mapping[str, str], Resource], Resource]] = {}
        self.tested: Mapping[str, Callable[[Match], str]] = {}
        """Id of a method testIamPermissions -> function that returns the name under which permissions are bound."""

    def call(self, request: Request) -> Call | None:
        match = discovery(self.api, "v1").match(request.method, request.path)
        if match is None or match.method.id not in (*self.methods, *self.tested):
            return None
        resource = "/".join(part for part in request.path.partition(":")[0].split("/")[2:] if part)
        return Call(self.name, "", match.method.id, request.caller, {**match.params, "resource": resource})

    def answer(self, request: Request, call: Call) -> Response:
        match = discovery(self.api, "v1").match(request.method, request.path)
        assert match is not None, "call() has found it"
        body = request.json()
        if match.method.request and (faults := discovery(self.api, "v1").faults(match.method.request, body)):
            raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid JSON payload received. {'; '.join(faults)}")
        with self.lock:
            tests = call.action.endswith(".testIamPermissions")
            made = self._held(match, call, body) if tests else self.methods[call.action](match, request.query, body)
        faults = discovery(self.api, "v1").faults(match.method.response, made)
        if faults:
            raise AssertionError(f"the stand-in's answer to {call.action} is not the API's: {faults}")
        return answer_json(made)

    def _held(self, match: Match, call: Call, body: Resource) -> Resource:
        """Return the permissions that the caller has; none at all leaves out the field."""
        name = self.tested[call.action](match)
        if any("*" in one for one in body.get("permissions", [])):
            raise RefusedError("INVALID_ARGUMENT", 400, "Permissions with wildcards are not allowed.")
        held = self.project.app.held(call.caller, body.get("permissions", []), name)
        return {"permissions": held} if held else {}

    def error(self, code: str, status: int, message: str) -> Response:
        return error_one_platform(code, status, message)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {"resources": lambda: list(self.kept.values())}

    def reset(self) -> None:
        with self.lock:
            self.kept.clear()

    def there(self, name: str) -> Resource:
        if name not in self.kept:
            raise RefusedError("NOT_FOUND", 404, f"{name} was not found.")
        return self.kept[name]

    def add(self, name: str, resource: Resource) -> Resource:
        if name in self.kept:
            raise RefusedError("ALREADY_EXISTS", 409, f"{name} already exists.")
        self.kept[name] = resource
        return resource


class Iam(Rest):
    """Service accounts and custom roles."""

    name = api = "iam"

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.policies = Policies()
        accounts, roles = "projects.serviceAccounts", "projects.roles"
        self.tested = {f"{accounts}.testIamPermissions": self._email}
        self.methods = {
            f"{accounts}.create": self._create_account,
            f"{accounts}.get": lambda match, _query, _body: self._account(match),
            f"{accounts}.patch": self._patch_account,
            f"{accounts}.delete": self._delete_account,
            f"{accounts}.getIamPolicy": lambda match, _query, _body: self.policies.get(self._account(match)["name"]),
            f"{accounts}.setIamPolicy": lambda match, _query, body: self.policies.put(
                self._account(match)["name"], body["policy"]
            ),
            f"{roles}.create": self._create_role,
            f"{roles}.get": lambda match, _query, _body: self.there(_role(match)),
            f"{roles}.patch": self._patch_role,
            f"{roles}.delete": self._delete_role,
            f"{roles}.undelete": self._undelete_role,
        }

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {**super().verbs(), "policies": self.policies.table}

    def reset(self) -> None:
        super().reset()
        self.policies = Policies()

    def _account(self, match: Match) -> Resource:
        return self.there(f"projects/{self.project.id}/serviceAccounts/{match.params['serviceAccountsId']}")

    def _email(self, match: Match) -> str:
        email = str(match.params["serviceAccountsId"])
        return email if email in self.project.accounts else str(self._account(match)["email"])

    def _create_account(self, _match: Match, _query: Mapping[str, str], body: Resource) -> Resource:
        account_id = str(body.get("accountId", ""))
        if not _ACCOUNT_ID.fullmatch(account_id):
            raise RefusedError("INVALID_ARGUMENT", 400, f"The account ID {account_id} does not have the right form.")
        email = f"{account_id}@{self.project.id}.iam.gserviceaccount.com"
        name = f"projects/{self.project.id}/serviceAccounts/{email}"
        made = {
            **body.get("serviceAccount", {}),
            "name": name,
            "email": email,
            "projectId": self.project.id,
            "uniqueId": str(10**20 + len(self.kept)),
            "etag": "MDEwMjE5MjA=",
        }
        self.add(name, made)
        self.project.accounts.add(email)
        return made

    def _patch_account(self, match: Match, _query: Mapping[str, str], body: Resource) -> Resource:
        found = self._account(match)
        result = body.get("serviceAccount", {})
        found |= {key: result[key] for key in body.get("updateMask", "").split(",") if key in result}
        return found

    def _delete_account(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        found = self._account(match)
        del self.kept[found["name"]]
        self.policies.forget(found["name"])
        self.project.accounts.discard(found["email"])
        return {}

    def _create_role(self, _match: Match, _query: Mapping[str, str], body: Resource) -> Resource:
        role_id = str(body.get("roleId", ""))
        if not _ROLE_ID.fullmatch(role_id):
            raise RefusedError("INVALID_ARGUMENT", 400, f"The role_id {role_id} does not have the right form.")
        name = f"projects/{self.project.id}/roles/{role_id}"
        if self.kept.get(name, {}).get("deleted"):
            text = f"You can't create a role_id ({role_id}) which has been marked for deletion."
            raise RefusedError("FAILED_PRECONDITION", 400, text)
        return self.add(name, {**body.get("role", {}), "name": name, "etag": "BwAAAAAAAAA="})

    def _patch_role(self, match: Match, _query: Mapping[str, str], body: Resource) -> Resource:
        found = self.there(_role(match))
        found |= {key: value for key, value in body.items() if key not in ("name", "etag")}
        return found

    def _delete_role(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        found = self.there(_role(match))
        found["deleted"] = True
        return found

    def _undelete_role(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        found = self.there(_role(match))
        found.pop("deleted", None)
        return found


class ResourceManager(Rest):
    """The project's policy."""

    name = api = "cloudresourcemanager"

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.policies = Policies()
        self.methods = {
            "projects.getIamPolicy": lambda match, _query, _body: self.policies.get(self._project(match)),
            "projects.setIamPolicy": lambda match, _query, body: self.policies.put(
                self._project(match), body["policy"]
            ),
        }
        self.tested = {"projects.testIamPermissions": self._project}

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {"policies": self.policies.table}

    def reset(self) -> None:
        self.policies = Policies()

    def _project(self, match: Match) -> str:
        if match.params["resource"] not in (self.project.id, self.project.number):
            raise RefusedError("PERMISSION_DENIED", 403, "The caller does not have permission")
        return self.project.id


class Scheduler(Rest):
    """Cloud Scheduler."""

    name = api = "cloudscheduler"

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        jobs = "projects.locations.jobs"
        self.methods = {
            f"{jobs}.create": self._create,
            f"{jobs}.get": lambda match, _query, _body: self.there(_named(match, "jobs")),
            f"{jobs}.patch": self._patch,
            f"{jobs}.delete": self._delete,
        }

    def _create(self, match: Match, _query: Mapping[str, str], body: Resource) -> Resource:
        name = str(body.get("name", ""))
        if not name.startswith(f"{_location(match)}/jobs/"):
            raise RefusedError("INVALID_ARGUMENT", 400, f"Job name must be of {_location(match)}.")
        return self.add(name, {**body, "state": "ENABLED", "userUpdateTime": _now()})

    def _patch(self, match: Match, query: Mapping[str, str], body: Resource) -> Resource:
        found = self.there(_named(match, "jobs"))
        found |= {key: body[key] for key in query.get("updateMask", "").split(",") if key in body}
        return found

    def _delete(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        del self.kept[self.there(_named(match, "jobs"))["name"]]
        return {}


class Workflows(Rest):
    """Workflows; operations are done when they are returned."""

    name = api = "workflows"

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        workflows = "projects.locations.workflows"
        self.methods = {
            f"{workflows}.create": self._create,
            f"{workflows}.get": lambda match, _query, _body: self.there(_named(match, "workflows")),
            f"{workflows}.patch": self._patch,
            f"{workflows}.delete": self._delete,
        }

    def _create(self, match: Match, query: Mapping[str, str], body: Resource) -> Resource:
        account = str(body.get("serviceAccount", "")).rpartition("/")[2]
        if account not in self.project.accounts:
            raise RefusedError("NOT_FOUND", 404, f"Service account {account} does not exist.")
        name = f"{_location(match)}/workflows/{query['workflowId']}"
        made = self.add(name, {**body, "name": name, "state": "ACTIVE", "revisionId": "000001-a", "createTime": _now()})
        return _done(made)

    def _patch(self, match: Match, query: Mapping[str, str], body: Resource) -> Resource:
        found = self.there(_named(match, "workflows"))
        found |= {key: body[key] for key in query.get("updateMask", "").split(",") if key in body}
        return _done(found)

    def _delete(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        del self.kept[self.there(_named(match, "workflows"))["name"]]
        return _done({})


def _role(match: Match) -> str:
    return f"projects/{match.params['projectsId']}/roles/{match.params['rolesId']}"


def _location(match: Match) -> str:
    return f"projects/{match.params['projectsId']}/locations/{match.params['locationsId']}"


def _named(match: Match, collection: str) -> str:
    return f"{_location(match)}/{collection}/{match.params[f'{collection}Id']}"


def _done(response: Resource) -> Resource:
    name = f"projects/p/locations/l/operations/{time.time_ns()}"
    return {"name": name, "done": True, "response": response}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
