"""State directory: private to the user whichever command creates it; readable where nothing can be written."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.cli.shared.crash import write_report
from cloudgpu.control import paths
from cloudgpu.control.errors import StoreError
from cloudgpu.control.store.schema import connect
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.infra.engine.backend import backend_of
from cloudgpu.provisioners.boot import agent_file
from cloudgpu.provisioners.local.machine import launch_lock
from cloudgpu.provisioners.shared import refresh


def _refresh(_home: Path) -> None:
    with refresh.table_lock():
        pass


def _lock(_home: Path) -> None:
    paths.state_dir()
    lock = supervisor_lock.take_lock()
    assert lock is not None
    lock.close()
    paths.open_private(paths.supervisor_log()).close()


def _guard(home: Path) -> None:
    with launch_lock(home / "local" / "guards" / "x"):
        pass


def _agents(_home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(agent_file.AgentFileError):
        patch.setenv("CLOUDGPU_AGENT_PYTHONS", "2")  # refused after the folder was created
        agent_file.build_agent_file("x86_64")


WRITERS: dict[str, Callable[[Path], object]] = {
    "catalog refresh": _refresh,
    "infra up": lambda _home: backend_of(None, {}).folder("a"),
    "status": lambda _home: connect().close(),
    "supervise": _lock,
    "a crash": lambda _home: write_report(ValueError("x"), ["status"]),
    "a machine of this computer": _guard,
    "the agent file": _agents,
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "above" / "home"))
    return tmp_path / "above" / "home"


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("command", WRITERS)
def test_it_is_closed_to_others_whatever_comes_first(home: Path, command: str, exists: bool) -> None:
    before = os.umask(0o022)
    try:
        if exists:
            home.mkdir(parents=True)  # 0755, as created by an older version
        WRITERS[command](home)
    finally:
        os.umask(before)
    folders = [home, *(path for path in home.rglob("*") if path.is_dir())]
    assert {str(path): oct(stat.S_IMODE(path.stat().st_mode)) for path in folders} == {
        str(path): "0o700" for path in folders
    }
    for path in (paths.supervisor_lock(), paths.supervisor_log(), home / "cloudgpu.db"):
        assert not path.exists() or stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_every_folder_of_the_state_directory_is_made_by_one_function() -> None:
    """Path.mkdir gives missing parents the umask's mode, so other code must not create them."""
    root = Path(paths.__file__).parents[1]
    makers = [
        f"{path.relative_to(root)}: {line.strip()}"
        for part in ("control", "infra", "provisioners", "jobspecs")
        for path in (root / part).rglob("*.py")
        for line in path.read_text().splitlines()
        if ".mkdir(" in line and "parents=True" in line and path.name not in ("home.py", "agent_file.py")
    ]
    assert makers == []


_LOOK = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99
exec "$2" -m cloudgpu status
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="NOT CHECKED: a read-only file system needs unshare")
def test_status_reads_a_store_on_a_read_only_file_system(home: Path) -> None:
    connect().close()
    words = ["unshare", "-rm", "sh", "-c", _LOOK, "sh", str(home), sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode in (1, 99) and "cloudgpu" not in done.stderr:
        pytest.skip(f"NOT CHECKED: nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "no jobs" in done.stdout


@pytest.mark.parametrize("password", ["p@sswhich", "a/b@sswhich", "@sswhich", "p:w@sswhich"])
def test_a_password_with_an_at_is_never_shown(password: str) -> None:
    with pytest.raises(StoreError) as raised:
        connect(f"postgresql+psycopg://me:{password}@localhost:1/jobs")
    assert "sswhich" not in str(raised.value) and "CLOUDGPU_DATABASE_URL" in str(raised.value)
