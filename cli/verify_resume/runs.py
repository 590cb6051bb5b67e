"""Run the program for `cloudgpu verify-resume`, each run in a separate process and folder, and judge the results."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.output import remark
from .copy import WorkingCopies

Outcome = Literal["agree", "not-all-saved", "differ", "not-deterministic", "nothing-saved", "program-failed", "timeout"]
_EXITS: dict[Outcome, str] = {
    "agree": "OK",
    "not-all-saved": "INCOMPLETE",
    "differ": "FAILED",
    "not-deterministic": "IMPOSSIBLE",
    "nothing-saved": "IMPOSSIBLE",
    "program-failed": "IMPOSSIBLE",
    "timeout": "STOPPED",
}
_MARK = "CLOUDGPU_VERIFICATION"
_INTERRUPTED = 75
_TAIL = 20
"""Number of a program's last output lines shown if it fails."""
_NAMED = 6
"""Maximum number of files and variables named in the verdict's sentence."""


@dataclass(slots=True)
class Verdict:
    """Result of a verification."""

    outcome: Outcome
    text: str
    """One sentence."""
    comparison: dict[str, Any] | None = None
    """Output of `runtime compare`."""
    ended_at: list[int] = field(default_factory=list)
    """Steps at which the program was ended."""
    tail: str = ""
    """Last output lines of a program that failed."""

    @property
    def exit(self) -> str:
        """Name of the command's exit code, a member of Exit."""
        return _EXITS[self.outcome]


class _Stop(Exception):  # noqa: N818 - not an error
    """Early end of a verification, with its verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


class Verification:
    """Verification of a program (context manager); on exit its processes are killed and its folder is removed."""

    def __init__(self, program: Sequence[str], timeout: float) -> None:
        self._python, self._program = _interpreter(program)
        self._deadline = time.monotonic() + timeout
        self._mark = uuid.uuid4().hex

    def __enter__(self) -> Verification:
        self._folder = Path(tempfile.mkdtemp(prefix="cloudgpu-verify-"))
        self._copies = WorkingCopies(Path.cwd(), self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _kill_marked(self._mark)
        shutil.rmtree(self._folder, ignore_errors=True)

    def verify(self, step: int | None, how: str, runs: int) -> Verdict:
        """Run the verification. `step`: the step at which to end the program; None: a random one per run."""
        try:
            return self._verify(step, how, runs)
        except _Stop as stop:
            return stop.verdict

    def _verify(self, step: int | None, how: str, runs: int) -> Verdict:
        first = self._undisturbed("first")
        second = self._undisturbed("second")
        steps = self._check_deterministic(first, second)
        if step is not None and not 0 < step < steps:
            raise CommandError(
                f"--at {step}: the program makes {steps} steps; give one from 1 to {steps - 1}", exit_code=Exit.USAGE
            )
        ended: list[int] = []
        found = Verdict("agree", "")
        for number in range(runs):
            at = step if step is not None else random.SystemRandom().randrange(1, steps)
            ended.append(at)
            remark(f"run {number + 3}: to be ended at step {at} of {steps} ({how}) and resumed")
            comparison = self._compare(first, self._disturbed(f"disturbed-{number}", at, how), second)
            if not comparison["agree"]:
                return Verdict("differ", comparison["problem"] or _where(comparison), comparison, ended)
            if found.outcome == "agree":
                found = _judge(comparison)
        found.ended_at = ended
        return found

    def _undisturbed(self, name: str) -> Path:
        remark(f"run {1 if name == 'first' else 2}: undisturbed")
        folder = self._make(name)
        self._expect(folder, {"folder": str(folder)}, {0})
        if not (folder / "trace.jsonl").exists() or not (folder / "checkpoints").exists():
            raise _Stop(Verdict("nothing-saved", _why_nothing(folder)))
        return folder

    def _check_deterministic(self, first: Path, second: Path) -> int:
        """Compare two undisturbed runs and return the number of steps. Raises _Stop if they differ."""
        comparison = self._compare(first, second)
        steps = int(comparison["steps"])
        if comparison["problem"]:
            raise _Stop(Verdict("nothing-saved", comparison["problem"], comparison))
        if not comparison["agree"]:
            text = f"not deterministic by itself: two undisturbed runs differ. {_where(comparison)}"
            raise _Stop(Verdict("not-deterministic", text, comparison))
        if steps < 2:
            raise _Stop(Verdict("nothing-saved", f"only {steps + 1} steps are made: there is no step to end it at"))
        return steps

    def _disturbed(self, name: str, at: int, how: str) -> Path:
        folder = self._make(name)
        plan = {"folder": str(folder), "save_at": max(0, at - 2), "end_at": at, "how": how}
        self._expect(folder, plan, {-signal.SIGKILL} if how == "kill" else {_INTERRUPTED})
        (folder / "notice.json").unlink(missing_ok=True)
        self._expect(folder, {"folder": str(folder)}, {0})
        return folder

    def _make(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        (folder / "cwd").symlink_to(self._copies.make(folder / "root"))
        return folder

    def _expect(self, folder: Path, plan: dict[str, object], codes: set[int]) -> None:
        """Run the program once. Raises _Stop unless it exits with one of the codes."""
        path = folder / "plan.json"
        path.write_text(json.dumps(plan))
        log = folder / "output"
        code = self._call(["drill", str(path), "--", *self._program], log, cwd=(folder / "cwd").resolve())
        if code not in codes:
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
            raise _Stop(Verdict("program-failed", f"the program failed by itself: {ending}", tail=tail))

    def _compare(self, *runs: Path) -> dict[str, Any]:
        """Return the output of `runtime compare` for an undisturbed run, the run to judge and, optionally, a second
        undisturbed run. Files and variables that differ between the undisturbed runs are left out."""
        b = runs[1]
        out = b / "comparison"
        code = self._call(["compare", *map(str, runs)], out, errors=b / "comparison-errors", cwd=Path.cwd())
        if code not in (0, 1):
            raise CommandError((b / "comparison-errors").read_text()[-2000:], exit_code=Exit.UNAVAILABLE)
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    def _call(self, words: Sequence[str], output: Path, errors: Path | None = None, *, cwd: Path) -> int:
        left = self._deadline - time.monotonic()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
        environment |= {_MARK: self._mark, "CLOUDGPU_CHECKPOINTS": str(output.parent / "checkpoints"), "PWD": str(cwd)}
        with contextlib.ExitStack() as files:
            out = files.enter_context(output.open("wb"))
            err = files.enter_context(errors.open("wb")) if errors else subprocess.STDOUT
            try:
                done = subprocess.run(
                    [self._python, "-m", f"{__package__.partition('.')[0]}.runtime", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env=environment,
                    timeout=max(0.1, left),
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise _Stop(Verdict("timeout", "out of time: see --timeout, or make the program shorter")) from None
        return done.returncode


def _interpreter(program: Sequence[str]) -> tuple[str, list[str]]:
    """Return the interpreter and its arguments: the Python that the command names, else the current one."""
    name = Path(program[0]).name
    if name.startswith("python") and not Path(name).suffix.endswith("py") and len(program) > 1:
        found = shutil.which(program[0])
        if found is None:
            raise CommandError(f"{program[0]} is not on the PATH", exit_code=Exit.USAGE)
        return os.path.abspath(found), list(program[1:])  # noqa: PTH100 - keeps a venv's symbolic link
    return sys.executable, list(program)


def _why_nothing(folder: Path) -> str:
    try:
        reason = json.loads((folder / "report.json").read_text())["reason"]
    except (OSError, ValueError, KeyError):
        reason = "it makes no Checkpointer, and its training loop was not found"
    return f"the program saves nothing: {reason}"


def _judge(comparison: dict[str, Any]) -> Verdict:
    """Return the verdict on a run whose final checkpoint and metrics agree with the undisturbed run's."""
    steps, files = comparison["steps"], comparison["files"]
    same = f"{comparison['compared']} tensors and values, after {steps} steps"
    if not files and not comparison["held"]:
        also = f", and {comparison['files_compared']} files" if comparison["files_compared"] else ""
        return Verdict("agree", f"bit for bit the same: {same}{also}", comparison)
    names = [*(f"file {one['name']}" for one in files), *comparison["held"]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = f"What is saved is the same, bit for bit ({same}), but not: {', '.join(names[:_NAMED])}{more}."
    return Verdict("not-all-saved", text, comparison)


def _where(comparison: dict[str, Any]) -> str:
    if comparison["first_step"] is not None:
        return f"They part after {comparison['first_step']} steps, in {comparison['first_keys'][0]}."
    if comparison["final"]:
        return f"They part at the end, in {comparison['final'][0]['key']}."
    return f"Their metrics differ: {comparison['metrics'][0]}."


def _kill_marked(mark: str) -> None:
    """Kill the program's remaining processes, such as loader workers."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                process.kill()
