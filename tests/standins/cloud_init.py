"""A cloud machine's boots, in a folder: as much of cloud-init, systemd and shutdown(8) as our user data needs.

After cloud-init's reference (modules write_files, runcmd: on the first boot only) and systemd's manual (an enabled
service starts on every boot). What is not known here is refused, so that a misspelt key cannot pass. The machine is a
process group of this user's: nothing in it may write outside of its folder.

    root/var/lib/…, root/etc/…   what user data writes
    root/bin/                    shutdown, systemctl, python3; first on the machine's PATH
    root/calls                   how the first two were called, a line each
    root/console                 what the service prints
    root/off                     there once the machine has powered itself off
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_SHUTDOWN = """\
#!/bin/sh
echo "shutdown $*" >> '{root}/calls'
[ "$2" = now ] && touch '{root}/off'
exit 0
"""
_SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >> '{root}/calls'
[ "$1" = list-jobs ] && cat '{root}/jobs' 2>/dev/null
exit 0
"""
_UNIT_KEYS = {"Description", "Wants", "After", "FailureAction", "WantedBy", "ExecStart", "KillMode", "OOMPolicy"} | {
    "TimeoutStopSec",
    "TasksMax",
    "LimitNOFILE",
    "LimitMEMLOCK",
    "StandardOutput",
    "StandardError",
}


class Machine:
    """One machine. `environ` is what tells its programs where the stand-ins are; of ours it inherits nothing."""

    def __init__(self, root: Path, environ: Mapping[str, str], python: str | None = None) -> None:
        self.root = root
        self.environ = dict(environ)
        self.service: subprocess.Popen[bytes] | None = None
        (root / "bin").mkdir(parents=True)
        for name, text in (("shutdown", _SHUTDOWN), ("systemctl", _SYSTEMCTL)):
            (root / "bin" / name).write_text(text.format(root=root))
            (root / "bin" / name).chmod(0o755)
        # The image's Python: it has neither cloudgpu nor what cloudgpu needs.
        (root / "bin/python3").symlink_to(python or str(getattr(sys, "_base_executable", sys.executable)))

    def first_boot(self, user_data: bytes) -> None:
        """Raises ValueError for user data that cloud-init would not understand."""
        head, _, text = user_data.decode().partition("\n")
        config: dict[str, Any] = yaml.safe_load(text)
        if head.strip() != "#cloud-config" or not set(config) <= {"write_files", "runcmd"}:
            raise ValueError(f"not understood: {head}, {sorted(config)}")
        for file in config["write_files"]:
            self._write(**file)
        for words in config["runcmd"]:
            subprocess.run(words, env=self._environment(), cwd=self.root, check=True)
        self.boot()

    def boot(self) -> None:
        """Start what is enabled."""
        for line in self.calls:
            if line.startswith("systemctl enable "):
                self._start(self.root / "etc/systemd/system" / line.split()[-1])

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def console(self) -> str:
        return (self.root / "console").read_text()

    @property
    def is_off(self) -> bool:
        """It has powered itself off."""
        return (self.root / "off").exists()

    def crash(self) -> None:
        """Everything dies at once, as when the power fails. Disks stay."""
        if self.service is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.service.pid, signal.SIGKILL)
            self.service.wait()

    def shut_down(self, *, reboot: bool) -> int:
        """As systemd does it: SIGTERM to the service, SIGKILL to what is left. The service's exit code."""
        assert self.service is not None
        (self.root / "jobs").write_text(f"12 {'reboot' if reboot else 'poweroff'}.target start waiting\n")
        self.service.terminate()
        code = self.service.wait(60)
        (self.root / "jobs").unlink()
        self.crash()
        return code

    def _write(self, path: str, permissions: str, owner: str, content: str, encoding: str = "") -> None:
        if encoding not in ("", "gz+b64") or owner != "root:root" or not path.startswith("/"):
            raise ValueError(f"{path}: not understood: {encoding}, {owner}")
        there = self.root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(gzip.decompress(base64.b64decode(content)) if encoding else content.encode())
        there.chmod(int(permissions, 8))

    def _start(self, unit: Path) -> None:
        pairs = [line.partition("=") for line in unit.read_text().splitlines() if "=" in line]
        unknown = {name for name, _, _ in pairs} - _UNIT_KEYS
        if unknown:
            raise ValueError(f"{unit.name}: not understood: {unknown}")
        words = shlex.split(next(value for name, _, value in pairs if name == "ExecStart"))
        words = [str(self.root / word.lstrip("/")) if word.startswith("/var/") else word for word in words]
        with (self.root / "console").open("ab") as console:
            self.service = subprocess.Popen(
                words,
                env=self._environment(),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        home = self.root / "root"
        home.mkdir(exist_ok=True)
        return {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": str(home), **self.environ}
