"""A machine's user data: `#cloud-config` that installs a service, which runs bootstrap.py on this and every later boot.

cloud-init writes files and runs `runcmd` on the first boot only; the service is what outlives a reboot. The first of
all commands sees to it that the machine ends, should nothing else work. (Not in `bootcmd`: that runs before
systemd-logind, without which shutdown(8) cannot wait.)
"""

from __future__ import annotations

import base64
import json

from .files import RECORD, boot_files, packed
from .record import BootRecord, boot_of
from .service import HOME, PANIC, PANIC_PATH, SERVICE, UNIT_PATH, minutes, unit

_ARCHIVE = f"{HOME}/files.tar.gz"


def user_data(record: BootRecord) -> bytes:
    """The same bytes for the same record. Raises ValueError if they are more than its cloud takes."""
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
            ["sysctl", "-q", "-w", *PANIC],  # on later boots: by the file
            ["tar", "--no-same-owner", "-xzf", _ARCHIVE, "-C", HOME],
            ["sync", "-f", HOME],  # a reset now would cut files that were written a moment ago
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", SERVICE],
            ["systemctl", "start", "--no-block", SERVICE],
        ],
    }
    # JSON is YAML, and leaves no doubt about what is text.
    data = f"#cloud-config\n{json.dumps(config, separators=(',', ':'))}\n".encode()
    limit = boot_of(record.cloud).max_bytes
    if limit is not None and len(data) > limit:
        name = record.node or record.fleet
        raise ValueError(f"the user data of {name} has {len(data)} bytes, more than the {limit} of {record.cloud}")
    return data


def _file(path: str, content: str | bytes) -> dict[str, str]:
    file = {"path": path, "permissions": "0644"}  # of root, by default
    if isinstance(content, str):
        return {**file, "content": content}
    return {**file, "encoding": "b64", "content": base64.b64encode(content).decode()}
