"""Metadata service of one machine: AzureMetadata plus instance properties and tokens.

It follows "Azure Instance Metadata Service for virtual machines" and "Use managed identities on a VM to acquire access
token": 400 without `Metadata: true` or api-version, 403 through a proxy (X-Forwarded-For); without an identity a token
request gets 400 invalid_request, "Identity not found".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..metadata import Answer, Request
from ..metadata_azure import AzureMetadata
from .tokens import TOKEN_S, Principal

INSTANCE = "/metadata/instance"
TOKEN = "/metadata/identity/oauth2/token"
_JSON = {"Content-Type": "application/json; charset=utf-8"}


class InstanceMetadata(AzureMetadata):
    """`describe` returns `compute` and `network`; `identities` the machine's identities, each with the id of a
    user-assigned one or ""; `token` a new access token; `acknowledged` is called for acknowledged events."""

    def __init__(
        self,
        name: str,
        describe: Callable[[], Mapping[str, Any]],
        identities: Callable[[], Sequence[tuple[str, Principal]]],
        token: Callable[[Principal, str], str],
        acknowledged: Callable[[str], None],
    ) -> None:
        super().__init__(name)
        self._describe, self._identities, self._token = describe, identities, token
        self._acknowledged = acknowledged
        self.token_status = 200
        """HTTP status of the response to a token request."""

    def answer(self, request: Request) -> Answer:
        wanted = request.headers.get("Metadata") == "true" and "api-version" in request.query
        if not wanted or "X-Forwarded-For" in request.headers:
            return Answer(400, json.dumps({"error": "Bad request. api-version and Metadata: true are required"}), _JSON)
        if request.path == TOKEN:
            return self._credential(request.query)
        if request.path.startswith(INSTANCE):
            return self._find(request.path.removeprefix(INSTANCE), request.query)
        before = len(self.started)
        result = super().answer(request)
        for identity in self.started[before:]:
            self._acknowledged(identity)
        return result

    def _find(self, path: str, query: Mapping[str, str]) -> Answer:
        found: Any = self._describe()
        for name in path.split("/"):
            if not name:
                continue
            if isinstance(found, list):
                found = dict(enumerate(found))
            index = int(name) if name.isdecimal() else name
            if not isinstance(found, Mapping) or index not in found:
                return Answer(404, json.dumps({"error": "Not found"}), _JSON)
            found = found[index]
        if query.get("format", "json") == "text":
            text = (
                "\n".join(f"{name}/" if isinstance(one, (dict, list)) else name for name, one in found.items())
                if (isinstance(found, Mapping))
                else str(found)
            )
            return Answer(body=text, headers={"Content-Type": "text/plain; charset=utf-8"})
        return Answer(body=json.dumps(found), headers=_JSON)

    def _credential(self, query: Mapping[str, str]) -> Answer:
        if self.token_status != 200:
            return Answer(self.token_status, json.dumps({"error": "temporarily_unavailable"}), _JSON)
        resource = query.get("resource", "")
        if not resource:
            result = {"error": "invalid_request", "error_description": "Required audience parameter not specified"}
            return Answer(400, json.dumps(result), _JSON)
        held = self._chosen(query)
        if held is None:
            result = {"error": "invalid_request", "error_description": "Identity not found"}
            return Answer(400, json.dumps(result), _JSON)
        now = int(time.time())
        result = {
            "access_token": self._token(held, resource.rstrip("/")),
            "client_id": held.client_id,
            "expires_in": str(int(TOKEN_S)),
            "expires_on": str(now + int(TOKEN_S)),
            "ext_expires_in": "86399",
            "not_before": str(now - 5),
            "resource": resource,
            "token_type": "Bearer",
        }
        return Answer(body=json.dumps(result), headers=_JSON)

    def _chosen(self, query: Mapping[str, str]) -> Principal | None:
        """Return the requested identity, by default the system-assigned one, or the only one."""
        held = list(self._identities())
        for path, one in held:
            asked = (query.get("client_id"), query.get("object_id"), query.get("principal_id"))
            if any(asked) and ({one.client_id, one.object_id} & {value for value in asked if value}):
                return one
            wanted = query.get("msi_res_id") or query.get("mi_res_id")
            if wanted and wanted.lower() == path.lower():
                return one
        named = ("client_id", "object_id", "principal_id", "msi_res_id", "mi_res_id")
        if any(query.get(name) for name in named) or not held:
            return None
        own = [one for path, one in held if not path]
        return own[0] if own else held[0][1] if len(held) == 1 else None
