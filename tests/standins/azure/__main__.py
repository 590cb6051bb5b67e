"""The stand-in as a separate process: prints the URL of its control, ends at a signal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..program import main
from . import Azure
from .control import environ

with tempfile.TemporaryDirectory(prefix="cloudgpu-azure-az-") as folder:
    main(
        "a stand-in for Azure, on the loopback",
        lambda given: Azure(boot=given.boot, port=given.port, certificate=given.certificate),
        lambda url: environ(url, Path(folder)),
    )
