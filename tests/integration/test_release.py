"""Releases: `make dist` gives the same bytes everywhere, and the workflow that publishes them is well formed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import cloudgpu

ROOT = Path(__file__).parents[2]
VERSION = cloudgpu.__version__
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

_HEAD = subprocess.run(["git", "rev-parse", "--verify", "HEAD"], cwd=ROOT, check=False, capture_output=True)
pytestmark = pytest.mark.skipif(
    _HEAD.returncode != 0, reason="NOT CHECKED: a release is built from a commit of a clone"
)


def clone(folder: Path) -> Path:
    """Clone the current commit to a folder with another name than the package."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], check=True)
    (folder.parent / "path").mkdir()
    (folder.parent / "path" / "cloudgpu").symlink_to(folder)
    return folder


def dist(tree: Path, *arguments: str, umask: int = 0o022, zone: str = "UTC") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree.parent / "path"), "TZ": zone}
    command = [sys.executable, "-m", "tools.dist", "--no-image", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, umask=umask, check=False, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("first") / "checkout")


def test_the_same_commit_gives_the_same_bytes_in_another_folder_umask_and_time_zone(tree: Path, tmp_path: Path) -> None:
    first = dist(tree, str(tmp_path / "1"))
    assert first.returncode == 0, first.stderr
    second = dist(clone(tmp_path / "somewhere-else"), str(tmp_path / "2"), umask=0o077, zone="Asia/Tokyo")
    assert second.returncode == 0, second.stderr
    assert first.stdout == second.stdout
    names = [line.split()[1] for line in first.stdout.splitlines()]
    assert names == [f"cloudgpu-{VERSION}-py3-none-any.whl", f"cloudgpu-{VERSION}.tar.gz"]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "2", check=True)
    with tarfile.open(tmp_path / "1" / names[1]) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tag", "v99.0.0"], f"the tag is v99.0.0, but __init__.py has version {VERSION}"),
        (["--tag", VERSION], f"the tag is {VERSION}, but"),
    ],
)
def test_a_tag_of_another_version_is_refused(tree: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = dist(tree, str(tmp_path / "dist"), *arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_uncommitted_changes_and_other_files_are_refused(tmp_path: Path) -> None:
    tree = clone(tmp_path / "checkout")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "old.whl").touch()
    assert "is not empty" in dist(tree, str(tmp_path / "full")).stderr
    (tree / "README.md").write_text("changed")
    refused = dist(tree, str(tmp_path / "dist"))
    assert "uncommitted changes:\nM README.md" in refused.stderr
    assert list((tmp_path / "dist").iterdir()) == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_can_hardly_be_abused(workflow: Path) -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--persona", "pedantic", str(workflow)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.engine
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_well_formed(workflow: Path) -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("no actionlint (make engines)")
    checked = subprocess.run([program, str(workflow)], check=False, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout) == (0, "")
