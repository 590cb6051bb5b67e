"""GPU locks in a folder that every user may write: their holders, and files that another user puts in their place."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.provisioners.local.locks import FOLDER_VARIABLE, lock_gpu

UUID = "GPU-1"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of UUID's lock file, which does not exist yet."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / f"cloudgpu-gpu-{UUID}.lock"


def test_a_lock_is_held_until_its_heirs_have_ended(path: Path) -> None:
    descriptor = lock_gpu(UUID)
    assert descriptor is not None
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor], start_new_session=True
    )
    os.close(descriptor)
    assert lock_gpu(UUID) is None
    heir.kill()
    heir.communicate()
    again = lock_gpu(UUID)
    assert again is not None
    os.close(again)
    assert list(path.parent.iterdir()) == [path]


def test_every_user_can_lock_and_none_can_write(path: Path) -> None:
    before = os.umask(0o077)
    try:
        descriptor = lock_gpu(UUID)
    finally:
        os.umask(before)
    assert descriptor is not None
    os.close(descriptor)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_a_lock_whose_file_was_replaced_is_not_taken_for_the_new_ones(path: Path) -> None:
    old = lock_gpu(UUID)
    assert old is not None
    path.unlink()
    new = lock_gpu(UUID)
    assert new is not None
    assert lock_gpu(UUID) is None
    os.close(old)
    assert lock_gpu(UUID) is None
    os.close(new)


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "target")


def _link_to_a_file(path: Path) -> None:
    (path.parent / "target").write_text("precious")
    path.symlink_to(path.parent / "target")


@pytest.mark.parametrize("put", [_dangling_link, _link_to_a_file, os.mkfifo, Path.mkdir])
def test_what_is_no_lock_file_is_refused_and_left_alone(path: Path, put: Callable[[Path], None]) -> None:
    put(path)
    with pytest.raises(
        ProvisionError, match=f"{path} cannot be locked: .*remove it, or set CLOUDGPU_LOCK_DIR"
    ) as caught:
        lock_gpu(UUID)
    assert caught.value.error_class == "invalid"
    target = path.parent / "target"
    assert not target.exists() or target.read_text() == "precious"
    assert path.is_symlink() or path.exists()
