"""Fixtures that several tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cloudgpu.tests.standins.control import World


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store to copy."""
    from cloudgpu.tests.standins.control import make_template

    return make_template(tmp_path_factory.mktemp("store"))


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    """A store, a clock and a cloud for supervisors, with nothing in them."""
    from cloudgpu.tests.standins.control import World

    return World(tmp_path / "world", template)
