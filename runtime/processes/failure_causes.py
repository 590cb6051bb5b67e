"""Find the cause of a process's failure: from its signal, its last line of stderr and the kernel's OOM kill count."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .lines import OnLine, OutputStream

_LINE_CHARACTERS = 500
"""Maximum number of characters kept of a line of stderr."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure."""

    says: str
    """Explanation for the user, with the evidence."""
    final: bool = False
    """True if a retry of the same code cannot succeed, so that none is made even if the job's `retry` allows it."""


class _Message(NamedTuple):
    """A row of MESSAGES: the meaning of a message in the last line of stderr."""

    codes: frozenset[int] | None
    """Exit codes for which the row applies; None: any but 0."""
    pattern: re.Pattern[str]
    says: str
    final: bool


def _message(codes: Sequence[int], pattern: str, says: str, *, final: bool = False) -> _Message:
    return _Message(frozenset(codes) or None, re.compile(pattern), says, final)


MESSAGES = (
    _message(
        [1],
        r"(ModuleNotFoundError|ImportError): |\S*python[\d.]*: No module named ",
        "a package cannot be imported: install it in `setup` or the image",
        final=True,
    ),
    _message(
        [2],
        r"\S+: can't open file .*\[Errno 2\]",
        "the program's file is not in the code that was shipped: see `run`, `code` and .gitignore",
        final=True,
    ),
    _message([1], r"(SyntaxError|IndentationError|TabError): ", "the program is no valid Python", final=True),
    _message([127], r".*(not found|No such file or directory)", "a command of `run` does not exist", final=True),
    _message([126], r".*", "a command of `run` cannot be executed", final=True),
    _message([], r"(torch\.(cuda\.)?)?OutOfMemoryError: |RuntimeError: CUDA out of memory", "out of GPU memory"),
    _message([], r"(numpy\S*\.)?_?(Array)?MemoryError\b", "out of memory"),
    _message([], r"OSError: \[Errno 28\]", "the disk is full"),
    _message([], r"FileNotFoundError: ", "a file is missing: what .gitignore or .cloudgpuignore names is not shipped"),
)
"""The first row that matches applies. Source: messages of CPython 3.10 to 3.14, dash, bash, PyTorch 2 and NumPy 2."""

SIGNALS: Mapping[int, str] = {
    signal.SIGSEGV: "segmentation fault: native code (an extension, a driver) used memory that is not its own; with "
    '`env: {PYTHONFAULTHANDLER: "1"}` the log shows where',
    signal.SIGBUS: "bus error: often a full /dev/shm, or a mapped file that was cut",
    signal.SIGABRT: "aborted by native code: its last lines in the log say why",
    signal.SIGILL: "illegal instruction: a package was built for another processor",
    signal.SIGFPE: "arithmetic error in native code, such as a division by zero",
    signal.SIGKILL: "killed from outside of cloudgpu",
}


def find_cause(code: int, last_line: str, memory: OutOfMemory | None) -> Cause | None:
    """Return the cause of a process's failure; None if it is unknown.

    code: exit code; negative for a signal
    last_line: last line of its stderr, "" if there is none
    memory: out-of-memory kills while it ran; None: there were none
    """
    number = -code if code < 0 else code - 128  # a shell's exit code for a command ended by a signal
    if number == signal.SIGKILL and memory is not None:
        return Cause(f"out of memory: the kernel killed it ({memory})")
    if number in SIGNALS:
        return Cause(SIGNALS[number])
    for row in MESSAGES:
        if (row.codes is None or code in row.codes) and row.pattern.match(last_line):
            return Cause(f"{row.says} ({last_line})", row.final)
    if memory is not None and memory.is_own:  # such as a worker of its DataLoader
        return Cause(f"the kernel killed a process of its control group for lack of memory ({memory})")
    return None


# --- output -----------------------------------------------------------------------------------------------------------


class LastLines:
    """Line handler that keeps the last line of each process's stderr and forwards every line.

    `mask` removes the values of secrets from a line before it is cut.
    """

    def __init__(self, pass_on: OnLine, mask: Callable[[str], str]) -> None:
        self._pass_on, self._mask = pass_on, mask
        self._last: dict[int | None, str] = {}

    def add(self, stream: OutputStream, rank: int | None, text: str, partial: bool) -> None:
        """Handle a line. Called by the thread that reads the output."""
        if stream == "stderr" and text.strip():
            self._last[rank] = self._mask(text)[:_LINE_CHARACTERS].rstrip()
        self._pass_on(stream, rank, text, partial)

    def of(self, rank: int | None) -> str:
        """Return the last line of a process's stderr, "" if there is none."""
        return self._last.get(rank, "")


# --- out-of-memory kills ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Out-of-memory kills that the kernel has counted."""

    kills: int
    counter: str
    """Path of the kernel's file with the count."""
    is_own: bool
    """True if the counter is that of this process's control group, not of the whole machine."""
    limit_bytes: int | None
    """The memory limit of the control group; None: it has none, or the counter is the whole machine's."""

    def __str__(self) -> str:
        """Return the evidence in words."""
        limit = "" if self.limit_bytes is None else f", limit {self.limit_bytes / 1e9:,.2f} GB"
        return f"oom_kill in {self.counter} rose by {self.kills}{limit}"


class OutOfMemoryCounter:
    """Counter of the kernel's out-of-memory kills since its construction.

    Sources: cgroup-v2.rst (memory.events), cgroup-v1/memory.rst (memory.oom_control), mm/oom_kill.c (/proc/vmstat).
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._counters = _counters(root)
        self._before = {path: _read_count(path) for path, _ in self._counters}

    def kills(self) -> OutOfMemory | None:
        """Return the kills since this object was created; None if there were none.

        The count is that of the first counter that has risen; this process's control group is checked first.
        """
        for path, limit in self._counters:
            before, now = self._before[path], _read_count(path)
            if before is not None and now is not None and now > before:
                return OutOfMemory(
                    now - before, str(path), limit is not None, None if limit is None else _read_limit(limit)
                )
        return None


def _counters(root: Path) -> list[tuple[Path, Path | None]]:
    """Return the files that count kills, each with its memory limit's file; this process's control group is first."""
    found: list[tuple[Path, Path | None]] = []
    cgroups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.strip("/")
            if controllers == "":
                places = (cgroups / inside, cgroups / "unified" / inside)
                found += [(at / "memory.events", at / "memory.max") for at in places]
            elif "memory" in controllers.split(","):
                at = cgroups / "memory" / inside
                found.append((at / "memory.oom_control", at / "memory.limit_in_bytes"))
    return [*found, (root / "proc/vmstat", None)]


_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def _read_count(path: Path) -> int | None:
    try:
        found = _COUNT.search(path.read_text())
    except OSError:
        return None
    return None if found is None else int(found[1])


def _read_limit(path: Path) -> int | None:
    """Return a limit in bytes; None if there is none ("max", or a huge number) or it cannot be read."""
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):
        return None
    return limit if limit < 1 << 60 else None
