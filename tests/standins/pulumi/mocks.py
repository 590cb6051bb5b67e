"""Strict mocks: run a program without an engine or a provider, and check everything that it registers.

    registered = run_strict(program)                          # raises StrictError with all errors
    network = only(registered, "aws:ec2/vpc:Vpc")             # the only resource of a type
    network.inputs["cidrBlock"]                               # plain values, as they are sent; secrets unwrapped
    exports(registered)["cloudgpu"]                           # an output of the stack

The checks use the SDK's type hints (`hints.py`): unknown keys, Pulumi's spelling in place of Python's, required fields,
scalars, lists, enums; and duplicate URNs. The providers' own checks are not made.

The cloud's values are invented: a resource has an id and, for each output that the SDK's class declares and the program
did not give, a value of the declared type. Override them by type, with a mapping or a function of the Registered. Pass
the results of invokes by token; an invoke without one is an error:

    run_strict(program, outputs={"aws:ec2/vpc:Vpc": {"defaultSecurityGroupId": "sg-1"}},
               invokes={"aws:ec2/getAmi:getAmi": lambda arguments: {"id": "ami-1"}}, preview=True)

With `preview` all invented values are unknown, as in a first preview.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import contextvars
import threading
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

import pulumi
from pulumi import _types as pulumi_types
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, resource_pb2, resource_pb2_grpc
from pulumi.runtime.settings import ROOT, Settings, configure
from pulumi.runtime.stack import run_in_stack

from . import hints, wire
from .wire import Props

STACK_TYPE = "pulumi:pulumi:Stack"

_FEATURES = [
    resource_pb2.RESOURCE_MONITOR_FEATURE_SECRETS,
    resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
    resource_pb2.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
    resource_pb2.RESOURCE_MONITOR_FEATURE_DELETED_WITH,
    resource_pb2.RESOURCE_MONITOR_FEATURE_REPLACE_WITH,
]


class StrictError(AssertionError):
    """All errors in a program's registrations."""


@dataclass
class Registered:
    """A resource or component that a program registered."""

    type: str
    name: str
    inputs: Props
    """Values by Pulumi's names, secrets unwrapped; UNKNOWN: known only after creation."""
    urn: str
    parent: str
    """URN; "" for the stack."""
    custom: bool
    """False for a component."""
    provider: str
    """`urn::id` of the explicit provider, or ""."""
    dependencies: list[str]
    """URNs of the resources that it depends on."""
    protect: bool
    ignore_changes: list[str]
    delete_before_replace: bool
    retain_on_delete: bool
    secret_inputs: set[str]
    """Names of inputs that contain a secret."""
    outputs: Props = field(default_factory=dict)
    """Outputs of a resource, invented where no override is given; for a component or the stack, its registered
    outputs."""


Outputs = Mapping[str, Any] | Callable[[Registered], Mapping[str, Any]]


def run_strict(
    program: Callable[[], Any],
    *,
    outputs: Mapping[str, Outputs] | None = None,
    invokes: Mapping[str, Callable[[Props], Props]] | None = None,
    open_enums: Collection[str] = hints.OPEN_ENUMS,
    project: str = "cloudgpu",
    stack: str = "test",
    preview: bool = False,
) -> list[Registered]:
    """Run a program; return all registrations in order, the stack first. Raises StrictError."""
    monitor = _Monitor(f"urn:pulumi:{stack}::{project}", outputs or {}, invokes or {}, open_enums, preview=preview)
    settings = {"project": project, "stack": stack, "dry_run": preview, "organization": "organization"}
    failed: Exception | None = None
    try:
        contextvars.copy_context().run(_run, program, monitor, settings)
    except Exception as error:
        if not monitor.wrong:  # otherwise it may be a consequence of the reported errors
            raise
        failed = error
    if monitor.wrong:
        raise StrictError("\n".join(monitor.wrong)) from failed
    return monitor.registered


@contextlib.contextmanager
def served(
    *,
    outputs: Mapping[str, Outputs] | None = None,
    invokes: Mapping[str, Callable[[Props], Props]] | None = None,
    project: str = "cloudgpu",
    stack: str = "test",
) -> Iterator[tuple[str, list[Registered]]]:
    """Serve strict mocks to another process, such as a plugin that handles Construct. Yield the address of the server,
    which is both engine and resource monitor, and the list of registrations. Raises StrictError at the end."""
    monitor = _Monitor(f"urn:pulumi:{stack}::{project}", outputs or {}, invokes or {}, hints.OPEN_ENUMS, preview=False)
    server = grpc.server(ThreadPoolExecutor(max_workers=16))
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(_Served(monitor), server)
    engine_pb2_grpc.add_EngineServicer_to_server(_Served(_Engine()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", monitor.registered
    finally:
        server.stop(0).wait(180)
    if monitor.wrong:
        raise StrictError("\n".join(monitor.wrong))


class _Served(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """gRPC server for the in-process monitor or engine."""

    def __init__(self, inner: _Monitor | _Engine) -> None:
        self._lock = threading.Lock()
        for name in ("Invoke", "RegisterResource", "RegisterResourceOutputs", "GetDeploymentInfo", "Log"):
            if hasattr(inner, name):
                setattr(self, name, self._answering(getattr(inner, name)))

    def _answering(self, method: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answer(request: Any, _context: grpc.ServicerContext) -> Any:
            with self._lock:
                return method(request) or Empty()

        return answer

    def SupportsFeature(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return resource_pb2.SupportsFeatureResponse(hasSupport=request.id in ("secrets", "resourceReferences"))


def only(registered: Sequence[Registered], token: str, name: str = "") -> Registered:
    """Return the only resource of this type, or of this type and name. Raises AssertionError."""
    found = [one for one in registered if one.type == token and (not name or one.name == name)]
    assert len(found) == 1, f"{len(found)} of {token} {name}: {sorted((one.type, one.name) for one in registered)}"
    return found[0]


def exports(registered: Sequence[Registered]) -> Props:
    """Return the stack's outputs."""
    return only(registered, STACK_TYPE).outputs


def _run(program: Callable[[], Any], monitor: _Monitor, settings: Mapping[str, Any]) -> None:
    ROOT.set(None)
    known = Settings(monitor=monitor, engine=_Engine(), **settings)
    configure(known)

    def watched() -> Any:
        pulumi.runtime.register_stack_transformation(monitor.check_names)
        return program()

    loop = asyncio.new_event_loop()
    # errors are raised below; otherwise every waiting task logs them
    loop.set_exception_handler(lambda _loop, _what: None)
    try:
        loop.run_until_complete(run_in_stack(watched))
    finally:
        loop.close()


class _Engine:
    """Engine that prints the SDK's warnings. Errors are also raised as exceptions."""

    def Log(self, request: Any) -> None:  # noqa: N802
        if request.severity == engine_pb2.WARNING:
            print(f"pulumi: {request.message}")


class _Monitor:
    """Replacement for the SDK's stub of the resource monitor."""

    def __init__(
        self,
        prefix: str,
        outputs: Mapping[str, Outputs],
        invokes: Mapping[str, Callable[[Props], Props]],
        open_enums: Collection[str],
        *,
        preview: bool,
    ) -> None:
        self._prefix, self._outputs, self._invokes = prefix, outputs, invokes
        self._open_enums, self._preview = open_enums, preview
        self.registered: list[Registered] = []
        self.wrong: list[str] = []

    def check_names(self, arguments: pulumi.ResourceTransformationArgs) -> None:
        """Check the names in the program's inputs before the SDK translates them."""
        _resource, args = hints.classes(arguments.type_) if arguments.type_.count(":") == 2 else (None, None)
        if args is not None:
            where = f"{arguments.type_} {arguments.name}"
            known = args
            # The SDK's classes pass None for pure outputs.
            props = {key: value for key, value in arguments.props.items() if value is not None}
            pulumi.Output.from_input(props).apply(
                lambda props: self.wrong.extend(f"{where}: {one}" for one in hints.given(known, props))
            )

    def GetDeploymentInfo(self, _request: Any) -> Any:  # noqa: N802
        return resource_pb2.DeploymentInfo(supportedFeatures=_FEATURES)

    def SignalAndWaitForShutdown(self, _request: Any) -> Empty:  # noqa: N802
        return Empty()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        one = self._told(request)
        where = f"{one.type} {one.name}"
        if any(one.urn == other.urn for other in self.registered):
            self.wrong.append(f"{where}: there are two of {one.urn}")
        self.registered.append(one)
        if not one.custom:
            return resource_pb2.RegisterResourceResponse(urn=one.urn, object=request.object)
        if one.type.startswith("pulumi:providers:"):
            return resource_pb2.RegisterResourceResponse(urn=one.urn, id="provider-id", object=request.object)
        resource, args = hints.classes(one.type)
        if resource is None or args is None:
            self.wrong.append(f"{where}: no SDK that is imported has this type")
            return resource_pb2.RegisterResourceResponse(urn=one.urn, id="unknown")
        self.wrong.extend(f"{where}: {problem}" for problem in hints.sent(args, one.inputs, self._open_enums))
        one.outputs = self._made_up(one, resource)
        identity = "" if self._preview else str(one.outputs["id"])
        answer = wire.to_struct({**one.inputs, **one.outputs})
        return resource_pb2.RegisterResourceResponse(urn=one.urn, id=identity, object=answer)

    def RegisterResourceOutputs(self, request: Any) -> Empty:  # noqa: N802
        outputs = wire.plain(wire.from_struct(request.outputs))
        next(one for one in self.registered if one.urn == request.urn).outputs = outputs
        return Empty()

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        if request.tok not in self._invokes:
            self.wrong.append(f"{request.tok}: the program calls it; run_strict(invokes=…) has no answer")
            return resource_pb2.ResourceInvokeResponse()
        result = self._invokes[request.tok](wire.plain(wire.from_struct(request.args)))
        return resource_pb2.ResourceInvokeResponse(**{"return": wire.to_struct(result)})

    def _told(self, request: Any) -> Registered:
        inputs = wire.from_struct(request.object)
        return Registered(
            type=request.type,
            name=request.name,
            inputs=wire.plain(inputs),
            urn=_urn(self._prefix, request),
            parent=request.parent,
            custom=request.custom,
            provider=request.provider,
            dependencies=list(request.dependencies),
            protect=request.protect,
            ignore_changes=list(request.ignoreChanges),
            delete_before_replace=request.deleteBeforeReplace,
            retain_on_delete=request.retainOnDelete,
            secret_inputs=wire.secret_keys(inputs),
        )

    def _made_up(self, one: Registered, resource: type) -> Props:
        declared = {name: hint for name, hint in pulumi_types.resource_types(resource).items() if name != "urn"}
        result = self._outputs.get(one.type, {})
        better = dict(result(one) if callable(result) else result)
        made: Props = {"id": f"{one.name}-id"}
        for name, hint in declared.items():
            if name in one.inputs:
                made[name] = _echoed(hint, one.inputs[name])
            else:
                made[name] = wire.UNKNOWN if self._preview else _invented(one, name, hint)
        return {**made, **better}


def _urn(prefix: str, request: Any) -> str:
    above = request.parent.split("::")[2].split("$")[-1] if request.parent else ""
    qualified = f"{above}${request.type}" if above and above != STACK_TYPE else request.type
    return f"{prefix}::{qualified}::{request.name}"


def _echoed(hint: Any, value: Any) -> Any:
    """Convert an input to the output of the same name. (Azure takes lists of identities and returns maps.)"""
    if isinstance(value, list) and typing.get_origin(hint) in (dict, collections.abc.Mapping):
        return {str(one): {} for one in value}
    if isinstance(value, list) and typing.get_origin(hint) in (list, collections.abc.Sequence):
        return [_echoed(typing.get_args(hint)[0], one) for one in value]
    if isinstance(value, Mapping) and isinstance(hint, type) and pulumi_types.is_output_type(hint):
        types = pulumi_types.output_type_types(hint)
        return {key: _echoed(types.get(key), one) for key, one in value.items()}
    return value


def _invented(one: Registered, name: str, hint: Any) -> Any:
    """Return a value of the declared type."""
    if hint is bool:
        return False
    if hint in (int, float):
        return 1
    if typing.get_origin(hint) in (list, collections.abc.Sequence):
        return []
    if typing.get_origin(hint) in (dict, collections.abc.Mapping) or pulumi_types.is_output_type(hint):
        return {}
    if name == "arn":
        service = one.type.split(":")[1].split("/")[0]
        return f"arn:aws:{service}:us-east-1:123456789012:{one.name}"
    return f"{one.name}-{name}"
