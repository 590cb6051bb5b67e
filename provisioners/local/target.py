"""What the target `local` needs code for: provisioners/target.py says what each field is."""

from __future__ import annotations

from ..target import Target

TARGET = Target(provisioner=".provisioner:LocalProvisioner")
