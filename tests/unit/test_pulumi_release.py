"""Installation of Pulumi's engine: its archive must match the release's checksums."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from cloudgpu.infra.engine.release import archive_name, fetch
from cloudgpu.infra.errors import InfraError

VERSION = "3.210.0"


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    """Return a folder with the layout of the releases' host."""
    folder = tmp_path / "releases"
    folder.mkdir()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        entry = tarfile.TarInfo("pulumi/pulumi")
        entry.size, entry.mode = 9, 0o755
        tar.addfile(entry, io.BytesIO(b"#!/bin/sh"))
    archive, name = content.getvalue(), archive_name(VERSION)
    (folder / name).write_bytes(archive)
    lines = [f"{'0' * 64}  another.tar.gz", f"{hashlib.sha256(archive).hexdigest()}  {name}"]
    (folder / f"pulumi-{VERSION}-checksums.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_the_archive_that_was_released_is_installed(releases: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time over an existing installation
        fetch(VERSION, tmp_path / "engine", releases.as_uri())
        program = tmp_path / "engine/bin/pulumi"
        assert program.read_bytes() == b"#!/bin/sh" and program.stat().st_mode & 0o100
        assert [path.name for path in (tmp_path / "engine").iterdir()] == ["bin"]


def test_another_archive_is_refused(releases: Path, tmp_path: Path) -> None:
    with (releases / archive_name(VERSION)).open("ab") as file:
        file.write(b"more")
    with pytest.raises(InfraError, match="nothing is installed"):
        fetch(VERSION, tmp_path / "engine", releases.as_uri())
    assert not list((tmp_path / "engine").iterdir())


def test_a_release_whose_checksums_do_not_name_it_is_refused(releases: Path, tmp_path: Path) -> None:
    (releases / f"pulumi-{VERSION}-checksums.txt").write_text("<html>not found</html>")
    with pytest.raises(InfraError, match="do not name"):
        fetch(VERSION, tmp_path / "engine", releases.as_uri())
    assert not (tmp_path / "engine").exists()
