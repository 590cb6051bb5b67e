"""Where cloudgpu keeps its state on this computer: `$CLOUDGPU_HOME`, else the user's data directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOME_VARIABLE = "CLOUDGPU_HOME"
_NAME = "cloudgpu"
_ON_LINUX: bool = sys.platform == "linux"


def home() -> Path:
    """The state directory, absolute; it may not exist yet (control/paths.py makes it, readable by its owner only)."""
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    if _ON_LINUX:  # as platformdirs says (a test compares them), whose import takes a third of `pass`
        data = os.environ.get("XDG_DATA_HOME", "").strip()
        return (Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()) / _NAME  # noqa: PTH117
    import platformdirs

    return Path(platformdirs.user_data_dir(_NAME, appauthor=False))
