"""The operations up, preview, refresh and destroy, from locking the stack to writing its history."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from pulumi.runtime.proto import engine_pb2_grpc, language_pb2, language_pb2_grpc, resource_pb2_grpc

from .backend import Backend, BackendError, Name
from .deployment import Deployment, StoppedError, Update
from .events import Events
from .monitor import Engine, Monitor
from .plugins import MESSAGE_BYTES, Plugins
from .secrets import Crypter
from .settings import Settings
from .state import SHOWN, Pending, Resource, Snapshot

NO_PROGRAM = "the double of the engine runs inline programs only (--client)"


@dataclass(frozen=True)
class Request:
    """Options of a command."""

    kind: str
    """update, preview, refresh or destroy; also the kind in the history"""
    preview: bool
    """Make no changes."""
    client: str | None = None
    """Address of the program's language runtime."""
    refresh: bool = False
    clear_pending_creates: bool = False
    exclude_protected: bool = False
    expect_no_changes: bool = False
    message: str = ""
    event_log: str | None = None
    parallel: int = 32


def perform(backend: Backend, name: Name, settings: Settings, crypter: Crypter, request: Request) -> bool:
    """Run an update, refresh or destroy; return whether it succeeded. Raises BackendError."""
    if request.kind == "update" and request.client is None:
        raise BackendError(NO_PROGRAM)
    with contextlib.nullcontext() if request.preview else backend.locked(name):
        snapshot = backend.load(name, crypter)
        config = settings.plain(crypter)
        events = Events(request.event_log, planning=request.preview)
        events.prelude({key: SHOWN if secret else value for key, (value, secret) in config.items()})
        plugins = Plugins()
        update = Update(
            stack=name,
            preview=request.preview,
            plugins=plugins,
            events=events,
            save=lambda now: backend.save(name, now, crypter),
            config={key: value for key, (value, _secret) in config.items()},
            parallel=request.parallel,
        )
        begun = int(time.time())
        print(f"{_TITLES[request.kind, request.preview]} ({name.stack}): by a double of Pulumi's engine\n", flush=True)
        deployment = Deployment(update, _warned(snapshot, events, request))
        try:
            with _serving(deployment, name, events, plugins), _interruptible(deployment):
                _run(deployment, name, config, request)
                deployment.settle()
        finally:
            plugins.close()
        well = _told(deployment, events, request)
        if not request.preview:
            backend.save(name, deployment.snapshot(), crypter)
            changes = {op: count for op, count in events.counts.items() if count}
            backend.add_history(name, _history(request, settings, begun, changes, well=well))
    return well


_TITLES = {
    ("update", False): "Updating",
    ("update", True): "Previewing update",
    ("refresh", False): "Refreshing",
    ("refresh", True): "Previewing refresh",
    ("destroy", False): "Destroying",
    ("destroy", True): "Previewing destroy",
}


def _run(deployment: Deployment, name: Name, config: dict[str, tuple[str, bool]], request: Request) -> None:
    with contextlib.suppress(StoppedError):  # the error has been reported
        if request.kind == "destroy":
            if request.refresh:
                deployment.refresh(counted=False)
            deployment.destroy(exclude_protected=request.exclude_protected)
        elif request.kind == "refresh":
            deployment.refresh(counted=True)
        else:
            if request.refresh:
                deployment.refresh(counted=False)
            _run_program(deployment, name, config, request)
            deployment.delete_unregistered()


def _run_program(deployment: Deployment, name: Name, config: dict[str, tuple[str, bool]], request: Request) -> None:
    assert request.client is not None
    run = language_pb2.RunRequest(
        project=name.project,
        stack=name.stack,
        organization="organization",
        pwd=str(Path.cwd()),
        program=".",
        args=[deployment.engine],
        monitor_address=deployment.engine,
        config={key: value for key, (value, _secret) in config.items()},
        configSecretKeys=[key for key, (_value, secret) in config.items() if secret],
        dryRun=request.preview,
        parallel=request.parallel,
    )
    with grpc.insecure_channel(request.client, options=MESSAGE_BYTES) as channel:
        try:
            answer = language_pb2_grpc.LanguageRuntimeStub(channel).Run(run)
        except grpc.RpcError as error:
            raise deployment.fail(f"the program has gone: {error.details()}") from error
    if deployment.cancelled:
        raise StoppedError("cancelled")
    if answer.error and not deployment.failed:  # the program has logged its error
        deployment.failed = True
    if deployment.failed:
        raise StoppedError(answer.error)


def _told(deployment: Deployment, events: Events, request: Request) -> bool:
    """Report the end of the update; return whether it succeeded."""
    changed = sum(count for op, count in events.counts.items() if op not in ("same", "read"))
    if request.expect_no_changes and changed and not deployment.failed:
        deployment.fail("no changes were expected but changes were proposed")
    well = not deployment.failed and not deployment.cancelled
    events.summary("succeeded" if well else "failed")
    events.print_end(deployment.outputs())
    events.close()
    return well


def _warned(snapshot: Snapshot, events: Events, request: Request) -> Snapshot:
    """Warn of pending operations from an interrupted update. A refresh with clear_pending_creates drops them."""
    if request.kind == "refresh":
        kept = [] if request.clear_pending_creates else snapshot.pending
        return Snapshot(snapshot.resources, kept)
    if snapshot.pending and not (request.preview or request.refresh):
        listed = "\n".join(f"  * {_interrupted(one)}" for one in snapshot.pending)
        events.diagnostic(
            f"Attempting to deploy or update resources with {len(snapshot.pending)} pending operations from previous "
            f"deployment.\n{listed}\nThese resources are in an unknown state because the Pulumi CLI was interrupted "
            "while waiting for changes to these resources to complete. You should confirm whether or not the "
            "operations listed completed successfully by checking the state of the appropriate provider.",
            severity="warning",
        )
    return snapshot


def _interrupted(pending: Pending) -> str:
    resource: Resource = pending.resource
    return f"{resource.urn}, interrupted while {pending.kind}"


@contextlib.contextmanager
def _serving(deployment: Deployment, name: Name, events: Events, plugins: Plugins) -> Iterator[None]:
    """Serve the resource monitor and the engine on one port."""
    server = grpc.server(ThreadPoolExecutor(max_workers=256), options=MESSAGE_BYTES)
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(Monitor(deployment, name), server)
    engine_pb2_grpc.add_EngineServicer_to_server(Engine(events), server)
    deployment.engine = plugins.engine = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield
    finally:
        server.stop(1).wait(10)


@contextlib.contextmanager
def _interruptible(deployment: Deployment) -> Iterator[None]:
    """Let running operations finish at the first SIGINT or SIGTERM; exit at the second."""

    def stop(number: int, _frame: object) -> None:
        if deployment.cancelled:
            os._exit(128 + number)
        print("^C received; cancelling. If you would like to terminate immediately, press ^C again.", flush=True)
        deployment.cancel()

    before: dict[int, Any] = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _history(
    request: Request, settings: Settings, begun: int, changes: dict[str, int], *, well: bool
) -> dict[str, Any]:
    config = {
        key: {"string": value["secure"], "secret": True} if isinstance(value, dict) else {"string": str(value)}
        for key, value in settings.config.items()
    }
    return {
        "kind": request.kind,
        "startTime": begun,
        "message": request.message,
        "environment": {"exec.kind": "auto.inline"},
        "config": config,
        "result": "succeeded" if well else "failed",
        "endTime": int(time.time()),
        "resourceChanges": changes,
    }
