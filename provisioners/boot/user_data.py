"""A machine's user data: `#cloud-config` that installs a service, which runs bootstrap.py on this and every later boot.

cloud-init writes files and runs `runcmd` on the first boot only; the service is what outlives a reboot. The first of
all commands sees to it that the machine ends, should nothing else work. (Not in `bootcmd`: that runs before
systemd-logind, without which shutdown(8) cannot wait.)
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from importlib import resources

from .record import BootRecord

MAX_BYTES = 16_384
"""Of EC2's user data, before base64: API reference of RunInstances."""
HOME = "/var/lib/cloudgpu"
"""The machine's folder: the bootstrap's files and all of the agent's."""
SERVICE = "cloudgpu.service"

# FailureAction: a bootstrap that was itself killed must not leave a machine that bills and does nothing.
# KillMode: a shutdown asks the bootstrap, which asks the agent, which asks the program; what is left then is killed.
# OOMPolicy: the program may use up the memory and be killed for it, the agent stays. LimitMEMLOCK: EFA and NCCL pin it.
_UNIT = f"""\
[Unit]
Description=cloudgpu: one node of a job
Wants=network-online.target
After=network-online.target
FailureAction=poweroff

[Service]
ExecStart=/usr/bin/env python3 {HOME}/bootstrap.py
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


def user_data(record: BootRecord) -> bytes:
    """The same bytes for the same record. Raises ValueError if they are more than EC2 takes."""
    script = resources.files(__package__).joinpath("bootstrap.py").read_bytes()
    told = json.dumps(dataclasses.asdict(record), sort_keys=True)
    first = [] if record.lifetime_s is None else [["shutdown", "-P", f"+{minutes(record.lifetime_s)}"]]
    config = {
        "write_files": [
            _file(f"{HOME}/boot.json", "0644", told),
            _file(f"{HOME}/bootstrap.py", "0755", gzip.compress(script, mtime=0)),
            _file(f"/etc/systemd/system/{SERVICE}", "0644", _UNIT),
        ],
        "runcmd": [
            *first,
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", SERVICE],
            ["systemctl", "start", "--no-block", SERVICE],
        ],
    }
    # JSON is YAML, and leaves no doubt about what is text.
    data = f"#cloud-config\n{json.dumps(config, indent=1)}\n".encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"the user data of {record.node} has {len(data)} bytes, more than the {MAX_BYTES} EC2 takes")
    return data


def minutes(seconds: float) -> int:
    """As shutdown(8) counts: whole ones, and not less than one."""
    return max(1, -int(-seconds // 60))


def _file(path: str, mode: str, content: str | bytes) -> dict[str, str]:
    file = {"path": path, "permissions": mode, "owner": "root:root"}
    if isinstance(content, str):
        return {**file, "content": content}
    return {**file, "encoding": "gz+b64", "content": base64.b64encode(content).decode()}
