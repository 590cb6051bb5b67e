"""Target definition of `vertex`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..gcp.target import CREDENTIALS, NEEDS, SETTINGS
from ..target import Boot, EnvironmentVariables, Target

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up="..gcp.clients:is_set_up",
    setup_hint=f"vertex is not set up here: {NEEDS}, see docs/guides/vertex.md",
    check=".check:steps",
    architecture="..gcp.machine.machine_types:architecture_of",
    collector=".gc",
    boot=Boot(bucket="bucket_gs", host="host_container", sent_as="container"),
    settings=EnvironmentVariables(names=SETTINGS, prefixes=("CLOUDGPU_GCP_", "CLOUDGPU_VERTEX_")),
    credentials=CREDENTIALS,
)
