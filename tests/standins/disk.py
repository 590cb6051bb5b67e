"""A small temporary file system that can be filled up and made read-only while it is in use."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Disk:
    """A mounted tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Write until no space is left."""
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 65_536)
        assert os.statvfs(self.folder).f_bavail == 0

    def take_all_names(self) -> None:
        """Create files until no inode is left; existing files remain writable."""
        self._ballast.mkdir()
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self._ballast / str(number)).touch()

    def free(self) -> None:
        """Undo fill() or take_all_names()."""
        if self._ballast.is_dir():
            shutil.rmtree(self._ballast)
        else:
            self._ballast.unlink()

    def set_writable(self, writable: bool) -> None:
        """Remount the file system read-only or writable; a read-only mount stops even root from writing."""
        command = ["mount", "-o", f"remount,{'rw' if writable else 'ro'}", str(self.folder)]
        end = time.monotonic() + 180
        while subprocess.run(command, check=False, capture_output=True).returncode:
            assert time.monotonic() < end  # a file is open for writing at the moment
            time.sleep(0.01)


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Disk]:
    """Mount a tmpfs of this size; skip the test if mounting is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=2k,mode=700", "cloudgpu-test", str(folder)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("NOT TESTED: there is no mount(8) to make a small disk with")
    if done.returncode:
        pytest.skip(f"NOT TESTED: only root may mount the small disk this needs: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
