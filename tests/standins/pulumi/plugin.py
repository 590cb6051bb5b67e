"""cloudgpu's Pulumi plugins as an engine starts them: a process that prints its port and serves gRPC."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

import cloudgpu
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc


def folder_of(cloud: str) -> Path:
    """Return the folder of a cloud's components."""
    return Path(cloudgpu.__file__).parent / "infra" / cloud


def commands_of(cloud: str) -> dict[str, list[str]]:
    """Return the commands that start a cloud's plugin, as a module and as a folder."""
    return {"as a module": ["-m", f"cloudgpu.infra.{cloud}"], "as Pulumi runs a folder": [str(folder_of(cloud))]}


def check_schema(
    cloud: str, command: Sequence[str], required: Mapping[str, list[str]], outputs: Mapping[str, set[str]]
) -> None:
    """Assert that the plugin's schema has these components, with these required inputs (sorted) and outputs, and a
    description of every input."""
    with plugin(command, "127.0.0.1:1") as stub:
        schema = json.loads(stub.GetSchema(provider_pb2.GetSchemaRequest()).schema)
    assert (schema["name"], schema["version"]) == (f"cloudgpu-{cloud}", cloudgpu.__version__)
    components = {token: one for token, one in schema["resources"].items() if one["isComponent"]}
    assert set(components) == {f"cloudgpu-{cloud}:index:{name}" for name in required}
    for name in required:
        found = components[f"cloudgpu-{cloud}:index:{name}"]
        assert sorted(found.get("requiredInputs", ())) == required[name], name
        assert set(found["properties"]) == outputs[name], name
        assert all(one.get("description") for one in found["inputProperties"].values()), name


@contextlib.contextmanager
def plugin(command: Sequence[str], engine: str) -> Iterator[Any]:
    """Run `python COMMAND ENGINE`; yield a ResourceProvider stub."""
    environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
    words = [sys.executable, *command, engine]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield provider_pb2_grpc.ResourceProviderStub(channel)
        finally:
            process.kill()
