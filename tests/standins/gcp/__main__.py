"""The stand-in as a separate process: prints its URL, ends at a signal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..program import main
from . import Gcp
from .control import environ

with tempfile.TemporaryDirectory(prefix="cloudgpu-gcp-keys-") as folder:
    main(
        "a stand-in for Google Cloud, on the loopback",
        lambda given: Gcp(boot=given.boot, port=given.port),
        lambda url: environ(url, Path(folder)),
    )
