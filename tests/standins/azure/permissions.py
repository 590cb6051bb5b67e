"""The roles that docs/reference/azure-permissions.md documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cloudgpu

PAGE = (Path(cloudgpu.__file__).parent / "docs" / "reference" / "azure-permissions.md").read_text()


def roles() -> dict[str, list[str]]:
    """Return name -> actions from the page."""
    found = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert all(set(role) == {"Name", "Description", "AssignableScopes", "Actions"} for role in found)
    assert all(role["Actions"] == sorted(set(role["Actions"])) for role in found)
    return {role["Name"]: role["Actions"] for role in found}


LAUNCH, LET_IN, CATALOG = map(frozenset, roles().values())
EVERYTHING = LAUNCH | LET_IN | CATALOG
SCALE_SETS = frozenset(action for action in LAUNCH if "/virtualMachineScaleSets/" in action)
