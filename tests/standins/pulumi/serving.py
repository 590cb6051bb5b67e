"""Serving of providers to an engine: attached in the test's process, or started from PATH.

with attached(aws.provider()) as environ:          # {"PULUMI_DEBUG_PROVIDERS": "aws:41234"}
    …                                              # provider.control works in-process
install(folder, "aws")                             # folder/pulumi-resource-aws, to put on PATH
python -m cloudgpu.tests.standins.pulumi.serving aws       # the same as a program: prints its port
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from pulumi.runtime.proto import provider_pb2_grpc

from .provider import Provider

MODULES = {"aws": "aws", "gcp": "gcp", "azure-native": "azure"}
"""Name of a provider -> the module here with its `provider()`."""

_LOOK_EVERY_S = 0.5
MESSAGE_BYTES = 400 * 1024 * 1024
"""Maximum message size in bytes, as in Pulumi's servers."""


def load(name: str) -> Provider:
    """Return a new provider of this name, for the cloud that the environment points to."""
    made = importlib.import_module(f".{MODULES[name]}", __package__).provider()
    assert isinstance(made, Provider)
    return made


@contextlib.contextmanager
def attached(*providers: Provider) -> Iterator[dict[str, str]]:
    """Serve providers in threads of this process; yield the environment that makes an engine use them."""
    servers = []
    try:
        ports = []
        for provider in providers:
            server, port = _serve(provider)
            servers.append(server)
            ports.append(f"{provider.name}:{port}")
        yield {"PULUMI_DEBUG_PROVIDERS": ",".join(ports)}
    finally:
        for provider in providers:
            provider.over.set()
        for server in servers:
            server.stop(0).wait(180)


def _serve(provider: Provider) -> tuple[grpc.Server, int]:
    size = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]
    server = grpc.server(ThreadPoolExecutor(max_workers=32), options=size)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def install(folder: Path, *names: str) -> None:
    """Write executables with the names that an engine looks for on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        program = folder / f"pulumi-resource-{name}"
        command = shlex.join([sys.executable, "-m", f"{__package__}.serving", name])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        program.chmod(0o755)


def main(arguments: list[str]) -> None:
    """Run a provider for [name, the engine's address]. It ends with the engine, which is its parent."""
    engine = os.getppid()
    _server, port = _serve(load(arguments[0]))
    print(port, flush=True)
    while os.getppid() == engine:
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1:])
