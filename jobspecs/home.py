"""Where cloudgpu keeps its state on this computer: `$CLOUDGPU_HOME`, else the user's data directory."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE = "CLOUDGPU_HOME"


def home() -> Path:
    """The state directory, absolute; it may not exist yet (control/paths.py makes it, readable by its owner only)."""
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("cloudgpu", appauthor=False))
