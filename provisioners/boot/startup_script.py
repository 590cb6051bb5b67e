"""Startup script of Compute Engine machines: it installs and starts the bootstrap's service, on every boot.

Google's guest agent runs the metadata value `startup-script` as root on each boot, once the network is up; every image
with the guest environment has it, with or without cloud-init. The service is not enabled: the script starts it. The
first command schedules the shutdown, so that the machine ends even if everything else fails.
"""

from __future__ import annotations

import base64

from .files import RECORD, boot_files, packed
from .record import BootRecord
from .service import HOME, PANIC, SERVICE, UNIT_PATH, minutes, unit

MAX_SCRIPT_BYTES = 262_144
"""Maximum size in bytes of a metadata value on Compute Engine. Source: its documentation, "Limitations" of custom
metadata."""

# Idempotent: if the machine goes down in the middle, the next boot repeats the script.
_SCRIPT = """\
#!/bin/sh
# cloudgpu: {what}
set -eu
umask 022
trap '[ $? -eq 0 ] || shutdown -P now' EXIT
home={home}
unit={unit_path}
{first}
sysctl -q -w {panic} || true
mkdir -p "$home"
cat > "$home/{record_name}" <<'cloudgpu-end'
{record}
cloudgpu-end
base64 -d > "$home/files.tar.gz" <<'cloudgpu-end'
{archive}
cloudgpu-end
tar --no-same-owner -xzf "$home/files.tar.gz" -C "$home"
cat > "$unit" <<'cloudgpu-end'
{unit}cloudgpu-end
systemctl daemon-reload
systemctl start --no-block {service}
"""


def startup_script(record: BootRecord) -> str:
    """Return the startup script for a record, deterministically. Raises ValueError if it exceeds MAX_SCRIPT_BYTES."""
    # On later boots the bootstrap soon corrects this: it stored the end of the lifetime in a file.
    first = ":" if record.lifetime_s is None else f"shutdown -P +{minutes(record.lifetime_s)} || true"
    files = boot_files(record)
    text = _SCRIPT.format(
        what=f"a machine of {record.fleet}"
        if record.fleet
        else f"{record.node} in attempt {record.attempt} of {record.job_id}",
        home=HOME,
        unit_path=UNIT_PATH,
        first=first,
        record_name=RECORD,
        record=files.pop(RECORD).decode(),
        archive=_lines(packed(files)),
        unit=unit(record),
        panic=" ".join(PANIC),
        service=SERVICE,
    )
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        raise ValueError(
            f"the startup script of {record.node or record.fleet} has {len(text.encode())} bytes, "
            f"more than the {MAX_SCRIPT_BYTES} of a metadata value"
        )
    return text


def _lines(data: bytes) -> str:
    """Encode as base64 in lines of 120 characters."""
    text = base64.b64encode(data).decode()
    return "\n".join(text[start : start + 120] for start in range(0, len(text), 120))
