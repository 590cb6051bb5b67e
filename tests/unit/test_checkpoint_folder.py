"""The folder of a Checkpointer: only one training may use it, and an unwritable one is refused before the first
step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.runtime import Checkpointer, CheckpointError
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.checkpoints import restarted
from cloudgpu.tests.standins.disk import mounted
from cloudgpu.tests.standins.long_mode import LONG


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_") and name != "CLOUDGPU_TEST_MARK":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(program: str, *before: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a separate process, with the command prefixed by `before`."""
    command = [*before, sys.executable, "-c", f"from cloudgpu.runtime import Checkpointer\n{program}"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=os.environ | env)


# Exclusive use of a folder


def test_folds_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Otherwise the second fold would skip all training and use the weights of the first."""
    program = (
        "for k in range(3):\n    steps = list(Checkpointer(every=2).steps(4))\n    print(k, len(steps), flush=True)"
    )
    done = run(program, CLOUDGPU_OUTCOME=str(tmp_path / "outcome.json"))
    assert done.stdout == "0 4\n"
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert f"another Checkpointer of this process has the checkpoints in {tmp_path}/checkpoints" in said
    assert 'folder=f"fold-{k}"' in said
    outcome = json.loads((tmp_path / "outcome.json").read_bytes())
    assert (outcome["code"], outcome["reason"] in said) == (70, True)


def test_folds_with_folders_of_their_own() -> None:
    assert [len(list(Checkpointer(folder=f"fold-{k}").steps(3))) for k in range(3)] == [3, 3, 3]


def test_a_fold_that_was_broken_off_has_the_folder_too() -> None:
    for step in Checkpointer().steps(5):
        if step == 2:
            break
    with pytest.raises(CheckpointError, match="call release"):
        Checkpointer(folder=Path("checkpoints").resolve())  # another path of the same folder


def test_one_that_did_nothing_gives_way_to_the_next() -> None:
    """A notebook cell that creates a Checkpointer may run twice before the cell with the loop."""
    first, second = Checkpointer(), Checkpointer()
    assert len(list(second.steps(3))) == 3
    with pytest.raises(CheckpointError, match="another Checkpointer of this process"):
        next(first.steps(3))


def test_release_lets_the_training_go_on() -> None:
    ckpt = Checkpointer(every=1)
    loop = ckpt.steps(10)
    for _ in range(4):
        next(loop)
        ckpt.wait()
    ckpt.release()  # ends its suspended loop
    again = Checkpointer()
    assert again.step == 3
    assert list(again.steps(10)) == list(range(3, 10))
    with pytest.raises(CheckpointError, match="has given up"):
        next(loop)


def test_a_program_that_runs_again_is_another_process() -> None:
    for expected in ("4", "0"):
        assert run("print(len(list(Checkpointer().steps(4))))").stdout.strip() == expected


# Folders that cannot be written to

TRAIN = "ckpt = Checkpointer({})\nfor step in ckpt.steps(3):\n    print('step', step)"


def as_owner() -> list[str]:
    """Return a command prefix that makes file permissions apply; root bypasses them."""
    if os.geteuid():
        return []
    if not shutil.which("setpriv"):
        pytest.skip("NOT TESTED: permissions are nothing to root, and there is no setpriv(1) to give that up with")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def refused(done: subprocess.CompletedProcess[str], cause: str) -> None:
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert cause in said
    assert "nothing can be saved in" in said or "cannot be used as a job dir" in said


def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o555)
    outcome = tmp_path / "outcome.json"
    refused(run(TRAIN.format("folder='there'"), *as_owner(), CLOUDGPU_OUTCOME=str(outcome)), "Permission denied")
    assert json.loads(outcome.read_bytes())["code"] == 70
    (tmp_path / "there").chmod(0o755)
    assert run(TRAIN.format("folder='there'"), *as_owner()).returncode == 0


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    refused(run(TRAIN.format("folder='there'")), "a file lies in its place")
    refused(run(TRAIN.format("folder='there/below'")), "Not a directory")
    (tmp_path / "checkpoints").write_text("mine")
    job = {"CLOUDGPU_JOB_DIR": tmp_path.as_uri(), "CLOUDGPU_ATTEMPT": "1"}
    refused(run(TRAIN.format(""), **job), "Not a directory")
    job_dir = {"CLOUDGPU_JOB_DIR": (tmp_path / "there").as_uri(), "CLOUDGPU_ATTEMPT": "1"}
    refused(run(TRAIN.format(""), **job_dir), "a file lies in its place")


NO_LINKS = """
#include <errno.h>
int link(const char *old, const char *new) { errno = CODE; return -1; }
int linkat(int a, const char *old, int b, const char *new, int flags) { errno = CODE; return -1; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, to take link(2) away from a program")
@pytest.mark.parametrize("code", ["EPERM", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_hard_links(code: str, tmp_path: Path) -> None:
    library = tmp_path / "no_links.so"
    command = ["cc", "-shared", "-fPIC", f"-DCODE={code}", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=NO_LINKS, text=True, check=True)
    refused(run(TRAIN.format("folder='there'"), LD_PRELOAD=str(library)), "this file system has no hard links")


@pytest.mark.parametrize("folder", ["n" * 300, "a/" + "n" * 300 + "/b"])
def test_a_name_that_is_too_long(folder: str) -> None:
    with pytest.raises(CheckpointError, match="File name too long"):
        Checkpointer(folder=folder)


def test_what_is_finished_can_be_loaded_from_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    train = "ckpt = Checkpointer()\nckpt.state.setdefault('best', 7)\n"
    assert run(f"{train}list(ckpt.steps(3))").returncode == 0
    for path in [*tmp_path.rglob("*"), tmp_path / "checkpoints"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = run(f"{train}print(list(ckpt.steps(3)), ckpt.state)", *as_owner())
    assert (done.returncode, done.stdout) == (0, "[] {'best': 7}\n"), done.stderr
    refused(run(f"{train}list(ckpt.steps(4))", *as_owner()), "Permission denied")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def test_a_bucket_that_is_not_there(bucket: s3.S3, tmp_path: Path) -> None:
    bucket.fail("PUT", status=404, code="NoSuchBucket")
    outcome = tmp_path / "outcome.json"
    refused(run(TRAIN.format(f"folder={bucket.url!r}"), CLOUDGPU_OUTCOME=str(outcome)), "NoSuchBucket")
    assert json.loads(outcome.read_bytes())["code"] == 70


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (403, "AccessDenied")])
def test_a_bucket_that_fails_for_now_is_no_error_of_the_program(
    status: int, code: str, bucket: s3.S3, tmp_path: Path
) -> None:
    """A permission that was just granted takes minutes to take effect, so the job must be retried."""
    bucket.fail("PUT", status=status, code=code)
    outcome = tmp_path / "outcome.json"
    given = {"CLOUDGPU_OUTCOME": str(outcome), "CLOUDGPU_START_PATIENCE": "1"}
    refused(run(TRAIN.format(f"folder={bucket.url!r}"), **given), code)
    assert bucket.objects == {}
    found = json.loads(outcome.read_bytes())
    assert (found["code"], found["outcome"]) == (76, "stale")
    assert code in found["reason"]


@pytest.mark.parametrize("times", [12, 24, *([200] if LONG else [])])
def test_listings_that_are_refused_for_seconds_end_no_program(times: int, bucket: s3.S3) -> None:
    train = TRAIN.format(f"folder={bucket.url!r}")
    assert run(train).returncode == 0
    fault = bucket.fail("list", status=503, code="SlowDown", times=times)
    done = run(train)
    assert (done.returncode, fault.met) == (0, times), done.stderr
    assert "trying again" in done.stderr


@pytest.mark.parametrize(("kind", "name", "before"), [("list", "", 2), ("HEAD", "COMMIT.json", 0)])
def test_one_refusal_of_a_role_that_is_not_known_everywhere_yet_ends_no_program(
    kind: str, name: str, before: int, bucket: s3.S3
) -> None:
    train = TRAIN.format(f"folder={bucket.url!r}")
    assert run(train).returncode == 0
    seen = [0]

    def is_hit(request: s3.Request) -> bool:
        seen[0] += request.kind == kind and name in request.key
        return request.kind == kind and name in request.key and seen[0] > before

    fault = s3.Fault(is_hit, status=403, code="AccessDenied", times=1)
    bucket.faults.append(fault)
    done = run(train)
    assert (done.returncode, fault.met) == (0, 1), done.stderr


# Unrelated files in the folder


@pytest.mark.parametrize("unreadable", ["COMMIT.json", ""])
def test_without_the_right_to_read_the_newest_the_older_one_is_taken(unreadable: str, tmp_path: Path) -> None:
    program = "ckpt = Checkpointer(every=2, keep=9)\nprint(ckpt.step)\nfor _ in ckpt.steps({}):\n    ckpt.wait()"
    assert run(program.format(5)).stdout == "0\n"
    newest = max((tmp_path / "checkpoints").glob("00000005-*"))
    path = newest / unreadable if unreadable else newest
    path.chmod(0)
    done = run(program.format(9), *as_owner())
    path.chmod(0o755)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert f"checkpoint {newest.name} is passed over (rank 0): " in done.stderr
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (newest / "DAMAGED.json").exists()
    assert run(program.format(9)).stdout == "9\n"


def test_a_folder_that_may_only_be_listed_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    assert run("list(Checkpointer().steps(3))").returncode == 0
    (tmp_path / "checkpoints").chmod(0o444)
    done = run("print(Checkpointer().step)", *as_owner())
    (tmp_path / "checkpoints").chmod(0o755)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "no checkpoint could be restored" in done.stderr.strip().splitlines()[-1]


FOREIGN = ("line\nbreak", "bell\a", os.fsdecode(b"\xff\xfe"), "back\\slash", "%0A", "ünïcode")


def test_foreign_names_hide_no_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    list(restarted(every=1).steps(3))
    for name in FOREIGN:
        Path("checkpoints", name).touch()
        Path("checkpoints", f"{name} 2").mkdir()
        Path("checkpoints", f"{name} 3").symlink_to(f"{name} 3")
    ckpt = restarted(every=1)
    assert (ckpt.step, len(list(ckpt.steps(5)))) == (3, 2)
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    assert all(Path("checkpoints", f"{name}{more}").exists() for name in FOREIGN for more in ("", " 2"))


def test_foreign_names_inside_hide_no_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    list(restarted(every=1).steps(3))
    (newest,) = Path("checkpoints").glob("00000003-*")
    inside = [
        folder / f"{name}{more}" for folder in (newest, newest.parent / "fences") for name in FOREIGN for more in "12"
    ]
    for path in inside:
        path.mkdir() if path.name.endswith("2") else path.touch()
    ckpt = restarted(every=1)
    assert (ckpt.step, len(list(ckpt.steps(5)))) == (3, 2)
    ckpt.log(loss=1.0)
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    fences = newest.parent / "fences"
    assert all(path.exists() for path in inside if path.parent == fences)
    assert [path.name for path in fences.glob("*.json")] == ["000002.json"]


def test_a_checkpoint_whose_commit_is_a_folder_is_passed_over_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    loop = restarted(every=1, keep=9)
    for _ in loop.steps(3):
        loop.wait()
    (newest,) = Path("checkpoints").glob("00000003-*")
    (newest / "COMMIT.json").rename(newest / "kept")
    (newest / "COMMIT.json").mkdir()
    ckpt = restarted(every=1)
    assert ckpt.step == 2
    assert "COMMIT.json: a folder lies in its place" in caplog.text
    assert sorted(path.name for path in newest.iterdir()) == [
        "COMMIT.json",
        "kept",
        "rank-00000.bin",
        "rank-00000.json",
    ]


# Disks that are too small


def test_a_disk_without_room_for_two_checkpoints_is_refused(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with mounted(tmp_path / "disk", "5m") as disk:
        ckpt = Checkpointer(folder=disk.folder)
        ckpt.state["data"] = np.zeros(3_000_000, np.uint8)
        with pytest.raises(CheckpointError, match=r"too small .* takes 3[.\d]* MB, and 5\.\d+ MB are free") as caught:
            next(ckpt.steps(3))
        assert caught.value.code is None  # a retry may find enough space


def test_a_disk_without_room_for_all_that_is_to_be_kept_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np = pytest.importorskip("numpy")
    with mounted(tmp_path / "disk", "10m") as disk:
        ckpt = Checkpointer(folder=disk.folder, every=1, keep=3)
        ckpt.state["data"] = np.zeros(3_000_000, np.uint8)
        for _ in ckpt.steps(8):
            ckpt.wait()
        assert "keep=3 needs room for 4; there is room for 3, so only 2 will be kept" in caplog.text
        assert "could not be saved" not in caplog.text
        ckpt.release()
        assert Checkpointer(folder=disk.folder).step == 8
