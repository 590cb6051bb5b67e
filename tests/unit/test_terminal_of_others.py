"""Untrusted text on a terminal: colours pass, and nothing that a terminal acts on."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.cli.shared.output import json_text
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, Result, attempt_key, local_url, node_key
from cloudgpu.protocol.metrics import Row, Segment
from cloudgpu.tests.standins.control import make_offer

ESC = "\x1b"
EVIL = f"{ESC}]52;c;aGk=\x07{ESC}[2J{ESC}]0;title\x07\x9b2J\x90q\x9c"
NAME = "00000020-0001-000000000000"


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    """Return the job dir of two nodes whose names, log lines, figures and results are untrusted."""
    made = JobDir(local_url(tmp_path / "job"))
    made.put(JOB_KEY, JobRecord("job-1", "job", "true").to_bytes())
    made.put(attempt_key(1), AttemptRecord(1, make_offer(nodes=2).to_json(), []).to_bytes())
    line = json.dumps([1_700_000_000.0, 0, "stdout", f"{ESC}[31mred{ESC}[0m\t50 %\r{EVIL}end"])
    for node in ("worker-0.1", "work\u202eer-1.1"):
        made.put(node_key(1, node, "log/00000001.gz"), gzip.compress(line.encode()))
        made.put(node_key(1, node, "result.json"), Result("failed", 1, EVIL, 1.0, 2.0).to_bytes())
    rows = Segment(NAME, None, closed=False)
    rows.lines.append(json.dumps(Row(1, 1.0, {f"loss{EVIL}": 1.0}).to_json()).encode())
    made.put(f"checkpoints/{NAME}/metrics.jsonl", rows.to_bytes())
    made.put(f"checkpoints/{NAME}/COMMIT.json", b"{}")
    return made


def on_a_terminal(tmp_path: Path, *words: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    home = {"CLOUDGPU_HOME": str(tmp_path / "home"), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cloudgpu", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **home},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    assert process.wait(180) == 0
    return seen.decode()


@pytest.mark.parametrize(
    "words",
    [
        ("logs",),
        ("logs", "-t"),
        ("metrics", "--folder"),
        ("metrics", "--csv", "--folder"),
        ("metrics", "--json", "--folder"),
    ],
    ids=" ".join,
)
def test_a_terminal_gets_nothing_that_it_acts_on(tmp_path: Path, job_dir: JobDir, words: tuple[str, ...]) -> None:
    place = job_dir.url if words[0] == "logs" else f"{job_dir.url}/checkpoints"
    seen = on_a_terminal(tmp_path, *words, place)
    for sequence in (f"{ESC}]", f"{ESC}[2J", "\x9b", "\x90", "\x07", "\u202e"):
        assert sequence not in seen, repr(seen)
    if words[0] == "logs":
        assert seen.count(f"{ESC}[31mred{ESC}[0m\t50 %\rend") == 1, repr(seen)
    else:
        assert "loss" in seen


@pytest.mark.parametrize("text", ["\ud800", "\x9b2J", "\u202eabc", "ü☃", "\x1b[2J"])
def test_json_holds_any_text_and_no_control_sequence(text: str) -> None:
    for indent in (None, 2):
        written = json_text({"reason": text}, indent)
        assert json.loads(written.encode()) == {"reason": text}
        assert not set(written) & set("\x1b\x9b\u202e")
