"""`cloudgpu check --json` in this process, for the tests of each cloud."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudgpu.cli import main

Results = dict[str, list[dict[str, Any]]]


class CheckCommand:
    """Runs the command and keeps its exit code, report and output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = -1
        self.report: dict[str, Any] = {}

    def __call__(self, target: str, *options: str) -> Results:
        """Check one target; return its results by subject. A traceback fails the test."""
        self.code = main(["check", target, "--timeout", "3m", "--json", *options])
        output = self._capsys.readouterr()
        assert "Traceback" not in output.err, output.err
        [self.report] = json.loads(output.out)["targets"]
        assert set(self.report) == {"target", "state", "works", "seconds", "checks"}
        found: Results = {}
        for one in self.report["checks"]:
            assert set(one) == {"subject", "status", "message", "fix", "values"}
            found.setdefault(one["subject"], []).append(one)
        return found

    def text(self, target: str, *options: str) -> str:
        """Check one target; return what a person reads."""
        self.code = main(["check", target, "--timeout", "3m", *options])
        return self._capsys.readouterr().out


def statuses(found: Results) -> dict[str, list[str]]:
    return {subject: [one["status"] for one in results] for subject, results in found.items()}
