"""Processes of one node: starting, reading output by line, signalling, reaping, and killing until none is left."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure_causes import Cause
from .lines import OnLine, OutputStream

MARKER = "CLOUDGPU_MACHINE"
"""Environment variable that marks all processes of a machine, so that they are found when they must be killed."""

ORPHAN_GUARD = str(Path(__file__).with_name("orphan_guard.py"))
"""Path of the script that runs as the parent of each process that must not outlive the agent."""

_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 64 << 10
_LINE_BYTES = 64 << 10  # longer lines are split
_UNFINISHED_S = 1.0  # timeout after which an incomplete line (a prompt) is emitted
_REDRAW_S = 5.0  # interval at which a line redrawn by \r (a progress bar) is emitted


@dataclass(frozen=True, slots=True)
class Process:
    """A process to start. `rank` is None for the setup."""

    rank: int | None
    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that has ended. `code` is negative if a signal killed it."""

    rank: int | None
    code: int
    cause: Cause | None = None
    """Cause of the failure; None: unknown, or no failure."""

    def describe(self) -> str:
        """Return a description like "rank 1: exit code 3" or "SIGKILL"."""
        try:
            how = f"exit code {self.code}" if self.code >= 0 else signal.Signals(-self.code).name
        except ValueError:  # a real-time signal
            how = f"signal {-self.code}"
        return how if self.rank is None else f"rank {self.rank}: {how}"


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans (a child subreaper); a no-op outside of Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


class Program:
    """Processes of one node's program, one per rank, each in a separate process group.

    Only the main thread may start them, because the kernel treats the death of the forking thread as the parent's
    death. No other code may wait for children, because reap() waits for any child, including adopted ones.
    """

    def __init__(self, folder: Path, on_line: OnLine) -> None:
        self._folder = folder
        self._running: dict[int, Process] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        """Exit codes of programs whose shells were killed, by PID of the shell's orphan guard."""
        self._output = _Output(on_line)

    @property
    def running(self) -> bool:
        return bool(self._running)

    def start(self, process: Process) -> None:
        """Start a process in a new session and group, in the program's folder. Raises OSError."""
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", ORPHAN_GUARD, str(os.getpid()), *process.command],
            cwd=self._folder,
            env=dict(process.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._children[child.pid] = child
        self._running[child.pid] = process
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert pipe is not None  # noqa: S101 - PIPE was asked for
            self._output.add(name, process.rank, pipe.fileno())  # type: ignore[arg-type]

    def reap(self) -> list[Exit]:
        """Reap all ended children, including adopted ones; return the exits of the program's processes."""
        exits = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            process = self._running.pop(pid, None)
            if process is not None:
                exits.append(Exit(process.rank, self._codes.get(pid, os.waitstatus_to_exitcode(status))))
                self._children[pid].returncode = exits[-1].code  # otherwise Popen would wait for it again
        return exits

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group of every process that still runs."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def end_group(self, rank: int | None, code: int) -> None:
        """Kill the group of a process whose program has ended; `code` is the program's exit code."""
        for pid, process in self._running.items():
            if process.rank == rank and pid not in self._codes:
                self._codes[pid] = code
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def kill(self, marker: str, spared: int | None = None, limit_s: float = 10.0) -> list[Exit]:
        """Kill all processes and their descendants, in any session; return the exits of the program's processes.

        Returns when none is left, or after `limit_s` seconds. `spared`: PID of a child of this process that is not
        killed, nor are its children.
        """
        end = time.monotonic() + limit_s
        self.signal(signal.SIGKILL)
        exits = self.reap()
        while (left := _leftovers(marker, spared)) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            exits += self.reap()
        return exits + self.reap()  # zombies at the last check

    def finish_output(self, limit_s: float) -> None:
        """Wait until all output is read; must be called after all processes have ended."""
        self._output.finish(limit_s)
        for child in self._children.values():
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


def kill_leftovers(marker: str) -> None:
    """Kill all processes of this machine that have the marker or are children of this process."""
    Program(Path(), lambda *_line: None).kill(marker)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _leftovers(marker: str, spared: int | None) -> list[int]:
    """Return the PIDs of children, adopted ones included, and of processes with the marker, except zombies."""
    me, found = os.getpid(), []
    wanted = f"{MARKER}={marker}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or (pid := int(entry.name)) == me:
            continue
        try:
            state, parent = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state == b"Z" or spared in (pid, int(parent)):
                continue
            if int(parent) == me or wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


class _Output:
    """Thread that reads the output pipes of all processes; a single thread keeps the order of lines."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()  # a selector must not be changed during iteration over its map
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def add(self, stream: OutputStream, rank: int | None, fd: int) -> None:
        def emit(text: str, partial: bool) -> None:
            self._on_line(stream, rank, text, partial)

        os.set_blocking(fd, False)
        with self._lock:
            self._selector.register(fd, selectors.EVENT_READ, LineSplitter(emit))
        if not self._thread.is_alive():
            self._thread.start()

    def finish(self, limit_s: float) -> None:
        self._finishing.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                splitters = {key.fd: key.data for key in self._selector.get_map().values()}
            if not splitters and self._finishing.is_set():
                return
            if not splitters:
                self._finishing.wait(0.1)
                continue
            for key, _ in self._selector.select(0.2):
                self._read(key.fd, key.data)
            now = time.monotonic()
            for splitter in splitters.values():
                splitter.tick(now)

    def _read(self, fd: int, splitter: LineSplitter) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            splitter.feed(data, time.monotonic())
            return
        with self._lock:
            self._selector.unregister(fd)
        splitter.finish()


class LineSplitter:
    """Splitter of bytes into lines. A line redrawn by `\\r` is emitted every _REDRAW_S seconds, in its last state."""

    def __init__(self, emit: Callable[[str, bool], None]) -> None:
        self._emit = emit
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = b""
        self._since = 0.0
        self._redrawn = False

    def feed(self, data: bytes, now: float) -> None:
        if not self._rest:
            self._since = now
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
            self._since, self._redrawn = now, False
        cut = rest.rfind(b"\r", 0, -1) + 1  # the last one may be part of \r\n
        if cut:
            rest, self._redrawn = rest[cut:], True
        while len(rest) > _LINE_BYTES:
            self._emit(self._decode(rest[:_LINE_BYTES]), True)
            rest = rest[_LINE_BYTES:]
        self._rest = rest

    def tick(self, now: float) -> None:
        """Emit an incomplete line after its timeout."""
        if not self._rest or now - self._since < (_REDRAW_S if self._redrawn else _UNFINISHED_S):
            return
        if self._redrawn:
            self._line(self._rest)
        else:
            self._emit(self._decode(self._rest), True)
        self._rest, self._since = b"", now

    def finish(self) -> None:
        """Emit the rest as a line, at the end of the output."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        if self._redrawn and not line:  # its last state has been emitted already
            return
        while len(line) > _LINE_BYTES:
            self._emit(self._decode(line[:_LINE_BYTES]), True)
            line = line[_LINE_BYTES:]
        self._emit(self._decode(line, True), False)
