"""A double of Pulumi's engine and of its command: not Pulumi. See tests/standins/README.md.

    install(folder)                       # folder/pulumi, to put first on PATH

The unmodified Automation API works with it end to end. What it does is written after Pulumi's sources (pulumi/pulumi,
pkg/resource/deploy, pkg/backend/diy, pkg/cmd/pulumi, 3.259) and the protocol of the installed SDK; what it does not
do, it refuses.

| module | what |
|---|---|
| `deployment.py` | what is done to which resource, in which order; `diffs.py`: what replaces, what is ignored |
| `monitor.py` | the services that a program talks to; `program.py` runs it |
| `plugins.py`, `providers.py` | providers: found, attached or started, configured; their verbs as Python |
| `state.py`, `secrets.py` | resources in state, as they are written down; secrets encrypted |
| `backend.py`, `buckets.py` | a backend's files and locks; folders and buckets by their URLs |
| `settings.py` | Pulumi.yaml and Pulumi.<stack>.yaml |
| `events.py` | what an update tells, as events and as text |
| `cli.py`, `operations.py` | the command line; up, preview, refresh, destroy |
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

VERSION = "3.259.0"
"""Which Pulumi it stands for. `pulumi version` adds `+double`."""


def install(folder: Path) -> Path:
    """The executable `pulumi` in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "pulumi"
    command = shlex.join([sys.executable, "-m", f"{__name__}.cli"])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program
