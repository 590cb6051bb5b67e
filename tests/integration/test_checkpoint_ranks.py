"""Tests that an error on one rank is raised on all ranks at the same call, without a deadlock."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[str, int | None]]:
    """Return the error message and the outcome file's code by case and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
    command = [sys.executable, "-m", "cloudgpu.tests.standins.disagreeing", str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    lines = [(rank, json.loads(line)) for rank in (0, 1) for line in (folder / f"said-{rank}").read_text().splitlines()]
    return {(case, rank): (raised, code) for rank, (case, raised, code) in lines}


@pytest.mark.parametrize(
    ("case", "first", "second", "code"),
    [
        ("option", "rank 1: every=0", "every=0", 70),
        ("load", "rank 1: /", "/", 70),
        # An error of the program itself: no code is recorded, the launcher decides about retries.
        ("state_dict", "rank 1: ArithmeticError: cannot say", "cannot say", None),
        ("flatten", "rank 1: objects/odd/value is a builtins.object", "objects/odd/value is a builtins.object", 70),
        ("wait", "the ranks are at different places in the program (this is rank 0)", "the ranks are at different", 70),
        ("steps", "the ranks are at different", "the ranks are at different", 70),
    ],
)
def test_one_rank_differs(
    case: str, first: str, second: str, code: int | None, said: dict[tuple[str, int], tuple[str, int | None]]
) -> None:
    raised = [said[case, rank][0].partition(": ")[2] for rank in (0, 1)]
    assert raised[0].startswith(first), raised
    assert raised[1].startswith(second), raised
    assert [said[case, rank][1] for rank in (0, 1)] == [code, code]
    if case == "load":
        assert "does not fit this program: 'value'" in raised[0]


def test_one_rank_dies(said: dict[tuple[str, int], tuple[str, int | None]]) -> None:
    assert ("dies", 1) not in said
    raised, code = said["dies", 0]
    assert raised.startswith("TransientError: another rank has ended, or cannot be reached")
    assert code is None, "running it again may help"
