"""The Cloud Quotas API: limits of a quota by region and GPU family.

Shapes follow the API's reference (QuotaInfo, "Get quota info for a service-specific dimension"): an entry without
dimensions applies wherever no other does; values are texts; a dimension without a limit has empty details.
google-api-python-client has no discovery document of this API. quotas.csv lists the quotas, with ids from Google's
documentation and samples and from public programs.
"""

from __future__ import annotations

import csv
import functools
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..faults import Call
from ..gcp.project import Project
from ..gcp.service import RefusedError, Request, Response, Service, answer_json, error_one_platform

_ROUTE = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/services/([^/]+)/quotaInfos/([^/]+)")


class CloudQuotas(Service):
    """Cloud Quotas of one project."""

    name = "cloudquotas"

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.Lock()
        self._infos: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def call(self, request: Request) -> Call | None:
        found = _ROUTE.fullmatch(request.path)
        if found is None or request.method != "GET":
            return None
        project, location, service, quota = found.groups()
        params = {"project": project, "location": location, "of": service, "quota": quota}
        action = "projects.locations.services.quotaInfos.get"
        return Call(self.name, "", action, request.caller, {**params, "resource": f"projects/{project}"})

    def answer(self, request: Request, call: Call) -> Response:
        if unknown := set(request.query) - {"alt", "$alt", "fields"}:
            raise RefusedError("INVALID_ARGUMENT", 400, f'Unknown name "{min(unknown)}": Cannot bind query parameter.')
        service, quota = call.params["of"], call.params["quota"]
        known = call.params["project"] in (self._project.id, self._project.number)
        if not known or call.params["location"] != "global":
            raise RefusedError("PERMISSION_DENIED", 403, f"Permission denied on resource {call.params['resource']}.")
        if (service, quota) not in _default():
            raise RefusedError("NOT_FOUND", 404, f"Quota info '{quota}' of service '{service}' is not found.")
        with self._lock:
            infos = self._infos.get((service, quota), _default()[service, quota])
        return answer_json(
            {
                "name": f"projects/{self._project.number}/locations/global/services/{service}/quotaInfos/{quota}",
                "quotaId": quota,
                "metric": f"{service}/{quota.lower()}",
                "service": service,
                "isPrecise": True,
                "containerType": "PROJECT",
                "dimensions": ["gpu_family", "region"] if "PER-GPU-FAMILY" in quota else ["region"],
                "metricUnit": "1",
                "dimensionsInfos": infos,
            }
        )

    def error(self, code: str, status: int, message: str) -> Response:
        return error_one_platform(code, status, message)

    def forbidden(self, permission: str, resource: str) -> Response:
        where = f"//cloudquotas.googleapis.com/{resource}"
        text = f"Permission '{permission}' denied on resource '{where}' (or it may not exist)."
        return self.error("IAM_PERMISSION_DENIED", 403, text)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {"set": self._set}

    def reset(self) -> None:
        with self._lock:
            self._infos.clear()

    def _set(self, service: str, quota: str, infos: list[dict[str, Any]]) -> None:
        """Set a quota's dimensionsInfos, in the API's format."""
        if (service, quota) not in _default():
            raise ValueError(f"quotas.csv has no {quota} of {service}")
        with self._lock:
            self._infos[service, quota] = infos


@functools.cache
def _default() -> Mapping[tuple[str, str], list[dict[str, Any]]]:
    """Return (service, quota) -> dimensionsInfos."""
    with Path(__file__).with_name("quotas.csv").open(newline="") as file:
        return {(row["service"], row["quota"]): [_everywhere(row["value"])] for row in csv.DictReader(file)}


def _everywhere(value: str) -> dict[str, Any]:
    return {"details": {"value": value} if value else {}, "applicableLocations": ["us-central1", "europe-west4"]}
