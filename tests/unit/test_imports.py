"""Import rules between packages, and the packages that may be loaded: they keep the tool simple and quick to start."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.tests.standins.control import World

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "CONTRIBUTING.md").read_text()


def may_import() -> dict[str, set[str]]:
    """Read the table of folders: each imports itself and what its row names."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\|(.*)\|$", RULES, re.MULTILINE)
    return {folder: {folder, *re.findall(r"`(\w+)`", named)} for folder, named in rows}


MAY_IMPORT = may_import()
RUNTIME_SEAM = set(re.findall(r"`(\w+)`", RULES.partition("from outside `runtime/`, only ")[2].partition(" of it")[0]))
"""Modules of runtime/ that the submitter's side shares with the machines."""
HEAVY = {
    "alembic",
    "azure",
    "boto3",
    "google",
    "numpy",
    "obstore",
    "psutil",
    "pulumi",
    "pynvml",
    "rich",
    "sqlalchemy",
    "torch",
}


def test_the_rules_were_found() -> None:
    assert set(MAY_IMPORT) == {"cli", "control", "infra", "jobspecs", "protocol", "provisioners", "runtime", "storage"}
    assert {"archive", "autolaunch", "checkpoint_copy", "goodput", "migration"} == RUNTIME_SEAM


def modules() -> list[Path]:
    return sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """Return (package, module) of every import of cloudgpu in a file, including those in functions."""
    own: list[tuple[str, str]] = []
    place = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = place[: len(place) - node.level + 1]
            target = (*base, *(node.module or "").split(".")) if node.module else base
            names = [target] if node.module else [(*base, alias.name) for alias in node.names]
            if node.module and len(target) == 1:
                names = [(*target, alias.name) for alias in node.names]
            own += [(name[0], name[1] if len(name) > 1 else "") for name in names if name and name[0] in MAY_IMPORT]
        elif isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "cloudgpu" for alias in node.names), f"{path}: import relatively"
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "cloudgpu", f"{path}: import relatively"
    return own


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for target, module in imported(path):
        assert target in MAY_IMPORT[package], f"{package} may not import {target}"
        if target == "runtime" != package:
            assert module in RUNTIME_SEAM, (
                f"{package} may reach into runtime only for {sorted(RUNTIME_SEAM)}, not {module}"
            )


def name_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported_modules(path: Path, known: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return cloudgpu's modules that a file imports, including those imported in functions or for types only."""
    place, found = path.relative_to(ROOT).parts[:-1], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*place[: len(place) - node.level + 1], *(node.module or "").split("."))
            target = tuple(filter(None, base))
            found |= {(*target, one.name) if (*target, one.name) in known else target for one in node.names}
    return (found & known) - {name_of(path)}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {name_of(path) for path in modules()}
    graphlib.TopologicalSorter({name_of(path): imported_modules(path, known) for path in modules()}).prepare()


def loaded_by(code: str) -> set[str]:
    """Return the packages that the code loads, without those of the virtual environment's start-up files, e.g. the
    empty package `google`."""
    seen = "{name.split('.')[0] for name in set(sys.modules) - begun}"
    program = f"import sys\nbegun = set(sys.modules)\n{code}\nprint(*{seen})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    return set(done.stdout.split("\n")[-2].split())


def test_help_loads_nothing_heavy() -> None:
    code = "from cloudgpu.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint()"
    assert not loaded_by(code) & (HEAVY | {"pydantic", "yaml"})


def test_validate_loads_neither_store_nor_cloud(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: tiny\nresources: {accelerator: T4, cloud: gcp}\nrun: echo hello\n")
    code = f"from cloudgpu.cli import main\ntry: main(['validate', {str(job)!r}])\nexcept SystemExit: pass\nprint()"
    assert not loaded_by(code) & HEAVY


def test_status_opens_a_file_without_sqlalchemy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.finish(world.submit())
    monkeypatch.setenv("CLOUDGPU_DATABASE_URL", world.url)
    for words in (["status"], ["status", "--json"], ["status", "job"]):
        code = f"from cloudgpu.cli import main\nassert main({words}) == 0\nprint()"
        assert not loaded_by(code) & (HEAVY - {"obstore"} | {"pydantic", "yaml"}), words


def test_the_agent_needs_the_standard_library_and_obstore_only() -> None:
    loaded = loaded_by("import cloudgpu.runtime.agent\nprint()") - set(sys.stdlib_module_names)
    assert loaded <= {"cloudgpu", "obstore", "typing_extensions"}
