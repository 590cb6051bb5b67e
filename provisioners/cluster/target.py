"""What the target `cluster` needs code for: provisioners/target.py says what each field is."""

from __future__ import annotations

from ..target import Target

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up=".provisioner:could_be_used",
    setup_hint="cluster is not set up here: `cloudgpu cluster up cluster.yaml` brings one up, see docs/clusters.md",
    architecture=".provisioner:architecture_of",
)
