"""Agent file for the stand-ins' machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cloudgpu.provisioners.boot.agent_file import PYTHONS_VARIABLE, Built, build_agent_file

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def own_agent_file(home: Path) -> Built:
    """Build the agent file for the tests' own Python version, without downloads. It is kept in the state directory
    `home`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDGPU_HOME", str(home))
        patch.setenv(PYTHONS_VARIABLE, OWN_PYTHON)
        return build_agent_file("x86_64")
