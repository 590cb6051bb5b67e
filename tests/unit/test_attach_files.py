"""Files that a program writes: they are saved with each checkpoint and restored when the program restarts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.runtime.attach.program.frame_inspection import Code
from cloudgpu.runtime.attach.state import files as module
from cloudgpu.runtime.attach.state.files import Files
from cloudgpu.runtime.attach.state.journal import CUT, Journal
from cloudgpu.runtime.attach.state.variables import UnsavableError

pytest.importorskip("torch")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.chdir(tmp_path)
    watching = start(tmp_path)
    yield watching
    watching.on = False


def start(folder: Path) -> Files:
    found = Files(Code(Path(__file__).parent), Journal(folder / ".journal"))  # this test acts as the program
    found.install()
    return found


def test_lines_after_the_checkpoint_go(files: Files) -> None:
    with Path("log.csv").open("a") as file:
        file.write("1\n")
    state = files.state_dict()
    with Path("log.csv").open("a") as file:
        file.write("2\n")
    files.load_state_dict(state)
    assert Path("log.csv").read_text() == "1\n"


def test_a_file_that_the_program_begins_anew_has_its_lines_again(files: Files, tmp_path: Path) -> None:
    log = Path("log.csv").open("w")  # noqa: SIM115 - as programs do
    log.write("header\n1\n")
    state = files.state_dict()  # state_dict() flushes it
    log.write("2\n")
    log.close()
    files.on = False
    resumed = start(tmp_path)
    with Path("log.csv").open("w") as log:
        log.write("header\n")
        resumed.load_state_dict(state)
        log.write("2\n")
    assert Path("log.csv").read_text() == "header\n1\n2\n"
    resumed.on = False


def test_a_folder_that_the_program_removes_has_its_files_again(files: Files, tmp_path: Path) -> None:
    def prologue() -> None:
        shutil.rmtree("out", ignore_errors=True)
        Path("out").mkdir()

    Path("out").mkdir()
    prologue()
    files.early = False
    Path("out/best.txt").write_text("0.5")
    state = files.state_dict()
    files.on = False
    resumed = start(tmp_path)
    prologue()
    resumed.load_state_dict(state)
    assert Path("out/best.txt").read_text() == "0.5"
    resumed.on = False


def test_what_is_written_whole_while_training_is_not_saved(files: Files) -> None:
    files.early = False
    Path("best.txt").write_text("1")
    assert not any("best.txt" in path for path in files.state_dict())


def test_without_a_checkpoint_a_file_goes_back_to_what_it_was(files: Files, tmp_path: Path) -> None:
    Path("old.log").write_bytes(b"before\n")
    files.on = False
    first = start(tmp_path)
    for name in ("old.log", "new.log"):
        with Path(name).open("a") as file:
            file.write("row\n")
    first.on = False
    start_again = Files(Code(Path(__file__).parent), Journal(tmp_path / ".journal"))
    start_again.journal.cut_back()
    assert Path("old.log").read_text() == "before\n"
    assert not Path("new.log").exists()
    start_again.journal.forget()
    assert not Path(".journal").exists()


def test_what_is_cut_off_is_kept_until_it_stands_there_again(files: Files, tmp_path: Path) -> None:
    log = Path("log.csv")
    with log.open("a") as file:
        file.write("1\n")
    state = files.state_dict()
    with log.open("a") as file:
        file.write("2\nof another program\n")
    files.load_state_dict(state)
    kept = [path.read_text() for path in (tmp_path / CUT).iterdir()]
    assert (log.read_text(), kept) == ("1\n", ["2\nof another program\n"])
    files.on = False
    with log.open("a") as file:
        file.write("2\n")
    files.journal.forget()
    assert [path.read_text() for path in (tmp_path / CUT).iterdir()] == ["2\nof another program\n"]


def test_what_was_written_again_is_kept_no_longer(files: Files, tmp_path: Path) -> None:
    with Path("log.csv").open("a") as file:
        file.write("1\n2\n")
    files.journal.cut_back()
    assert (tmp_path / CUT).is_dir()
    Path("log.csv").write_text("1\n2\n3\n")
    files.journal.forget()
    assert not (tmp_path / CUT).exists()


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"path": 7}', '{"path": "log.csv", "size": "1"}', "\0", '{"path": "log.c']
)
def test_a_journal_with_rubbish_cuts_nothing(files: Files, tmp_path: Path, line: str) -> None:
    files.on = False
    (tmp_path / ".journal").write_text(line)
    Path("log.csv").write_text("1\n")
    Path("new.csv").write_text("2\n")
    files.journal.note_size(str(tmp_path / "new.csv"), None)
    files.journal.cut_back()
    assert Path("log.csv").read_text() == "1\n"
    assert not Path("new.csv").exists()


def test_too_much_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    with Path("log").open("a") as file:
        file.write("12345")
    with pytest.raises(UnsavableError, match="log has more than"):
        files.state_dict()


def test_a_file_descriptor_is_a_problem(files: Files) -> None:
    os.close(os.open("raw.bin", os.O_WRONLY | os.O_CREAT))
    assert files.problem is not None
    assert "file descriptor" in files.problem


def test_a_date_that_the_program_did_not_choose_is_no_problem(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, asked = tmp_path / time.strftime("project-%Y-%m"), time.strftime("%Y_%m_%d")
    there.mkdir()
    files.problem = None
    monkeypatch.setattr(module, "_STARTED", time.time() + 1)
    (there / "log.csv").write_text("")
    monkeypatch.setattr(module, "_STARTED", 0.0)
    monkeypatch.setattr("sys.argv", ["train.py", f"--out={asked}"])
    Path(asked).mkdir()
    assert files.problem is None


def test_a_descriptor_is_no_name(files: Files) -> None:
    Path("raw.bin").write_bytes(b"123")
    with Path("raw.bin").open("r+b") as file:
        os.truncate(file.fileno(), 1)
    assert Path("raw.bin").read_bytes() == b"1"


def test_an_output_named_by_the_clock_is_a_problem(files: Files) -> None:
    Path(time.strftime("run-%Y%m%d")).mkdir()
    assert files.problem is not None
    assert "by the clock" in files.problem
