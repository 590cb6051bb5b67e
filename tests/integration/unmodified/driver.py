"""Kill unmodified programs under `run` at random moments, resume them, and compare what they deliver.

    python -m cloudgpu.tests.integration.unmodified.driver [--seeds 2] [--python PYTHON] [--real] [PROGRAM …]

Each program is run once by Python alone and then, for each seed, under `run` with two or three kills; every file that
it leaves and the last lines of its standard output must be the same. PYTHON: the interpreter whose cloudgpu is tried.
Programs are forks of an interpreter that has imported torch; with --real each is a process from the start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cloudgpu.tests.standins.zygote import Zygote

from .delivered import differences, last_lines

PROGRAMS = Path(__file__).with_name("programs")
START = Path(__file__).with_name("start.py")
IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.optim.swa_utils",
    "torch.distributed",
    "torch.utils.data",
    "numpy",
    "safetensors.torch",
    "tqdm",
)
"""Modules that take long to import: torch._dynamo comes with the first optimizer."""
HUNG_AFTER_S = 120.0
_POLL_S = 0.004
_REFUSED = 70
"""Exit code of a program that `run` does not begin, or does not go on with."""
_NOTHING_SAVED = "nothing is saved"

Outcome = Literal["identical", "refused", "differs", "failed at resume", "failed", "hang", "not killed"]


class Process(Protocol):
    """Interface that subprocess.Popen and Forked share."""

    pid: int

    def wait(self, timeout: float) -> int: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    program: str
    seed: int
    outcome: Outcome
    kills: int
    detail: str
    """Differences, or the reason for which it was refused."""
    warned: str
    """Objects that `run` has reported as not saved."""

    def __str__(self) -> str:
        warned = f" | said: {self.warned}" if self.warned else ""
        return f"{self.program:20} {self.seed:4} {self.outcome:17} {self.kills} {self.detail}{warned}"


class Driver:
    """A context in which programs are run. zygote: what they are forked from; None: real processes."""

    def __init__(self, python: str = sys.executable, *, zygote: Zygote | None = None) -> None:
        self._python, self._zygote = python, zygote
        self._files = contextlib.ExitStack()
        self._alone: dict[str, Path] = {}

    def __enter__(self) -> Driver:
        self._folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="unmodified-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def verdict(self, program: str, seed: int, *, most_kills: int = 3) -> Verdict:
        alone = self._run_alone(program)
        work = self._prepare(program, f"{program}-{seed}")
        interrupted = _Interrupted(self, program, work, random.Random(f"{program} {seed}"), most_kills)
        outcome, detail = interrupted.run(alone)
        return Verdict(program, seed, outcome, interrupted.kills, detail, interrupted.warned())

    def _run_alone(self, program: str) -> Path:
        """The folder of an undisturbed run."""
        if program not in self._alone:
            work = self._prepare(program, f"{program}-alone")
            process = self.start(work, [entry_of(program)])
            if (code := process.wait(HUNG_AFTER_S)) != 0:
                raise AssertionError(f"{program} fails by itself ({code}): {work.with_suffix('.err').read_text()}")
            self._alone[program] = work
        return self._alone[program]

    def _prepare(self, program: str, name: str) -> Path:
        work = self._folder / name
        shutil.rmtree(work, ignore_errors=True)
        for suffix in (".out", ".err"):
            work.with_suffix(suffix).unlink(missing_ok=True)
        source = PROGRAMS / program
        if source.is_dir():
            shutil.copytree(source, work)
        else:
            work.mkdir()
            shutil.copy(source.with_suffix(".py"), work)
        return work

    def start(self, work: Path, words: Sequence[str]) -> Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDGPU_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        output, errors = work.with_suffix(".out"), work.with_suffix(".err")
        if self._zygote is not None:
            return self._zygote.start([str(START), str(work), str(output), str(errors), *words], environment)
        with output.open("ab") as out, errors.open("ab") as err:
            return subprocess.Popen(
                [self._python, *words], cwd=work, env=environment, stdout=out, stderr=err, start_new_session=True
            )


class _Interrupted:
    """One program under `run`, killed and started again until it ends."""

    def __init__(self, driver: Driver, program: str, work: Path, chance: random.Random, most_kills: int) -> None:
        self._driver, self._work, self._chance = driver, work, chance
        self._every, self._planned = chance.randint(1, 7), chance.randint(min(2, most_kills), most_kills)
        options = ["--every", str(self._every), "--folder", "checkpoints"]
        self._words = ["-m", "cloudgpu.runtime", "run", *options, "--", entry_of(program)]
        self.kills = 0

    def run(self, alone: Path) -> tuple[Outcome, str]:
        while True:
            process = self._driver.start(self._work, self._words)
            try:
                code = self._wait_or_kill(process) if self.kills < self._planned else process.wait(HUNG_AFTER_S)
            except subprocess.TimeoutExpired:
                return "hang", f"no end within {HUNG_AFTER_S:.0f} s"
            finally:
                _kill_group(process.pid, signal.SIGKILL)
            if code == _REFUSED:
                return "refused" if self._newest() is None else "failed at resume", self._reason()
            if code == 0:
                return self._compare(alone)
            if code not in (-signal.SIGKILL, -signal.SIGTERM, 75):
                return "failed", f"exit code {code}: {self._reason()}"

    def _wait_or_kill(self, process: Process) -> int:
        """Kill it at a random moment after some saves of this process. Return its exit code."""
        saves, begun, newest = self._chance.randint(1, 5), time.monotonic(), self._newest()
        while saves:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            if time.monotonic() - begun > HUNG_AFTER_S:
                raise subprocess.TimeoutExpired("run", HUNG_AFTER_S)
            if (now := self._newest()) != newest:
                newest, saves = now, saves - 1
        time.sleep(self._chance.uniform(0, 0.03))
        how = self._chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        if _kill_group(process.pid, how):
            self.kills += 1
        return process.wait(HUNG_AFTER_S)

    def _newest(self) -> str | None:
        """The folder of the newest checkpoint."""
        names: list[Path] = []
        with contextlib.suppress(FileNotFoundError):
            names = sorted((self._work / "checkpoints").iterdir(), reverse=True)
        return next((path.name for path in names if (path / "COMMIT.json").exists()), None)

    def _compare(self, alone: Path) -> tuple[Outcome, str]:
        found = differences(alone, self._work)
        expected, got = (last_lines(one.with_suffix(".out")) for one in (alone, self._work))
        if expected != got:
            found.append(f"stdout: {got[-1:]} instead of {expected[-1:]}")
        if found:
            return "differs", "; ".join(found)
        if _NOTHING_SAVED in self._errors():
            return "refused", self._reason()
        return ("identical", "") if self.kills else ("not killed", "it ended before the first kill")

    def _errors(self) -> str:
        return self._work.with_suffix(".err").read_text(errors="replace")

    def _reason(self) -> str:
        """Return the newest line of cloudgpu that names the cause, else the last line."""
        lines = [line for line in self._errors().splitlines() if line.strip()]
        reasons = [line for line in lines if "cloudgpu" in line and ("saved" in line or "cloudgpu:" in line)]
        return (reasons or lines or [""])[-1][:400]

    def warned(self) -> str:
        lines = dict.fromkeys(line for line in self._errors().splitlines() if "NOT saved" in line)
        return " ".join(lines)[:300]


def entry_of(program: str) -> str:
    return "train.py" if (PROGRAMS / program).is_dir() else f"{program}.py"


def programs() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.iterdir() if not path.name.startswith((".", "__")))


def _kill_group(leader: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
        return True
    return False


@contextlib.contextmanager
def forking(python: str = sys.executable) -> Iterator[Driver]:
    """A driver whose programs are forks."""
    zygote = Zygote(*IMPORTED, python=python)
    try:
        with Driver(python, zygote=zygote) as driver:
            yield driver
    finally:
        zygote.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("programs", nargs="*", default=programs())
    given: Any = parser.parse_args()
    counts: dict[str, int] = {}
    with Driver(given.python) if given.real else forking(given.python) as driver:
        for program in given.programs:
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                verdict = driver.verdict(program, seed)
                counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
                print(verdict, flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())))
    return 0 if counts.keys() <= {"identical", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
