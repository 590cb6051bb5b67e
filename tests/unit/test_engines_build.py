"""tests/engines/build.sh, run with an engine whose build takes no time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[1] / "engines/build.sh"
RECIPE = '#!/bin/sh\necho made >> "$(dirname "$0")/../made"\ntouch "$2/of-the-build"\necho "echo engine" > "$1/toy"\n'


class Engines:
    """A folder with the script and one engine, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache/cloudgpu-engines"
        (folder / "toy").mkdir()
        shutil.copy(BUILD, folder)

    def recipe(self, text: str) -> None:
        path = self.folder / "toy/build.sh"
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        return subprocess.run(
            [self.folder / "build.sh", *words], env=environ, capture_output=True, text=True, timeout=180, check=False
        )

    @property
    def built(self) -> list[list[str]]:
        """Return the files in each folder of the cache."""
        return [sorted(one.name for one in folder.iterdir()) for folder in sorted(self.cache.iterdir())]


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def test_an_engine_is_built_once_and_anew_when_its_files_change(engines: Engines) -> None:
    engines.recipe(RECIPE)
    assert engines.run("--path").stdout == ""
    assert engines.run().returncode == 0
    assert engines.built == [["toy"]], "the program and nothing of its build"
    assert engines.run("--path").stdout == f"{next(engines.cache.iterdir())}:"
    assert "in the cache" in engines.run().stdout
    assert (engines.folder / "made").read_text() == "made\n"
    (engines.folder / "toy/go.sum").write_text("another version")
    assert engines.run("--path").stdout == ""
    assert engines.run().returncode == 0
    assert engines.built == [["toy"], ["toy"]]


def test_what_it_needs_is_not_there(engines: Engines) -> None:
    engines.recipe("#!/bin/sh\necho half > $1/toy\nexit 69\n")
    done = engines.run()
    assert (done.returncode, engines.built, engines.run("--path").stdout) == (0, [], "")
    assert "NOT BUILT: toy: the tests that need it are skipped" in done.stderr


def test_a_build_that_fails_fails(engines: Engines) -> None:
    engines.recipe("#!/bin/sh\necho half > $1/toy\necho a defect >&2\nexit 3\n")
    done = engines.run()
    assert (done.returncode, engines.built) == (3, [])
    assert "a defect" in done.stderr


def test_pulumi_without_go_is_not_there(tmp_path: Path) -> None:
    """Run the real recipe on a machine without Go."""
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    done = subprocess.run(
        [BUILD.parent / "pulumi/build.sh", tmp_path, tmp_path],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 69
    assert "there is no Go here" in done.stderr
