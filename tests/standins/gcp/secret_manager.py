"""Secret Manager: secrets and their versions, with payloads, checksums, states and policies.

It follows the discovery document, "Access a secret version" and "Secret version states". A caller without the
permission gets the same answer for a secret that does not exist. Messages are those that clients' issues quote.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c

from .discovery import Match
from .platform import Policies, Resource, Rest
from .project import Project
from .service import RefusedError, Request, Response

_SECRETS, _VERSIONS = "projects.secrets", "projects.secrets.versions"


class SecretManager(Rest):
    """Secrets of the project, which requests may name by its id or its number."""

    name = api = "secretmanager"

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.policies = Policies()
        self.payloads: dict[str, bytes] = {}
        """Full name of a version -> payload."""
        self.damaged = 0
        """Number of following payloads that are damaged on the way."""
        self.methods = {
            f"{_SECRETS}.get": lambda match, _query, _body: self.there(self._secret(match)),
            f"{_SECRETS}.getIamPolicy": lambda match, _query, _body: self.policies.get(self._there(match)),
            f"{_SECRETS}.setIamPolicy": lambda match, _query, body: self.policies.put(
                self._there(match), body["policy"]
            ),
            f"{_VERSIONS}.access": self._access,
        }

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {
            **super().verbs(),
            "put": self._put,
            "state": self._state,
            "damage": self._damage,
            "policies": self.policies.table,
        }

    def reset(self) -> None:
        super().reset()
        self.policies, self.damaged = Policies(), 0
        self.payloads.clear()

    def forbidden(self, permission: str, resource: str) -> Response:
        text = f"Permission '{permission}' denied for resource '{resource}' (or it may not exist)."
        return self.error("IAM_PERMISSION_DENIED", 403, text)

    def out_of_scope(self) -> Response:
        text = "Request had insufficient authentication scopes."
        return self.error("ACCESS_TOKEN_SCOPE_INSUFFICIENT", 403, text)

    def call(self, request: Request) -> Any:
        found = super().call(request)
        if found is not None:  # policies are bound to the secret, by the project's id
            words = request.path.partition(":")[0].split("/")
            found.params["resource"] = "/".join(["projects", self.project.id, *words[4:]])
        return found

    # -- methods

    def _secret(self, match: Match) -> str:
        if match.params["projectsId"] not in (self.project.id, self.project.number):
            raise RefusedError("NOT_FOUND", 404, f"Project {match.params['projectsId']} was not found.")
        return f"projects/{self.project.id}/secrets/{match.params['secretsId']}"

    def _there(self, match: Match) -> str:
        return str(self.there(self._secret(match))["name"])

    def _access(self, match: Match, _query: Mapping[str, str], _body: Resource) -> Resource:
        secret, wanted = self._secret(match), match.params["versionsId"]
        numbers = [int(name.rpartition("/")[2]) for name in self.payloads if name.startswith(f"{secret}/versions/")]
        number = max(numbers, default=0) if wanted == "latest" else int(wanted) if wanted.isdecimal() else 0
        shown = secret.replace(self.project.id, self.project.number)
        if number not in numbers:
            text = f"Secret [{shown}] not found or has no versions."
            raise RefusedError("NOT_FOUND", 404, text if wanted == "latest" else f"Secret Version [{shown}] not found.")
        name = f"{secret}/versions/{number}"
        if (state := self.kept[name]["state"]) != "ENABLED":
            text = f"Secret Version [{shown}/versions/{number}] is in {state} state."
            raise RefusedError("FAILED_PRECONDITION", 400, text)
        data = self.payloads[name]
        checksum = google_crc32c.value(data)
        if self.damaged:
            self.damaged -= 1
            data = bytes([data[0] ^ 1, *data[1:]])
        payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(checksum)}
        return {"name": f"{shown}/versions/{number}", "payload": payload}

    # -- control verbs

    def _put(self, secret: str, value: str, encoding: str = "utf-8") -> str:
        """Add a version to a secret, which is created if needed; return its name. `encoding`: `base64` for bytes."""
        with self.lock:
            name = f"projects/{self.project.id}/secrets/{secret}"
            self.kept.setdefault(name, {"name": name, "replication": {"automatic": {}}})
            number = 1 + sum(one.startswith(f"{name}/versions/") for one in self.payloads)
            version = f"{name}/versions/{number}"
            self.payloads[version] = base64.b64decode(value) if encoding == "base64" else value.encode()
            self.kept[version] = {"name": version, "state": "ENABLED"}
            return version

    def _state(self, version: str, state: str) -> None:
        """Set a version's state: ENABLED, DISABLED or DESTROYED."""
        self.kept[version]["state"] = state

    def _damage(self, times: int = 1) -> None:
        self.damaged = times
