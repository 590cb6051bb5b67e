"""Double of Pulumi's engine and of its command. It is not Pulumi. See tests/standins/README.md.

    install(folder)                       # folder/pulumi, to put first on PATH

It works end to end with the unmodified Automation API. It is modelled on Pulumi's sources (pulumi/pulumi,
pkg/resource/deploy, pkg/backend/diy, pkg/cmd/pulumi, 3.259) and on the protocol of the installed SDK; it rejects
unsupported features.

| module | content |
|---|---|
| `deployment.py` | operations on resources, and their order |
| `goals.py` | registrations of a program; URNs, aliases and ignored changes |
| `monitor.py` | the gRPC services that a program calls |
| `plugins.py` | providers: discovery, attaching or starting, configuration; their calls in Python |
| `state.py`, `secrets.py` | resources in the state, and their serialization; encryption of secrets |
| `backend.py`, `buckets.py` | a backend's files and locks; folders and buckets by URL |
| `settings.py` | Pulumi.yaml and Pulumi.<stack>.yaml |
| `events.py` | an update's progress, as events and as text |
| `cli.py`, `operations.py` | the command line; up, preview, refresh, destroy |
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

VERSION = "3.259.0"
"""Pulumi version that it imitates. `pulumi version` adds `+double`."""


def install(folder: Path) -> Path:
    """Write the executable `pulumi` to this folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "pulumi"
    command = shlex.join([sys.executable, "-m", f"{__name__}.cli"])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program
