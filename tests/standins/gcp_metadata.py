"""Metadata server of one Compute Engine instance: GcpMetadata plus the instance's and the project's properties.

It follows cloud.google.com/compute/docs/metadata/predefined-metadata-keys. A directory listing marks each subdirectory
with a trailing `/`; `recursive=true` returns the tree as JSON with keys in camel case; `alt=text` returns a single
value as it is. The service account's token is an access token with the scopes of the instance.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from .metadata import Answer, Request
from .metadata_gcp import BASE, NOT_YET, GcpMetadata

ROOT = "/computeMetadata/v1/"
_EVENT_S = 3_600.0
"""Seconds before maintenance at which maintenance-event announces that a machine with GPUs will be terminated."""
_ACCOUNTS = "instance/service-accounts/"
_TEXT = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "Content-Type": "application/text"}
_JSON = {**_TEXT, "Content-Type": "application/json"}


class InstanceMetadata(GcpMetadata):
    """Metadata server of one instance.

    `describe` returns the nested values of the instance and the project, under the server's names. `token` returns a
    new access token and its lifetime in seconds. Without a service account no token is served.
    """

    def __init__(
        self,
        describe: Callable[[], Mapping[str, Any]],
        token: Callable[[], tuple[str, float]],
        account: tuple[str, tuple[str, ...]] | None,
    ) -> None:
        super().__init__()
        self._describe, self._token, self._account = describe, token, account
        self._window = (0.0, 0.0)
        self.token_status = 200
        """HTTP status of the response to a token request."""

    def announce_maintenance(self, lead_s: float, lasts_s: float = 3_600.0) -> None:
        """Announce host maintenance that begins in `lead_s` seconds; it terminates a machine with GPUs."""
        self._window = (time.time() + lead_s, time.time() + lead_s + lasts_s)
        self.set("upcoming-maintenance", self._maintenance("PENDING"))
        if lead_s <= _EVENT_S:
            self.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")

    def begin_maintenance(self) -> None:
        """Mark the maintenance as ongoing."""
        self.set("upcoming-maintenance", self._maintenance("ONGOING"))
        self.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")

    def end_maintenance(self) -> None:
        """Mark the maintenance as complete."""
        self.set("upcoming-maintenance", NOT_YET, 503)
        self.set("maintenance-event", "NONE")

    def _maintenance(self, status: str) -> str:
        begins, ends = (
            datetime.fromtimestamp(at + self.clock_off_s, UTC).isoformat(timespec="seconds") for at in self._window
        )
        return json.dumps(
            {
                "canReschedule": False,
                "latestWindowStartTime": begins,
                "maintenanceStatus": status,
                "type": "SCHEDULED",
                "windowEndTime": ends,
                "windowStartTime": begins,
            }
        )

    def answer(self, request: Request) -> Answer:
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return super().answer(request)
        if request.path.removeprefix(BASE) in self.values:
            return super().answer(request)
        if request.path in ("/", "/computeMetadata", "/computeMetadata/"):
            return Answer(body="computeMetadata/\n", headers=_TEXT)
        return self._find(request.path.removeprefix(ROOT), request.query)

    def _find(self, path: str, query: Mapping[str, str]) -> Answer:
        if path.startswith(_ACCOUNTS) and path.endswith(("/token", "/identity")):
            return self._credential(path)
        found: Any = self._tree()
        for name in path.split("/"):
            if name and (not isinstance(found, Mapping) or name not in found):
                return Answer(404, "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>", _TEXT)
            found = found[name] if name else found
        if not isinstance(found, Mapping):
            return self._value(found, query)
        if query.get("recursive", "").lower() == "true":
            return Answer(body=json.dumps(_camel(found, keep=path.endswith("attributes/"))), headers=_JSON)
        names = [f"{name}/" if isinstance(value, Mapping) else name for name, value in found.items()]
        return Answer(body="".join(f"{name}\n" for name in names), headers=_TEXT)

    def _value(self, value: Any, query: Mapping[str, str]) -> Answer:
        if query.get("alt") == "json":
            return Answer(body=json.dumps(value), headers=_JSON)
        text = "\n".join(value) + "\n" if isinstance(value, (list, tuple)) else str(value)
        return Answer(body=text, headers=_TEXT)

    def _tree(self) -> dict[str, Any]:
        tree = {part: dict(values) for part, values in self._describe().items()}
        tree["instance"] |= self.values
        accounts: dict[str, Any] = {}
        if self._account is not None:
            email, scopes = self._account
            result = {"aliases": ["default"], "email": email, "scopes": list(scopes)}
            accounts = {email: result, "default": result}
        tree["instance"]["service-accounts"] = accounts
        return tree

    def _credential(self, path: str) -> Answer:
        who = path.removeprefix(_ACCOUNTS).partition("/")[0]
        if self._account is None or who not in ("default", self._account[0]) or path.endswith("/identity"):
            return Answer(404, "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>", _TEXT)
        if self.token_status != 200:
            return Answer(self.token_status, json.dumps({"error": "unavailable"}), _JSON)
        token, lasts_s = self._token()
        result = {"access_token": token, "expires_in": int(lasts_s), "token_type": "Bearer"}
        return Answer(body=json.dumps(result), headers=_JSON)


def _camel(value: Any, *, keep: bool = False) -> Any:
    """Convert keys to camel case, except keys of custom metadata and e-mail addresses."""
    if isinstance(value, Mapping):
        return {
            name if keep or "@" in name else _camel_name(name): _camel(one, keep=name == "attributes")
            for name, one in value.items()
        }
    return list(value) if isinstance(value, tuple) else value


def _camel_name(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)
