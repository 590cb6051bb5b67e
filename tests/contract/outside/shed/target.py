"""References to the code of the target `shed`."""

from __future__ import annotations

from cloudgpu.provisioners.target import EnvironmentVariables, Target

TARGET = Target(
    provisioner=".provisioner:Shed",
    check=".check:steps",
    set_up=".provisioner:has_key",
    setup_hint="shed is not set up here: write the key's name into SHED_KEY",
    settings=EnvironmentVariables(names=("SHED_KEY",)),
)
