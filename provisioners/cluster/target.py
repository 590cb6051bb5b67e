"""Target definition of `cluster`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..target import Target

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up=".provisioner:is_set_up",
    setup_hint="cluster is not set up here: `cloudgpu cluster up cluster.yaml` brings one up, "
    "see docs/guides/clusters.md",
    check=".check:steps",
    architecture=".provisioner:architecture_of",
)
