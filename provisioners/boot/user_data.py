"""User data of machines: `#cloud-config` that installs a service, which runs bootstrap.py on this and every later boot.

cloud-init writes files and runs `runcmd` on the first boot only; the enabled service runs on later boots. The first
command schedules the shutdown, so that the machine ends even if everything else fails. (It is not in `bootcmd`, which
runs before systemd-logind, which shutdown(8) needs to schedule.)
"""

from __future__ import annotations

import base64
import json

from .files import RECORD, boot_files, packed
from .record import BootRecord, boot_of
from .service import HOME, PANIC, PANIC_PATH, SERVICE, UNIT_PATH, minutes, unit

_ARCHIVE = f"{HOME}/files.tar.gz"


def user_data(record: BootRecord) -> bytes:
    """Return the user data for a record, deterministically. Raises ValueError if it exceeds the cloud's size limit."""
    files = boot_files(record)
    first = [] if record.lifetime_s is None else [["shutdown", "-P", f"+{minutes(record.lifetime_s)}"]]
    config = {
        "write_files": [
            _file(f"{HOME}/{RECORD}", files.pop(RECORD).decode()),
            _file(_ARCHIVE, packed(files)),
            _file(UNIT_PATH, unit(record)),
            _file(PANIC_PATH, "".join(f"{setting}\n" for setting in PANIC)),
        ],
        "runcmd": [
            *first,
            ["sysctl", "-q", "-w", *PANIC],  # on later boots PANIC_PATH applies
            ["tar", "--no-same-owner", "-xzf", _ARCHIVE, "-C", HOME],
            ["sync", "-f", HOME],  # a reset now would truncate the files just written
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", SERVICE],
            ["systemctl", "start", "--no-block", SERVICE],
        ],
    }
    # JSON is valid YAML, and quotes all strings.
    data = f"#cloud-config\n{json.dumps(config, separators=(',', ':'))}\n".encode()
    limit = boot_of(record.cloud).max_bytes
    if limit is not None and len(data) > limit:
        name = record.node or record.fleet
        raise ValueError(f"the user data of {name} has {len(data)} bytes, more than the {limit} of {record.cloud}")
    return data


def _file(path: str, content: str | bytes) -> dict[str, str]:
    file = {"path": path, "permissions": "0644"}  # the default owner is root
    if isinstance(content, str):
        return {**file, "content": content}
    return {**file, "encoding": "b64", "content": base64.b64encode(content).decode()}
