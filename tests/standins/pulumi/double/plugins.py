"""Provider plugins: discovery as in Pulumi, and calls over its gRPC protocol.

Search order after pulumi/pulumi, sdk/go/common/workspace/plugins.go: PULUMI_DEBUG_PROVIDERS (attach to a running one),
then `pulumi-resource-<name>` on PATH. The folder of downloaded plugins is not searched, and nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from .. import wire
from ..provider import STATUS_DETAILS
from ..wire import Props

MESSAGE_BYTES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
START_S = 180.0
At = Mapping[str, Any]
"""`urn`, `type` and `name` of a resource."""


class OperationError(Exception):
    """A provider's operation failed."""


class InitError(OperationError):
    """A failed operation after which the resource exists: its id and properties."""

    def __init__(self, told: Any) -> None:
        super().__init__("\n".join(told.reasons))
        self.id, self.reasons = str(told.id), list(told.reasons)
        self.outputs = wire.from_struct(told.properties)
        self.inputs = wire.from_struct(told.inputs)


class PluginError(Exception):
    """The plugin does not exist or does not start."""


@dataclass(frozen=True)
class Difference:
    """A provider's diff between old and new inputs."""

    changed: bool
    replaces: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    detailed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path -> details: `{"diffKind": "update-replace", "inputDiff": True}`."""
    deletes_first: bool = False


class Plugin:
    """Client of one provider."""

    def __init__(self, address: str, process: subprocess.Popen[str] | None = None) -> None:
        self._channel = grpc.insecure_channel(address, options=MESSAGE_BYTES)
        self._stub = provider_pb2_grpc.ResourceProviderStub(self._channel)
        self._process = process
        self.version = self._stub.GetPluginInfo(Empty()).version

    def attach(self, engine: str) -> None:
        self._stub.Attach(plugin_pb2.PluginAttach(address=engine))

    def configure(self, urn: str, identity: str, inputs: Props) -> None:
        """Configure the provider. Raises OperationError."""
        settings = {name: value for name, value in wire.plain(inputs).items() if name != "version"}
        request = provider_pb2.ConfigureRequest(
            urn=urn,
            id=identity,
            args=_struct(settings),
            variables={name: value for name, value in settings.items() if isinstance(value, str)},
            acceptSecrets=True,
            sends_old_inputs=True,
            sends_old_inputs_to_delete=True,
        )
        self._call(self._stub.Configure, request)

    def check_config(self, urn: str, inputs: Props) -> tuple[Props, list[tuple[str, str]]]:
        answer = self._call(self._stub.CheckConfig, provider_pb2.CheckRequest(urn=urn, news=_struct(inputs)))
        return wire.from_struct(answer.inputs), _failures(answer)

    def check(self, at: At, old: Props, new: Props, seed: bytes) -> tuple[Props, list[tuple[str, str]]]:
        """Return the inputs with defaults, and failures as (property, reason)."""
        request = provider_pb2.CheckRequest(**at, olds=_struct(old), news=_struct(new), randomSeed=seed)
        answer = self._call(self._stub.Check, request)
        return wire.from_struct(answer.inputs), _failures(answer)

    def diff(self, at: At, identity: str, old: tuple[Props, Props], new: Props, ignored: Iterable[str]) -> Difference:
        """Compare a resource with new inputs. `old`: inputs and outputs."""
        request = provider_pb2.DiffRequest(
            **at,
            id=identity,
            old_inputs=_struct(old[0]),
            olds=_struct(old[1]),
            news=_struct(new),
            ignoreChanges=list(ignored),
        )
        answer = self._call(self._stub.Diff, request)
        kinds = provider_pb2.PropertyDiff.Kind
        detailed = {
            path: {"diffKind": kinds.Name(one.kind).lower().replace("_", "-"), "inputDiff": one.inputDiff}
            for path, one in answer.detailedDiff.items()
        }
        changed = answer.changes == provider_pb2.DiffResponse.DIFF_SOME
        if answer.changes == provider_pb2.DiffResponse.DIFF_UNKNOWN:
            changed = wire.plain(old[0]) != wire.plain(new)
        return Difference(changed, list(answer.replaces), list(answer.diffs), detailed, answer.deleteBeforeReplace)

    def create(self, at: At, inputs: Props, *, preview: bool) -> tuple[str, Props]:
        request = provider_pb2.CreateRequest(**at, properties=_struct(inputs), preview=preview)
        answer = self._call(self._stub.Create, request)
        return answer.id, wire.from_struct(answer.properties)

    def update(
        self,
        at: At,
        identity: str,
        old: tuple[Props, Props],
        new: Props,
        ignored: Iterable[str],
        *,
        preview: bool,
    ) -> Props:
        request = provider_pb2.UpdateRequest(
            **at,
            id=identity,
            old_inputs=_struct(old[0]),
            olds=_struct(old[1]),
            news=_struct(new),
            ignoreChanges=list(ignored),
            preview=preview,
        )
        return wire.from_struct(self._call(self._stub.Update, request).properties)

    def read(self, at: At, identity: str, inputs: Props, outputs: Props) -> tuple[str, Props, Props]:
        """Return id ("" if it does not exist), inputs and outputs."""
        request = provider_pb2.ReadRequest(**at, id=identity, inputs=_struct(inputs), properties=_struct(outputs))
        answer = self._call(self._stub.Read, request)
        return answer.id, wire.from_struct(answer.inputs), wire.from_struct(answer.properties)

    def delete(self, at: At, identity: str, inputs: Props, outputs: Props) -> None:
        request = provider_pb2.DeleteRequest(**at, id=identity, old_inputs=_struct(inputs), properties=_struct(outputs))
        self._call(self._stub.Delete, request)

    def invoke(self, token: str, arguments: Any, *, preview: bool) -> Any:
        """Call a function; return the response unconverted."""
        request = provider_pb2.InvokeRequest(tok=token, args=arguments, preview=preview)
        return self._call(self._stub.Invoke, request)

    def cancel(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self._stub.Cancel(Empty(), timeout=5)

    def close(self) -> None:
        self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _call(self, verb: Any, request: Any) -> Any:
        try:
            return verb(request)
        except grpc.RpcError as error:
            raise _error(error) from error


class Plugins:
    """Provider plugins of an update."""

    def __init__(self) -> None:
        self._known: dict[str, Plugin] = {}
        self._lock = threading.Lock()
        self.engine = ""
        """Address of the engine's service."""

    def of(self, package: str) -> Plugin:
        """Return the plugin of a package, found or started on first use. Raises PluginError."""
        with self._lock:
            if package not in self._known:
                self._known[package] = self._find(package)
            return self._known[package]

    def _find(self, package: str) -> Plugin:
        running = dict(one.split(":") for one in os.environ.get("PULUMI_DEBUG_PROVIDERS", "").split(",") if one)
        if package in running:
            plugin = Plugin(f"127.0.0.1:{running[package]}")
            plugin.attach(self.engine)
            return plugin
        program = shutil.which(f"pulumi-resource-{package}")
        if program is None:
            raise PluginError(
                f"no resource plugin 'pulumi-resource-{package}' found in the workspace or on your $PATH (the double "
                "of the engine downloads none)"
            )
        return _started(program, self.engine)

    def cancel(self) -> None:
        for plugin in list(self._known.values()):
            plugin.cancel()

    def close(self) -> None:
        for plugin in self._known.values():
            plugin.close()


def _started(program: str, engine: str) -> Plugin:
    process = subprocess.Popen([program, engine], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    port = process.stdout.readline().strip() if ready else ""
    if not port.isdecimal():
        process.kill()
        raise PluginError(f"{program} said no port within {START_S:.0f} s: {port!r}")
    return Plugin(f"127.0.0.1:{port}", process)


def _struct(properties: Props) -> Any:
    return wire.to_struct(wire.rewritten(wire.without_outputs(properties), _for_provider))


def _for_provider(special: Any) -> Any:
    """Replace references to resources by their ids, as for providers that do not accept references."""
    if isinstance(special, wire.Signed) and special.signature == wire.RESOURCE:
        return special.fields.get("id") or wire.UNKNOWN
    return special


def _failures(answer: Any) -> list[tuple[str, str]]:
    return [(one.property, one.reason) for one in answer.failures]


def _error(error: grpc.RpcError) -> OperationError:
    metadata: Any = error.trailing_metadata() or ()
    for name, value in metadata:
        details = Status.FromString(value).details if name == STATUS_DETAILS else ()
        for detail in details:
            result = provider_pb2.ErrorResourceInitFailed()
            if detail.Unpack(result):
                return InitError(result)
    return OperationError(error.details())
