"""`setup` on this machine: a separate environment for the job on top of the submitter's, which stays unchanged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.runtime.agent.job_environment import KEPT_S, content_of, remove_unused
from cloudgpu.tests.standins.local_jobs import state_directory, stop_supervisor, submit_text

WAIT_S = 180.0
SHOW = "python -c 'import base_package, demo, sys; print(base_package.VERSION, demo.VERSION, sys.prefix)'"
INSTALL = "pip install --quiet --no-index demo-{}-py3-none-any.whl"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with state_directory(tmp_path / "home", monkeypatch) as folder:
        yield folder
        stop_supervisor()


@pytest.fixture(scope="session")
def submitters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the submitter's virtual environment, with pip and one package."""
    folder = tmp_path_factory.mktemp("submitter") / "venv"
    venv.create(folder, with_pip=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "base_package.py").write_text("VERSION = 'base'\n")
    return folder


@pytest.fixture
def active(submitters: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIRTUAL_ENV", str(submitters))
    monkeypatch.setenv("PATH", f"{submitters / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return submitters


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Create a code folder with two versions of a package as wheels."""
    folder = tmp_path / "code"
    folder.mkdir()
    for version in ("1", "2"):
        info = f"demo-{version}.dist-info"
        with zipfile.ZipFile(folder / f"demo-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("demo.py", f"VERSION = {version!r}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", f"demo.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return folder


def submitted(name: str, setup: str, code: Path, run: str = SHOW) -> Job:
    return submit_text(f"name: {name}\nrun: {run}\nsetup: {setup}\n", code)


def finish(job: Job) -> Job:
    assert job.wait(timeout_s=WAIT_S), [event.message for event in job.events()]
    assert job.state == "succeeded", (job.reason, [line.text for line in job.logs().read()[0]])
    return job


def texts(job: Job, *streams: str) -> list[str]:
    return [line.text for line in job.logs().read()[0] if line.stream in (streams or ("stdout",))]


def content(folder: Path) -> list[tuple[str, int]]:
    """Return the files of an environment and their times, without bytecode, which every program may write."""
    files = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return sorted((str(path), path.lstat().st_mtime_ns) for path in files if not path.is_dir())


def test_a_setup_leaves_the_submitters_environment_as_it_is(home: Path, code: Path, active: Path) -> None:
    before = content(active)
    jobs = [submitted(f"job-{version}", INSTALL.format(version), code) for version in ("1", "2")]
    shown = [texts(finish(job))[-1].split() for job in jobs]
    assert [words[:2] for words in shown] == [["base", "1"], ["base", "2"]], "two pins do not break each other"
    assert all(Path(words[2]).is_relative_to(home / "local/environments") for words in shown)
    again = finish(submitted("again", INSTALL.format("1"), code))
    assert texts(again)[-1].split() == shown[0], "the same environment"
    assert "setup: its packages are in the cache" in texts(again, "agent")
    (code / "train.py").write_text("import demo; print('other code', demo.VERSION)\n")
    other = finish(submitted("other", INSTALL.format("1"), code, "python train.py"))
    assert texts(other)[-1] == "other code 1"
    assert "setup: its packages are in the cache" in texts(other, "agent"), "keyed by what it installs"
    assert content(active) == before


def test_a_setup_with_other_effects_runs_for_each_job(home: Path, code: Path, active: Path) -> None:
    before = content(active)
    setup = f"{INSTALL.format('1')} && touch made-by-setup"
    for name in ("first", "second"):
        job = finish(submitted(name, setup, code, f"ls made-by-setup && {SHOW}"))
        assert texts(job)[-2] == "made-by-setup"
        assert not Path(texts(job)[-1].split()[2]).exists(), "removed with its machine"
    assert content(active) == before


def test_several_jobs_build_one_environment_once(home: Path, code: Path, active: Path) -> None:
    jobs = [submitted(f"job-{index}", INSTALL.format("1"), code) for index in range(4)]
    prefixes = {texts(finish(job))[-1] for job in jobs}
    assert len(prefixes) == 1
    assert sum("setup begins" in texts(job, "agent") for job in jobs) == 1


def test_an_interrupted_build_is_not_used(home: Path, code: Path, active: Path) -> None:
    (active / "bin/pip").rename(active / "bin/pip.away")

    try:
        (active / "bin/pip").write_text(f"#!{active}/bin/python\nimport time; time.sleep(600)\n")
        (active / "bin/pip").chmod(0o755)
        job = submitted("killed", INSTALL.format("1"), code)
        end = time.monotonic() + WAIT_S
        while "setup begins" not in texts(job, "agent"):
            assert time.monotonic() < end
            time.sleep(0.05)
        agents = list(_agents(home))
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
        assert agents
        job.cancel()
        assert job.wait(timeout_s=WAIT_S)
    finally:
        (active / "bin/pip.away").replace(active / "bin/pip")
    (key,) = (home / "local/environments").iterdir()
    interrupted = [path.name for path in key.iterdir() if path.is_dir()]
    assert len(interrupted) == 1
    assert not (key / "ready").exists()
    assert texts(finish(submitted("next", INSTALL.format("1"), code)))[-1].startswith("base 1 ")
    assert not (key / interrupted[0]).exists()


def _agents(home: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"cloudgpu.runtime.agent" in words and any(str(home).encode() in word for word in words):
                yield int(entry.name)


def test_unused_environments_are_removed(tmp_path: Path) -> None:
    for name in ("used", "unused", "recent"):
        (tmp_path / name / "nonce" / "bin").mkdir(parents=True)
        (tmp_path / name / "ready").write_text("nonce")
        (tmp_path / name / "lock").touch()
    now = time.time()
    for name in ("used", "unused"):
        os.utime(tmp_path / name / "ready", (0, now - KEPT_S - 1))
    script = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); "
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "used/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        remove_unused(tmp_path, now)
        assert job.stdin is not None
        job.stdin.close()
    assert {path.parent.name for path in tmp_path.glob("*/nonce")} == {"used", "recent"}
    remove_unused(tmp_path, now)
    assert {path.parent.name for path in tmp_path.glob("*/nonce")} == {"recent"}


@pytest.mark.parametrize(
    ("setup", "is_cached"),
    [
        ("pip install numpy==2.0 'scipy<2'", False),  # `<` needs a shell
        ("pip install numpy==2.0", True),
        (["python", "-m", "pip", "install", "numpy"], True),
        ("pip install -q numpy\nuv pip install einops; pip3 install tqdm && pip install rich", True),
        ("pip install torch --index-url https://example.org/whl/cpu", True),
        ("pip install -r requirements.txt", True),
        ("pip install -r changing.txt", False),
        ("pip install -U numpy", False),
        ("pip install -e .", False),
        ("pip install ./package", False),
        ("pip install git+https://example.org/x.git", False),
        ("pip install numpy && python prepare.py", False),
        ("pip install $PACKAGES", False),
        ("make", False),
        ("", False),
    ],
)
def test_which_setups_are_cached(tmp_path: Path, setup: str | list[str], is_cached: bool) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "requirements.txt").write_text("--index-url https://example.org/simple\nnumpy==2.0\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("einops\n")
    (tmp_path / "changing.txt").write_text("demo @ https://example.org/demo.zip\n")
    assert (content_of(setup, tmp_path) is not None) is is_cached


def test_the_key_is_the_content_of_requirements(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text("einops==1\n")
    setup = "pip install -r requirements.txt"
    first = content_of(setup, tmp_path)
    (tmp_path / "train.py").write_text("x\n")
    assert content_of(setup, tmp_path) == first
    (tmp_path / "more.txt").write_text("einops==2\n")
    assert content_of(setup, tmp_path) not in (None, first)
