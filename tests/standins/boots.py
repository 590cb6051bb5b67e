"""Actions of a machine on a boot, derived from its launch parameters: cloud-init user data or a Google startup
script."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from . import cloud_config
from .cloud_config import Command, File


@dataclass(frozen=True)
class Plan:
    """Actions of one boot, in this order; enabled services are started before `commands`."""

    early: Sequence[Command] = ()
    files: Sequence[File] = ()
    commands: Sequence[Command] = ()


class Init(Protocol):
    """Mechanism that configures a machine on boot."""

    def plan(self, boot: int, root: Path) -> Plan:
        """Return the actions of boot number `boot` (from 1) for the disk at `root`. Raises
        cloud_config.UserDataError."""


@dataclass(frozen=True)
class CloudInit:
    """cloud-init: files and commands on the first boot, `bootcmd` on every boot."""

    user_data: str

    def plan(self, boot: int, root: Path) -> Plan:
        if not self.user_data:
            return Plan()
        config = cloud_config.read(self.user_data)
        return Plan(config.bootcmd, config.files, config.runcmd) if boot == 1 else Plan(config.bootcmd)


_SCRIPT = "/tmp/metadata-scripts/startup-script"
_ITS_OWN = re.compile(r"(?<![\w.])/(?=(?:var/lib|etc/systemd/system)/)")
"""Absolute paths in a startup script that belong to the machine. The script runs without a chroot, so they are
rewritten to paths on the machine's disk."""


@dataclass(frozen=True)
class StartupScript:
    """The metadata value `startup-script`, run as root on every boot after the network is up.

    Modelled on the guest agent's google-startup-scripts.service: it reads the script from the metadata server on every
    boot, writes it to a file and runs it with bash.
    """

    read: Callable[[], str | None]

    def plan(self, boot: int, root: Path) -> Plan:
        text = self.read()
        if not text:
            return Plan()
        script = File(_SCRIPT, _ITS_OWN.sub(f"{root}/", text).encode(), 0o755)
        return Plan(files=(script,), commands=(["/bin/bash", "-c", _SCRIPT],))
