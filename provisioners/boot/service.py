"""The systemd service that runs the bootstrap, on machines of every cloud."""

from __future__ import annotations

from .files import MAIN

HOME = "/var/lib/cloudgpu"
"""The machine's folder: the bootstrap's files and all of the agent's."""
SERVICE = "cloudgpu.service"
UNIT_PATH = f"/etc/systemd/system/{SERVICE}"

# FailureAction: a bootstrap that was itself killed must not leave a machine that bills and does nothing.
# KillMode: a shutdown asks the bootstrap, which asks the agent, which asks the program; what is left then is killed.
# RefuseManualStop: Ubuntu's needrestart restarts every service that uses what apt has just installed, also this one if
# its program is at it (`setup: apt-get install …`); a shutdown stops it all the same.
# OOMPolicy: the program may use up the memory and be killed for it, the agent stays. LimitMEMLOCK: EFA and NCCL pin it.
UNIT = f"""\
[Unit]
Description=cloudgpu: one node of a job
Wants=network-online.target
After=network-online.target
FailureAction=poweroff
RefuseManualStop=yes

[Service]
ExecStart=/usr/bin/env python3 {HOME}/{MAIN}
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


def minutes(seconds: float) -> int:
    """As shutdown(8) counts: whole ones, and not less than one."""
    return max(1, -int(-seconds // 60))
