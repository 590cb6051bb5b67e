"""Packaging: pyproject.toml, the folders of the tree and a built wheel list the same packages."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from cloudgpu.cli.image.build import own_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = set(PROJECT["tool"]["setuptools"]["packages"])
NOT_SHIPPED = {"tests", "tools", "examples", "docs", "build", "dist"}
DATA = {".csv", ".json", ".md", ".mako", ".typed", ".yaml"}
DATA_NAMES = {"Containerfile"}


def folder(package: str) -> Path:
    return ROOT.joinpath(*package.split(".")[1:])


def packages_of_the_tree() -> set[str]:
    found = {"cloudgpu"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and parts[0] not in NOT_SHIPPED and not parts[0].startswith("."):
            found.add(".".join(("cloudgpu", *parts)))
    return found


def test_listed_packages_are_those_of_the_tree() -> None:
    assert packages_of_the_tree() == PACKAGES


def test_no_module_lies_outside_a_package() -> None:
    strays = [
        path.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in NOT_SHIPPED
        and not path.relative_to(ROOT).parts[0].startswith(".")
        and path.parent not in {folder(package) for package in PACKAGES}
    ]
    assert strays == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(own_wheel(tmp_path_factory.mktemp("wheel")))


def test_wheel_holds_every_module_and_table_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        "cloudgpu/" + path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in folder(package).iterdir()
        if path.suffix == ".py"
        or path.name in DATA_NAMES
        or (path.suffix in DATA and (package != "cloudgpu" or path.name == "py.typed"))
    }
    assert shipped == expected


def test_wheel_runs_the_command(wheel: zipfile.ZipFile) -> None:
    (entry,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "cloudgpu = cloudgpu.cli:run" in wheel.read(entry).decode()
