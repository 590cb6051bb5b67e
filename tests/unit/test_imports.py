"""Who may import whom, and what may be loaded on the way: the rules that keep the tool simple and quick to start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "cli": {"cli", "control", "infra", "jobspecs", "provisioners", "runtime"},
    "control": {"control", "jobspecs", "provisioners", "runtime"},
    "provisioners": {"provisioners", "jobspecs", "runtime"},
    "infra": {"infra", "jobspecs", "provisioners"},
    "jobspecs": {"jobspecs"},
    "runtime": {"runtime"},
}
# From outside, runtime is reached only through what reads and writes the job dir: never the agent or the Checkpointer.
# `goodput` is arithmetic: the Checkpointer computes its interval by it, and reports what would have been possible.
# `moving` copies what a program goes on from, checkpoints among it, into another job dir.
# `autolaunch` says before submitting which launcher the machines will choose, by the same rule.
# `buckets` are the connections of the job dirs of a supervisor, or of the submits of a process.
RUNTIME_SEAM = {
    "archive",
    "attempt_signal",
    "autolaunch",
    "buckets",
    "fleet",
    "goodput",
    "jobdir",
    "logs",
    "metrics",
    "moving",
}
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


def modules() -> list[Path]:
    return sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """(package, module) of every import of our own in a file, function-level ones included."""
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


def loaded_by(code: str) -> set[str]:
    """Packages that the code loads. What the virtual environment's own start-up files load, e.g. the empty package
    `google`, is not its doing."""
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


def test_the_agent_needs_the_standard_library_and_obstore_only() -> None:
    loaded = loaded_by("import cloudgpu.runtime.agent\nprint()") - set(sys.stdlib_module_names)
    assert loaded <= {"cloudgpu", "obstore", "typing_extensions"}
