"""Target definition of `local`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..target import Target

TARGET = Target(provisioner=".provisioner:LocalProvisioner", check=".check:steps")
