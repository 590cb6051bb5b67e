"""A machine's startup script on Compute Engine: it installs and starts the same service, on every boot.

Google's guest agent runs the metadata value `startup-script` on each boot, as root, once the network is up; any image
with the guest environment has it, cloud-init or not. The service is not enabled: the script is what starts it. The
first of all commands sees to it that the machine ends, should nothing else work.
"""

from __future__ import annotations

import base64

from .files import RECORD, boot_files, packed
from .record import BootRecord
from .service import HOME, PANIC, SERVICE, UNIT_PATH, minutes, unit

MAX_SCRIPT_BYTES = 262_144
"""Of a metadata value: Compute Engine, "Limitations" of custom metadata (256 KB)."""

# Should the machine go down in the middle of it, the next boot does all of it again.
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
    """The same text for the same record. Raises ValueError if it is more than a metadata value may be."""
    # On later boots the bootstrap soon says how much is left: it has written down when it ends.
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
    """In base64, short enough for a terminal."""
    text = base64.b64encode(data).decode()
    return "\n".join(text[start : start + 120] for start in range(0, len(text), 120))
