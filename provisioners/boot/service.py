"""The systemd service that runs the bootstrap, on machines of every cloud."""

from __future__ import annotations

from .files import MAIN
from .record import BootRecord, boot_of
from .stop_script import stop_command

HOME = "/var/lib/cloudgpu"
"""The machine's folder: the bootstrap's files and all of the agent's."""
SERVICE = "cloudgpu.service"
UNIT_PATH = f"/etc/systemd/system/{SERVICE}"

# FailureAction: a bootstrap that was itself killed, or could not switch the machine off, must not leave a machine that
# bills and does nothing. systemd runs ExecStopPost before it, also for a process that was killed or never started.
# KillMode: a shutdown asks the bootstrap, which asks the agent, which asks the program; what is left then is killed.
# RefuseManualStop: Ubuntu's needrestart restarts every service that uses what apt has just installed, also this one if
# its program is at it (`setup: apt-get install …`); a shutdown stops it all the same.
# OOMPolicy: the program may use up the memory and be killed for it, the agent stays. LimitMEMLOCK: EFA and NCCL pin it.
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
"""Settings of sysctl(8): a kernel that has crashed restarts the machine after 30 s, which goes on with its node. The
default is to stay as it is, and to be paid for."""
PANIC_PATH = "/etc/sysctl.d/90-cloudgpu.conf"


def unit(record: BootRecord) -> str:
    """Return the unit file of a machine."""
    stop = stop_command(HOME, boot_of(record.cloud).stop, record.api_endpoint, record.identity)
    return _UNIT.format(stop=f"ExecStopPost={stop}\n" if stop else "")


def minutes(seconds: float) -> int:
    """As shutdown(8) counts: whole ones, and not less than one."""
    return max(1, -int(-seconds // 60))
