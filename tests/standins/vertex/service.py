"""Vertex AI's REST API of custom jobs, and its control verbs.

Bodies are validated against Google's discovery document and then by protobuf. Other paths of aiplatform.googleapis.com
are no routes of this service, so they get StandinNotImplemented.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..faults import Call
from ..gcp.discovery import Match, discovery
from ..gcp.project import Project
from ..gcp.service import RefusedError, Request, Response, Service, answer_json, error_one_platform
from .grpc_front import GrpcFront
from .jobs import CustomJobs

GRPC_ENDPOINT = "CLOUDGPU_STANDIN_VERTEX_GRPC"
"""Test variable with host and port of the gRPC server."""
JOBS = "projects.locations.customJobs"
_REGIONS = (
    "africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 asia-southeast1 "
    "asia-southeast2 australia-southeast1 australia-southeast2 europe-central2 europe-north1 europe-southwest1 "
    "europe-west1 europe-west2 europe-west3 europe-west4 europe-west6 europe-west8 europe-west9 europe-west12 "
    "me-central1 me-central2 me-west1 northamerica-northeast1 northamerica-northeast2 southamerica-east1 "
    "southamerica-west1 us-central1 us-east1 us-east4 us-east5 us-south1 us-west1 us-west2 us-west3 us-west4"
)
"""Regions from cloud.google.com/vertex-ai/docs/general/locations."""
REGIONS = frozenset(_REGIONS.split())


class Vertex(Service):
    """Custom jobs of one project."""

    name = "aiplatform"

    def __init__(self, project: Project) -> None:
        self._project = project
        self.jobs = CustomJobs(project)
        self._front: GrpcFront | None = None
        self._methods: Mapping[str, Callable[[Match, Request], Response]] = {
            f"{JOBS}.create": self._create,
            f"{JOBS}.get": self._get,
            f"{JOBS}.list": self._list,
            f"{JOBS}.cancel": self._cancel,
            f"{JOBS}.delete": self._delete,
        }

    # -- the API

    def call(self, request: Request) -> Call | None:
        if "/customJobs" not in request.path:
            return None
        match = discovery("aiplatform", "v1").match(request.method, request.path)
        if match is None or match.method.id not in self._methods:
            return None
        params = dict(match.params)
        return Call(
            self.name,
            params["locationsId"],
            match.method.id,
            request.caller,
            {**params, "resource": _resource(params), **_told_of(request)},
        )

    def answer(self, request: Request, call: Call) -> Response:
        match = discovery("aiplatform", "v1").match(request.method, request.path)
        assert match is not None, "call() has found it"
        if match.params["projectsId"] not in (self._project.id, self._project.number):
            text = f"Permission denied on resource project {match.params['projectsId']}."
            raise RefusedError("CONSUMER_INVALID", 403, text)
        if call.region not in REGIONS:
            raise RefusedError("NOT_FOUND", 404, f"The requested location '{call.region}' is not found.")
        if unknown := discovery("aiplatform", "v1").unknown_queries(match.method, request.query):
            raise RefusedError("INVALID_ARGUMENT", 400, f'Invalid JSON payload received. Unknown name "{unknown[0]}"')
        return self._methods[call.action](match, request)

    def error(self, code: str, status: int, message: str) -> Response:
        return error_one_platform(code, status, message)

    def forbidden(self, permission: str, resource: str) -> Response:
        where = f"//aiplatform.googleapis.com/{resource}"
        text = f"Permission '{permission}' denied on resource '{where}' (or it may not exist)."
        return self.error("IAM_PERMISSION_DENIED", 403, text)

    def _create(self, match: Match, request: Request) -> Response:
        body = request.json()
        if faults := discovery("aiplatform", "v1").faults(match.method.request, _as_named(body)):
            raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid JSON payload received. {'; '.join(faults)}")
        proto = _parsed(request.body)
        region = match.params["locationsId"]
        return _answer(self.jobs.create(match.params["projectsId"], region, proto), request)

    def _get(self, match: Match, request: Request) -> Response:
        return _answer(self.jobs.get(match.params["locationsId"], match.params["customJobsId"]), request)

    def _list(self, match: Match, request: Request) -> Response:
        query = request.query
        keep = _kept(query.get("readMask", ""))
        size = query.get("pageSize", "0")
        if not size.removeprefix("-").isdecimal():
            raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid value at 'page_size': {size}")
        found, token = self.jobs.find(
            match.params["locationsId"], query.get("filter", ""), int(size), query.get("pageToken", "")
        )
        jobs = [{name: value for name, value in _as_json(one, request).items() if keep(name)} for one in found]
        result: dict[str, Any] = {"customJobs": jobs} if jobs else {}
        return answer_json({**result, "nextPageToken": token} if token else result)

    def _cancel(self, match: Match, request: Request) -> Response:
        if faults := discovery("aiplatform", "v1").faults(match.method.request, request.json()):
            raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid JSON payload received. {'; '.join(faults)}")
        self.jobs.cancel(match.params["locationsId"], match.params["customJobsId"])
        return answer_json({})

    def _delete(self, match: Match, _request: Request) -> Response:
        name = self.jobs.delete(match.params["locationsId"], match.params["customJobsId"])
        kinds = {"metadata": "google.cloud.aiplatform.v1.DeleteOperationMetadata", "response": "google.protobuf.Empty"}
        done = {key: {"@type": f"type.googleapis.com/{kind}"} for key, kind in kinds.items()}
        return answer_json({"name": name, "done": True, **done})

    # -- tests

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        jobs = self.jobs
        return {
            "set_capacity": jobs.set_capacity,
            "set_quota": jobs.set_quota,
            "withdraw": jobs.withdraw,
            "set_pending": jobs.set_pending,
            "set_lag": jobs.set_lag,
            "preempt": jobs.preempt,
            "fail_inside": jobs.fail_inside,
            "finish": jobs.finish,
            "jobs": jobs.job_states,
        }

    def environ(self) -> Mapping[str, str]:
        """Return the gRPC server's address; the server starts on first use."""
        if self._front is None:
            self._front = GrpcFront(self._project)
        # gRPC would use the HTTPS proxy that control.environ() sets, even for plain connections.
        return {GRPC_ENDPOINT: self._front.address, "no_grpc_proxy": "127.0.0.1"}

    def reset(self) -> None:
        self.jobs.reset()

    def close(self) -> None:
        if self._front is not None:
            self._front.close()


def _kept(mask: str) -> Callable[[str], bool]:
    """Return a predicate for the fields selected by a FieldMask of whole fields, by their JSON names."""
    from google.cloud.aiplatform_v1.types import CustomJob

    known = {name: field.json_name for name, field in CustomJob.pb().DESCRIPTOR.fields_by_name.items()}
    known |= {json_name: json_name for json_name in known.values()}
    wanted = [path for path in mask.split(",") if path]
    if unknown := [path for path in wanted if path not in known]:
        raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid field mask: {unknown[0]}")
    names = {known[path] for path in wanted}
    return lambda name: not names or name in names


def _resource(params: Mapping[str, str]) -> str:
    place = f"projects/{params['projectsId']}/locations/{params['locationsId']}"
    return f"{place}/customJobs/{params['customJobsId']}" if "customJobsId" in params else place


def _told_of(request: Request) -> dict[str, str]:
    """Return the fields that rules use: the query, and a body's labels, first machine type and strategy."""
    result = dict(request.query)
    try:
        body = json.loads(request.body or b"{}")
        result |= {f"labels.{key}": str(value) for key, value in body.get("labels", {}).items()}
        spec = body.get("jobSpec", {})
        result["account"] = str(spec.get("serviceAccount", ""))
        result["strategy"] = str(spec.get("scheduling", {}).get("strategy", ""))
        result["machineType"] = str(spec["workerPoolSpecs"][0]["machineSpec"]["machineType"])
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # answer() reports the error
    return result


def _parsed(body: bytes) -> Any:
    """Parse a CustomJob (protobuf). Raises RefusedError."""
    from google.cloud.aiplatform_v1.types import CustomJob
    from google.protobuf.json_format import Parse, ParseError

    try:
        return Parse(body, CustomJob.pb()())
    except ParseError as error:
        raise RefusedError("INVALID_ARGUMENT", 400, f"Invalid JSON payload received. {error}") from error


def _as_json(proto: Any, request: Request) -> Any:
    from google.protobuf.json_format import MessageToDict

    numbers = "enum-encoding=int" in request.query.get("$alt", "")
    return MessageToDict(proto, use_integers_for_enums=numbers)


def _answer(proto: Any, request: Request) -> Response:
    return answer_json(_as_json(proto, request))


def _as_named(body: Any) -> Any:
    """Replace enum numbers, which Google's clients send, by the names in the discovery document."""
    from google.cloud.aiplatform_v1.types import CustomJob

    return _named(body, CustomJob.pb().DESCRIPTOR)


def _named(value: Any, message: Any) -> Any:
    if not isinstance(value, dict) or message is None:
        return value
    found = {}
    for name, one in value.items():
        field = message.fields_by_camelcase_name.get(name)
        found[name] = one if field is None else _named_field(one, field)
    return found


def _named_field(value: Any, field: Any) -> Any:
    if field.enum_type is not None and isinstance(value, int):
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        return value
    if isinstance(value, list):
        return [_named(one, field.message_type) for one in value]
    return _named(value, field.message_type)
