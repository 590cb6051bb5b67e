"""The gRPC services for programs: the resource monitor and the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, resource_pb2, resource_pb2_grpc

from .. import wire
from .backend import Name
from .deployment import Deployment, StoppedError
from .events import Events
from .goals import Goal, UnmodelledError
from .plugins import OperationError
from .state import STACK_TYPE, Resource

_FEATURES = {
    "secrets": resource_pb2.RESOURCE_MONITOR_FEATURE_SECRETS,
    "resourceReferences": resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
    "outputValues": resource_pb2.RESOURCE_MONITOR_FEATURE_OUTPUT_VALUES,
    "aliasSpecs": resource_pb2.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
    "deletedWith": resource_pb2.RESOURCE_MONITOR_FEATURE_DELETED_WITH,
}
_GET_RESOURCE = "pulumi:pulumi:getResource"


class Monitor(resource_pb2_grpc.ResourceMonitorServicer):
    """Resource monitor that registers in a deployment. Unsupported requests are UNIMPLEMENTED."""

    def __init__(self, deployment: Deployment, stack: Name) -> None:
        self._deployment, self._stack = deployment, stack

    def SupportsFeature(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return resource_pb2.SupportsFeatureResponse(hasSupport=request.id in _FEATURES)

    def GetDeploymentInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return resource_pb2.DeploymentInfo(supportedFeatures=list(_FEATURES.values()))

    def SignalAndWaitForShutdown(self, request: Any, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        return Empty()

    def RegisterResource(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._answering(context):
            made = self._deployment.register(Goal.of(request, self._stack))
            # A component's outputs are the inputs that the program knows.
            result = wire.from_struct(request.object) if not made.custom else made.outputs
            if made.type == STACK_TYPE:
                result = {}
            return resource_pb2.RegisterResourceResponse(urn=made.urn, id=made.id, object=wire.to_struct(result))

    def RegisterResourceOutputs(self, request: Any, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        with self._answering(context):
            self._deployment.register_outputs(request.urn, wire.from_struct(request.outputs))
            return Empty()

    def ReadResource(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._answering(context):
            wanted = resource_pb2.RegisterResourceRequest(
                type=request.type,
                name=request.name,
                parent=request.parent,
                custom=True,
                object=request.properties,
                provider=request.provider,
                version=request.version,
                dependencies=request.dependencies,
                additionalSecretOutputs=request.additionalSecretOutputs,
            )
            found = self._deployment.read(Goal.of(wanted, self._stack), request.id)
            return resource_pb2.ReadResourceResponse(urn=found.urn, properties=wire.to_struct(found.outputs))

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._answering(context):
            if request.tok == _GET_RESOURCE:
                return self._resource(wire.plain(wire.from_struct(request.args))["urn"], context)
            try:
                answer = self._deployment.invoke(request.tok, request.args, request.provider, request.version)
            except OperationError as error:
                context.abort(grpc.StatusCode.UNKNOWN, f"invocation of {request.tok} returned an error: {error}")
                raise
            return resource_pb2.ResourceInvokeResponse(
                **{"return": getattr(answer, "return")},
                failures=[
                    provider_pb2.CheckFailure(property=one.property, reason=one.reason) for one in answer.failures
                ],
            )

    def _resource(self, urn: str, context: grpc.ServicerContext) -> Any:
        found: list[Resource] = [one for one in self._deployment.snapshot().resources if one.urn == urn]
        if not found:
            context.abort(grpc.StatusCode.UNKNOWN, f"unknown resource {urn}")
        result = {"urn": urn, "id": found[0].id, "state": found[0].outputs}
        return resource_pb2.ResourceInvokeResponse(**{"return": wire.to_struct(result)})

    @contextlib.contextmanager
    def _answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Convert errors to gRPC statuses; after the update has stopped, the monitor is UNAVAILABLE."""
        try:
            with self._deployment.answering():
                yield
        except StoppedError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the engine has stopped")
        except UnmodelledError as error:
            self._deployment.fail(str(error))
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))


class Engine(engine_pb2_grpc.EngineServicer):
    """Engine service: receives logs of programs and providers, and stores the root resource."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._root = ""

    def Log(self, request: Any, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        severity = {engine_pb2.INFO: "info", engine_pb2.WARNING: "warning", engine_pb2.ERROR: "error"}
        if request.severity in severity:
            self._events.diagnostic(request.message, urn=request.urn, severity=severity[request.severity])
        return Empty()

    def GetRootResource(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return engine_pb2.GetRootResourceResponse(urn=self._root)

    def SetRootResource(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._root = request.urn
        return engine_pb2.SetRootResourceResponse()

    def RequirePulumiVersion(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return engine_pb2.RequirePulumiVersionResponse()
