"""What a machine does on a boot, by what it was launched with: cloud-init's user data, or a Google startup script."""

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
    """In this order; the services that are enabled are started before `commands`."""

    early: Sequence[Command] = ()
    files: Sequence[File] = ()
    commands: Sequence[Command] = ()


class Init(Protocol):
    """What brings a machine up."""

    def plan(self, boot: int, root: Path) -> Plan:
        """Of a boot, from 1, of the machine whose disk is `root`. Raises cloud_config.UserDataError."""


@dataclass(frozen=True)
class CloudInit:
    """Files and commands on the first boot, `bootcmd` on each."""

    user_data: str

    def plan(self, boot: int, root: Path) -> Plan:
        if not self.user_data:
            return Plan()
        config = cloud_config.read(self.user_data)
        return Plan(config.bootcmd, config.files, config.runcmd) if boot == 1 else Plan(config.bootcmd)


_SCRIPT = "/tmp/metadata-scripts/startup-script"
_ITS_OWN = re.compile(r"(?<![\w.])/(?=(?:var/lib|etc/systemd/system)/)")
"""Absolute paths of a script that are the machine's: it is in no chroot, so they are turned into paths on its disk."""


@dataclass(frozen=True)
class StartupScript:
    """The metadata value `startup-script`, run on every boot as root, once the network is up.

    After the guest agent's google-startup-scripts.service: it is read from the metadata server each time, written to a
    file and run by bash.
    """

    read: Callable[[], str | None]

    def plan(self, boot: int, root: Path) -> Plan:
        text = self.read()
        if not text:
            return Plan()
        script = File(_SCRIPT, _ITS_OWN.sub(f"{root}/", text).encode(), 0o755)
        return Plan(files=(script,), commands=(["/bin/bash", "-c", _SCRIPT],))
