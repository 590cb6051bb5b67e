"""Outcome file: one record for each training and rank, the most severe on top."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.runtime.checkpoint.errors import EXIT_DONE, EXIT_SAVED, EXIT_USER
from cloudgpu.runtime.checkpoint.outcome import SEVERITY, Outcome, OutcomeRecord
from cloudgpu.runtime.processes.exit_verdict import ReportedOutcome, read_outcome

WRITER = """
import sys
from cloudgpu.runtime.checkpoint.outcome import Outcome, OutcomeRecord
record = OutcomeRecord("/c", int(sys.argv[1]), 4)
for step in range(40):
    record.write(Outcome(75 if sys.argv[1] == "2" else 0, step, None, None, "as asked"))
"""

# Training that reports nothing after its begin(); the last line decides how its process ends.
ENDING = """
import multiprocessing, os, sys
from cloudgpu.runtime.checkpoint.outcome import Outcome, OutcomeRecord
def train():
    OutcomeRecord("/c").begin()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "outcome.json"
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(path))
    return path


def outcome(code: int) -> Outcome:
    return Outcome(code, 7, 5, "00000005-0001-ab", "as asked")


def word(path: Path) -> str:
    found = read_outcome(path)
    assert found is not None
    return found.word


def test_ranks_of_a_launcher_write_at_the_same_time(file: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    assert [rank.communicate()[1] for rank in ranks] == [""] * 4
    content = json.loads(file.read_bytes())
    assert {(one["rank"], one["step"], one["outcome"]) for one in content["trainings"]} == {
        (rank, 39, "interrupted" if rank == 2 else "done") for rank in range(4)
    }
    assert content["outcome"] == "interrupted"
    assert sorted(path.name for path in file.parent.iterdir()) == ["outcome.json", "outcome.json.lock"]


def test_the_most_severe_word_counts_until_its_training_reports_again(file: Path) -> None:
    first, second = OutcomeRecord("/pretrain"), OutcomeRecord("/finetune")
    for record, code, expected in (
        (first, None, "training"),
        (first, EXIT_DONE, "done"),
        (second, None, "training"),
        (second, EXIT_SAVED, "interrupted"),
        (first, EXIT_DONE, "interrupted"),
        (OutcomeRecord("/finetune"), None, "training"),
        (OutcomeRecord("/finetune"), EXIT_DONE, "done"),
    ):
        record.begin() if code is None else record.write(outcome(code))
        assert word(file) == expected


def test_ranks_of_an_earlier_run_do_not_count(file: Path) -> None:
    OutcomeRecord("/c", rank=3, world=4).write(outcome(EXIT_SAVED))
    OutcomeRecord("/c", rank=0, world=2).write(outcome(EXIT_DONE))
    assert word(file) == "done"


@pytest.mark.parametrize("before", SEVERITY)
def test_what_only_restores_does_not_replace_an_interruption(file: Path, before: str) -> None:
    record: dict[str, Any] = {"outcome": before, "training": "/c", "rank": 0, "world": 1}
    file.write_text(json.dumps({**record, "trainings": [record]}))
    OutcomeRecord("/c").announce()
    assert word(file) == ("training" if before in ("done", "unfinished") else before)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("train()", "unfinished"),
        ("train(); sys.exit(0)", "unfinished"),
        ("train(); sys.exit(3)", "unfinished"),
        ("train(); raise OSError('no such data')", "training"),
        ("train(); os._exit(0)", "training"),
        ("train(); os.kill(os.getpid(), 9)", "training"),
        ("train(); os.fork() or sys.exit(0); os.wait(); os._exit(0)", "training"),
        ("c = multiprocessing.get_context('fork').Process(target=train); c.start(); c.join()", "unfinished"),
        ("OutcomeRecord('/c').write(Outcome(70, 0, None, None, '')); raise OSError", "user"),
        ("OutcomeRecord('/c').write(Outcome(70, 0, None, None, '')); 'the program trains without it'", "unfinished"),
        ("train(); OutcomeRecord('/c').write(Outcome(0, 0, None, None, ''))", "done"),
        ("train(); OutcomeRecord('/c').leave(Outcome(70, 0, None, None, ''))", "user"),
    ],
)
def test_how_the_process_ends(file: Path, ends: str, expected: str) -> None:
    subprocess.run([sys.executable, "-c", ENDING + ends], check=False, capture_output=True)
    assert word(file) == expected


def test_leaving_records_the_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDGPU_MACHINE", raising=False)  # no agent, so no shell is stopped
    with pytest.raises(SystemExit) as end:
        OutcomeRecord("/c").leave(outcome(EXIT_SAVED))
    assert end.value.code == EXIT_SAVED
    assert read_outcome(file) == ReportedOutcome("interrupted", "as asked", left=True, pids=frozenset({os.getpid()}))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"trainings": 7}',
        '{"trainings": [1, {}, {"outcome": "no"}]}',
        '{"trainings": [{"outcome": []}]}',
    ],
)
def test_rubbish_is_replaced(file: Path, content: str) -> None:
    file.write_text(content)
    OutcomeRecord("/c").write(outcome(EXIT_USER))
    assert word(file) == "user"


def test_a_file_that_cannot_be_written_is_a_warning(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(file.parent / "no such folder" / "outcome.json"))
    OutcomeRecord("/c").begin()
    assert "the outcome file cannot be written" in caplog.text


def test_shells_go_on_where_the_outcome_cannot_be_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(file.parent / "no such folder" / "outcome.json"))
    monkeypatch.setenv("CLOUDGPU_MACHINE", "test-outcome-file")
    leave = ENDING + "OutcomeRecord('/c').leave(Outcome(75, 0, None, None, ''))"
    command = ["bash", "-c", '"$0" -c "$1"; echo "ended with $?"', sys.executable, leave]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert result.stdout == "ended with 75\n"  # a stopped shell would never print this
