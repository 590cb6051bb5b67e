"""Fixtures shared by the unit tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cloudgpu.tests.standins.control import World


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty store, to be copied by each test."""
    from cloudgpu.tests.standins.control import make_template

    return make_template(tmp_path_factory.mktemp("store"))


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    """Create an empty store, a clock and a cloud for supervisors."""
    from cloudgpu.tests.standins.control import World

    return World(tmp_path / "world", template)
