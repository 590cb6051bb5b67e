"""The agent file: it is reproducible, contains all that the runtime needs, and contains no control-plane code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cloudgpu.provisioners.boot.agent_file import PYTHONS_VARIABLE, AgentFileError, Built, build_agent_file

ROOT = Path(__file__).parents[2]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def build(home: Path, patch: pytest.MonkeyPatch) -> Built:
    patch.setenv("CLOUDGPU_HOME", str(home))
    patch.setenv(PYTHONS_VARIABLE, OWN)
    return build_agent_file("x86_64")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    with pytest.MonkeyPatch.context() as patch:
        return build(tmp_path_factory.mktemp("home"), patch)


def test_the_same_inputs_give_the_same_bytes(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = build(tmp_path, monkeypatch)
    assert again.path != built.path
    assert (again.sha256, again.size) == (built.sha256, built.size)


def test_it_is_built_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built.path.stat()
    build(built.path.parents[1], monkeypatch)
    assert built.path.stat().st_ino == made.st_ino


def test_it_holds_the_runtime_and_what_that_needs(built: Built) -> None:
    names = set(zipfile.ZipFile(built.path).namelist())
    folders = {"protocol", "runtime", "storage"}
    needed = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {f"lib/cloudgpu/{name}" for name in needed} <= names
    assert {name.split("/")[2] for name in names if name.startswith("lib/cloudgpu/")} == {"__init__.py", *folders}
    assert {name.split("/")[1].partition("-")[0] for name in names if name.startswith("needs/")} == {
        "_cffi_backend.cpython",
        "cffi",
        "nacl",
        "obstore",
        "pynacl",
        "xxhash",
    }
    assert not [name for name in names if name.endswith((".pyc", ".pyi", "RECORD"))]
    assert built.size < 12_000_000


def test_unpacked_it_needs_no_other_package(built: Built, tmp_path: Path) -> None:
    """Run the bare interpreter: every imported module comes from the unpacked file."""
    with zipfile.ZipFile(built.path) as packed:
        packed.extractall(tmp_path)
    program = (
        "import cloudgpu.runtime.agent, cloudgpu.runtime.checkpoint.writer, obstore, xxhash; print(obstore.__file__)\n"
        "from cloudgpu.protocol.sealed_secrets import new_key, public_key; assert len(public_key(new_key())) == 64"
    )
    done = subprocess.run(
        [str(getattr(sys, "_base_executable", sys.executable)), "-S", "-P", "-c", program],
        env={"PYTHONPATH": str(tmp_path / "lib"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "needs"))


def test_an_architecture_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    with pytest.raises(AgentFileError, match="there is no agent for riscv64, only for x86_64, arm64"):
        build_agent_file("riscv64")


def test_a_state_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(AgentFileError, match="home"):
        build(tmp_path / "home", monkeypatch)
