"""Systemd service that runs the bootstrap, on the machines of all clouds."""

from __future__ import annotations

from .files import MAIN
from .record import BootRecord, boot_of
from .stop_script import stop_command

HOME = "/var/lib/cloudgpu"
"""Folder on the machine for the files of the bootstrap and of the agent."""
SERVICE = "cloudgpu.service"
UNIT_PATH = f"/etc/systemd/system/{SERVICE}"

# FailureAction: a machine must not stay up idle, and billed, if the bootstrap was killed or could not power it off.
# systemd first runs ExecStopPost, even if the process was killed or never started.
# KillMode: at a shutdown the bootstrap gets SIGTERM and passes it on to the agent, which passes it on to the program;
# the remaining processes are then killed.
# RefuseManualStop: Ubuntu's needrestart restarts services that use packages that apt has just installed, including this
# one while its program runs apt (`setup: apt-get install …`). A shutdown still stops it.
# OOMPolicy: if the program is killed for using up the memory, the agent keeps running. LimitMEMLOCK: EFA and NCCL pin
# memory.
_UNIT = f"""\
[Unit]
Description=cloudgpu: one node of a job
Wants=network-online.target
After=network-online.target
FailureAction=poweroff
RefuseManualStop=yes

[Service]
ExecStart=/usr/bin/env python3 {HOME}/{MAIN}
{{stop}}\
KillMode=mixed
TimeoutStopSec=45
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""

PANIC = ("kernel.panic=30", "kernel.panic_on_oops=1")
"""Settings of sysctl(8): after a kernel panic the machine reboots in 30 s and continues with its node. By default it
would hang, and be billed."""
PANIC_PATH = "/etc/sysctl.d/90-cloudgpu.conf"


def unit(record: BootRecord) -> str:
    """Return the unit file of a machine."""
    stop = stop_command(HOME, boot_of(record.cloud).stop, record.api_endpoint, record.identity)
    return _UNIT.format(stop=f"ExecStopPost={stop}\n" if stop else "")


def minutes(seconds: float) -> int:
    """Convert to whole minutes for shutdown(8), rounded up, at least 1."""
    return max(1, -int(-seconds // 60))
