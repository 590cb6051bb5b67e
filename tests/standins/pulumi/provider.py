"""Framework for provider stand-ins: a table of resource kinds, served over Pulumi's protocol.

    class Vpc(Kind[Cloud]):
        type = "aws:ec2/vpc:Vpc"
        inputs = frozenset({"cidrBlock", "tags"})          # others are rejected: nothing is ignored silently
        required = frozenset({"cidrBlock"})
        replaces = frozenset({"cidrBlock"})                # or AllBut({"tags"}): all others update in place
        computed = frozenset({"arn", "id"})                # outputs of the cloud: unknown in a preview

        def create(self, name, inputs):                    # -> Made(id, outputs); outputs need not repeat the inputs
        def read(self, identity, state):                   # -> current outputs, or None: it does not exist
        def update(self, identity, old, new):              # -> outputs; old and new are inputs
        def delete(self, identity, state):                 # deleting a missing resource succeeds

    def provider() -> Provider:
        return Provider("aws", cloud=Cloud(), kinds=[Vpc], invokes={"aws:ec2/getAmi:getAmi": get_ami})

`self.cloud` is the provider's `cloud` argument: clients, region, ids. Its optional method `configure(settings)`
receives the provider's configuration (`{"region": "us-east-1"}`). An invoke is a function of (cloud, arguments).

Handlers receive plain values: no secrets (an output is secret if the input of the same name was), no outputs, and,
except in `check`, nothing unknown. Any exception fails the operation with its text; PartialError says that the resource
exists nevertheless, CheckError names an invalid property. Properties and outputs are named as on the wire
(`cidrBlock`). A type or an invoke that is not in the tables aborts with UNIMPLEMENTED.

Faults and recorded calls work as in `faults.py`, with these actions: Check, Diff, Preview (a create or update in a
preview), Create, Read, Update, Delete, Invoke, Configure; and the values `type`, `name`, `urn`, `id`, `token`:

    provider.control.fail("Create", error("InsufficientInstanceCapacity"), where={"type": "*:Instance"}, skip=1)
    provider.control.fail("Delete", HANG)          # RESET, LOSE: the engine sees a lost connection
    provider.control.calls("Update", name="fleet*")

A real provider's faults come from its cloud: prefer faults of the cloud's stand-in where they are equivalent.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from ..faults import Call, Control, Fault, Ledger, Rule, kill_peer
from . import wire
from .changes import Change, changes, top
from .wire import Props

_EMPTY: tuple[Any, ...] = (None, "", [], {})
_Cloud = TypeVar("_Cloud")
_Answer = TypeVar("_Answer")
DEFAULTS = "__defaults"
"""Input in which providers that wrap Terraform's list the inputs with generated values."""
STATUS_DETAILS = "grpc-status-details-bin"
"""Trailing metadata key of a gRPC status with details."""
Invoke = Callable[[Any, Props], Props]
"""Function of the cloud and the arguments that returns the result."""


class CheckError(Exception):
    """A property is invalid."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class PartialError(Exception):
    """A resource was created or changed, and exists, but is incomplete: the engine keeps it and reports the reason."""

    def __init__(self, identity: str, outputs: Props, reason: str) -> None:
        super().__init__(reason)
        self.identity, self.outputs, self.reason = identity, outputs, reason


@dataclass(frozen=True)
class Made:
    """Result of create()."""

    identity: str
    outputs: Props = field(default_factory=dict)


class AllBut(Collection[str]):
    """Collection of all names except the given ones."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name not in self._names

    def __iter__(self) -> NoReturn:
        raise TypeError("it has no end")

    def __len__(self) -> NoReturn:
        raise TypeError("it has no end")


class Kind(Generic[_Cloud]):
    """A resource type. See the module's docstring."""

    type: ClassVar[str]
    inputs: ClassVar[frozenset[str]]
    """Names of the supported inputs."""
    required: ClassVar[frozenset[str]] = frozenset()
    replaces: ClassVar[Collection[str]] = frozenset()
    """Inputs whose change requires a replacement."""
    computed: ClassVar[frozenset[str]] = frozenset()
    reshaped: ClassVar[frozenset[str]] = frozenset()
    """Inputs whose outputs have a different form: unknown in a preview."""
    deletes_first: ClassVar[bool] = False
    """A replacement cannot coexist with the old resource, which is deleted first."""
    autoname: ClassVar[str] = ""
    """Input that defaults to the resource's name with a suffix of seven characters. If the program gives it, a
    replacement cannot have the same name while the old resource exists, so that is deleted first, as by providers that
    wrap Terraform's."""

    def __init__(self, cloud: _Cloud) -> None:
        self.cloud = cloud

    def check(self, inputs: Props) -> Props:
        """Return the inputs with defaults. Values may be UNKNOWN. Raises CheckError."""
        return inputs

    def create(self, name: str, inputs: Props) -> Made:
        raise NotImplementedError

    def read(self, identity: str, state: Props) -> Props | None:
        raise NotImplementedError

    def update(self, identity: str, old: Props, new: Props) -> Props:
        raise NotImplementedError(f"{self.type} has nothing that updates in place")

    def delete(self, identity: str, state: Props) -> None:
        raise NotImplementedError


class ProviderControl(Control):
    """Control of a provider in the same process."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("in-process")
        self._ledger = ledger

    def do(self, verb: str, **arguments: Any) -> Any:
        if verb == "fail":
            return self._ledger.add(Rule(**{**arguments, "fault": Fault(**arguments["fault"])}))
        if verb == "calls":
            return self._ledger.calls()
        forgotten = {"heal": {"calls": False}, "forget": {"rules": False}, "reset": {}}
        return self._ledger.clear(**forgotten[verb])


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Provider stand-in that serves its table of kinds. `serving.py` starts it."""

    def __init__(
        self,
        name: str,
        *,
        cloud: Any,
        kinds: Collection[type[Kind[Any]]],
        invokes: Mapping[str, Invoke] | None = None,
        version: str = "999.0.0",
    ) -> None:
        """`version`: high, since an engine warns about a provider that is older than the SDK."""
        self.name, self.version, self.cloud = name, version, cloud
        self._kinds = {kind.type: kind(cloud) for kind in kinds}
        self._invokes = dict(invokes or {})
        self.ledger = Ledger()
        self.control = ProviderControl(self.ledger)
        self.over = threading.Event()
        """Event that hanging calls wait for."""

    # --- the provider itself ------------------------------------------------------------------------------------------

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True, accept_resources=False, accept_outputs=False)

    def Attach(self, request: Any, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        return Empty()

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return plugin_pb2.PluginInfo(version=self.version)

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        some = wire.from_struct(request.old_inputs) != wire.from_struct(request.news)
        kind = provider_pb2.DiffResponse.DIFF_SOME if some else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=kind)

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        def perform() -> Any:
            settings = wire.plain(wire.from_struct(request.args))
            if hasattr(self.cloud, "configure"):
                self.cloud.configure(settings)
            return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

        return self._perform("Configure", {}, context, perform)

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Empty:  # noqa: N802
        """End the calls that hang now; later ones can hang again."""
        over, self.over = self.over, threading.Event()
        over.set()
        return Empty()

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        function = self._invokes.get(request.tok)
        if function is None:
            _unimplemented(context, f"the function {request.tok}")

        def perform() -> Any:
            arguments = wire.plain(wire.from_struct(request.args))
            try:
                result = function(self.cloud, arguments)
            except CheckError as wrong:
                return provider_pb2.InvokeResponse(failures=[_failure(wrong)])
            return provider_pb2.InvokeResponse(**{"return": wire.to_struct(result)})

        return self._perform("Invoke", {"token": request.tok}, context, perform)

    # --- resources ----------------------------------------------------------------------------------------------------

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)

        def perform() -> Any:
            news = wire.from_struct(request.news)
            inputs = wire.plain(news)
            unmodelled = sorted(set(inputs) - kind.inputs)
            if unmodelled:
                _unimplemented(context, f"{', '.join(unmodelled)} of {kind.type}")
            failures = [CheckError(name, "Missing required argument") for name in sorted(kind.required - set(inputs))]
            try:
                checked = kind.check(self._named(kind, request, inputs)) if not failures else inputs
            except CheckError as wrong:
                failures.append(wrong)
            if failures:
                return provider_pb2.CheckResponse(failures=[_failure(one) for one in failures])
            return provider_pb2.CheckResponse(inputs=_sealed(checked, news))

        return self._perform("Check", result, context, perform)

    def _named(self, kind: Kind[Any], request: Any, inputs: Props) -> Props:
        """Return the inputs with a generated name: the old one if there is one, otherwise with a suffix from the
        engine's seed."""
        if not kind.autoname or kind.autoname in inputs:
            return inputs
        olds = wire.plain(wire.from_struct(request.olds))
        known = olds.get(kind.autoname) if DEFAULTS in olds else None
        suffix = f"{zlib.crc32(request.randomSeed or request.urn.encode()):08x}"[:7]
        return {**inputs, kind.autoname: known or f"{name_of(request)}-{suffix}", DEFAULTS: [kind.autoname]}

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)

        def perform() -> Any:
            news = wire.from_struct(request.news)
            old, new = _plain(wire.from_struct(request.old_inputs)), _plain(news)
            ignored = set(request.ignoreChanges)
            found = {path: how for path, how in changes(old, new).items() if not {path, top(path)} & ignored}
            name = new.get(kind.autoname)
            named = name is not None and DEFAULTS not in news and name == old.get(kind.autoname)
            return _difference(kind, found, deletes_first=kind.deletes_first or named)

        return self._perform("Diff", result, context, perform)

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)
        given = wire.from_struct(request.properties)
        if request.preview:
            return self._perform("Preview", result, context, lambda: _previewed(kind, given))

        def perform() -> Any:
            inputs = _plain(given)
            try:
                made = kind.create(result["name"], inputs)
            except PartialError as partial_:
                _abort_partial(context, partial_, _sealed({**inputs, **partial_.outputs}, given), request.properties)
            outputs = _sealed({**inputs, **made.outputs}, given)
            return provider_pb2.CreateResponse(id=made.identity, properties=outputs)

        return self._perform("Create", result, context, perform)

    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)

        def perform() -> Any:
            old_inputs, state = wire.from_struct(request.inputs), wire.from_struct(request.properties)
            told_now = kind.read(request.id, wire.plain(state))
            if told_now is None:
                return provider_pb2.ReadResponse()
            # Drop empty values that were never set; otherwise each refresh would report a change.
            found = {name: value for name, value in told_now.items() if name in state or value not in _EMPTY}
            inputs = wire.plain(old_inputs) or {name: found[name] for name in kind.inputs & set(found)}
            drifted = {name: found.get(name, value) for name, value in inputs.items()}
            return provider_pb2.ReadResponse(
                id=request.id,
                inputs=_sealed(drifted, old_inputs),
                properties=_sealed({**wire.plain(state), **found}, {**old_inputs, **state}),
            )

        return self._perform("Read", result, context, perform)

    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)
        given = wire.from_struct(request.news)
        state = wire.plain(wire.from_struct(request.olds))
        if request.preview:
            return self._perform("Preview", result, context, lambda: _previewed(kind, given, state))

        def perform() -> Any:
            old, new = _plain(wire.from_struct(request.old_inputs)), _plain(given)
            kept = {name: value for name, value in state.items() if name not in old}
            try:
                outputs = kind.update(request.id, old, new)
            except PartialError as partial_:
                now = _sealed({**kept, **new, **partial_.outputs}, given)
                _abort_partial(context, partial_, now, request.news)
            return provider_pb2.UpdateResponse(properties=_sealed({**kept, **new, **outputs}, given))

        return self._perform("Update", result, context, perform)

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        kind, result = self._kind(request, context)

        def perform() -> Empty:
            kind.delete(request.id, wire.plain(wire.from_struct(request.properties)))
            return Empty()

        return self._perform("Delete", result, context, perform)

    # --- shared by all calls ------------------------------------------------------------------------------------------

    def _kind(self, request: Any, context: grpc.ServicerContext) -> tuple[Kind[Any], dict[str, str]]:
        result = {"type": type_of(request), "name": name_of(request), "urn": request.urn}
        result["id"] = getattr(request, "id", "")
        kind = self._kinds.get(result["type"])
        if kind is None:
            _unimplemented(context, f"the type {result['type']}")
        return kind, result

    def _perform(
        self, action: str, told: dict[str, str], context: grpc.ServicerContext, perform: Callable[[], _Answer]
    ) -> _Answer:
        call = Call(self.name, "", action, context.peer(), told)
        answer = self._suffer(self.ledger.open(call), context, partial(_abort_on_error, context, perform))
        self.ledger.close(call, 200)
        return answer

    def _suffer(self, fault: Fault | None, context: grpc.ServicerContext, perform: Callable[[], _Answer]) -> _Answer:
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in ("error", "html"):
            context.abort(grpc.StatusCode.UNKNOWN, fault.message)
        if kind == "hang":
            self.over.wait()
        if kind == "kill-before":
            kill_peer(_port(context))
        if kind in ("hang", "reset", "kill-before"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "error reading from server: EOF")
        answer = perform()
        if kind == "kill-after":
            kill_peer(_port(context))
        if kind in ("lose", "kill-after"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "error reading from server: EOF")
        return answer


def type_of(request: Any) -> str:
    """Return the type, such as `aws:ec2/vpc:Vpc`, from the URN if necessary: engines before 3.136 do not send it."""
    return cast(str, request.type or request.urn.split("::")[2].split("$")[-1])


def name_of(request: Any) -> str:
    return cast(str, request.name or request.urn.split("::", 3)[3])


def _abort_on_error(context: grpc.ServicerContext, perform: Callable[[], _Answer]) -> _Answer:
    """Convert a handler's exception to a gRPC error; abort() itself raises a bare Exception."""
    try:
        return perform()
    except Exception as error:
        if cast(Any, context).code() is None:
            context.abort(grpc.StatusCode.UNKNOWN, str(error) or type(error).__name__)
        raise


def _plain(properties: Props) -> Props:
    """Return the properties as kinds receive them."""
    return {name: value for name, value in wire.plain(properties).items() if name != DEFAULTS}


def _difference(kind: Kind[Any], found: Mapping[str, Change], *, deletes_first: bool) -> Any:
    replaces = {path for path in found if top(path) in kind.replaces}
    detailed = {
        path: provider_pb2.PropertyDiff(
            kind=provider_pb2.PropertyDiff.Kind.Value(f"{how.upper()}{'_REPLACE' if path in replaces else ''}"),
            inputDiff=True,
        )
        for path, how in found.items()
    }
    some = provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE
    return provider_pb2.DiffResponse(
        changes=some,
        diffs=sorted({top(path) for path in found}),
        replaces=sorted({top(path) for path in replaces}),
        deleteBeforeReplace=bool(replaces) and deletes_first,
        detailedDiff=detailed,
        hasDetailedDiff=True,
    )


def _previewed(kind: Kind[Any], given: Props, state: Props | None = None) -> Any:
    """Return the preview of a create, where computed outputs are unknown, or of an update, where they are kept."""
    inputs = {**_plain(given), **dict.fromkeys(kind.reshaped & set(given), wire.UNKNOWN)}
    if state is not None:
        kept = {name: value for name, value in state.items() if name in kind.computed}
        return provider_pb2.UpdateResponse(properties=_sealed({**kept, **inputs}, given))
    unknown = dict.fromkeys(kind.computed - set(inputs), wire.UNKNOWN)
    return provider_pb2.CreateResponse(properties=_sealed({**unknown, **inputs}, given))


def _sealed(properties: Props, given: Mapping[str, Any]) -> Any:
    """Return a Struct in which properties that were secret in `given` are secret."""
    return wire.to_struct(wire.with_secrets(properties, wire.secret_keys(given)))


def _failure(wrong: CheckError) -> Any:
    return provider_pb2.CheckFailure(property=wrong.name, reason=wrong.reason)


def _abort_partial(context: grpc.ServicerContext, error: PartialError, properties: Any, inputs: Any) -> NoReturn:
    detail = AnyMessage()
    result = provider_pb2.ErrorResourceInitFailed(
        id=error.identity, properties=properties, reasons=[error.reason], inputs=inputs
    )
    detail.Pack(result)
    status = Status(code=grpc.StatusCode.UNKNOWN.value[0], message=error.reason, details=[detail])
    context.set_trailing_metadata(((STATUS_DETAILS, status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, error.reason)
    raise AssertionError


def _unimplemented(context: grpc.ServicerContext, what: str) -> NoReturn:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{what}: not modelled by the stand-in for this provider")
    raise AssertionError


def _port(context: grpc.ServicerContext) -> int:
    return int(context.peer().rpartition(":")[2])


__all__ = [
    "AllBut",
    "CheckError",
    "Kind",
    "Made",
    "PartialError",
    "Props",
    "Provider",
    "ProviderControl",
]
