"""Follow a job until it ends: its log on stdout, its events on stderr. Shared by `submit` and `logs`."""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from ....storage.urls import local_folder
from ..control_sequences import ControlSequenceFilter
from ..output import ProgressLine, clean, is_terminal, style
from ..text import ago, clock

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from ....control.store.model import Event
    from ....jobspecs.plan import Offer
    from ....protocol.logs.format import LogLine
    from ....protocol.logs.reader import Cursor, LogReader

_POLL_LOCAL_S = 0.1
_POLL_REMOTE_S = 1.0  # a listing of an object store costs money and tens of milliseconds
_WATCH_S = 3.0  # seconds between two checks that a supervisor runs
_QUIET_EVENTS = frozenset({"submitted", "launched", "ended"})  # the log's reader sees these anyway
_NODE_END = re.compile(r"(failed|preempted|again|stopped|error): |.* again in place .*\(generation \d+\)$")
"""Matches the agent's lines on the end or restart of its program: runtime/agent/agent.py,
runtime/agent/node/program.py."""
_READ_LINES = 50_000
_WRITE_LINES = 500  # maximum lines to print between two checks for Ctrl-C
_NAP_S = 0.05  # maximum seconds until Ctrl-C is noticed


class Followed(Protocol):
    """Job whose log is printed: from the store (control.jobs.Job), or known by its folder only (JobAtUrl)."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def created(self) -> float: ...
    @property
    def job_dir(self) -> str: ...
    @property
    def offer(self) -> Offer: ...
    def refresh(self) -> Followed: ...
    def logs(self) -> LogReader: ...
    def mark_watched(self) -> None: ...
    def events(self, after: int = 0) -> Sequence[Event]: ...


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Selection of log lines; None selects all."""

    attempt: int | None = None
    node: str | None = None
    since: float | None = None
    """Time in epoch seconds; earlier lines are left out."""


class LineFormat:
    """Formatter of log lines; prefixes them with machine and rank if the job has several."""

    def __init__(self, job: Followed, *, timestamps: bool = False) -> None:
        roles = job.offer.roles
        self._timestamps = timestamps
        self._nodes = sum(role.nodes for role in roles) > 1
        self._ranks = any(role.count > 1 for role in roles)
        self._width = 0
        self._open: tuple[object, ...] | None = None
        colours = is_terminal()
        self._filters: defaultdict[object, ControlSequenceFilter] = defaultdict(
            lambda: ControlSequenceFilter(colours=colours)
        )

    def __call__(self, line: LogLine) -> str:
        """Return the text to print next. A partial line (a prompt, a very long line) ends when another source writes.

        Sequences that move the cursor or clear the screen are removed, as several programs share the screen.
        """
        source = (line.attempt, line.node, line.rank, line.stream)
        text = self._filters[source](line.text, partial=line.partial)
        text = style(text, "faint") if line.stream == "agent" else text
        start = "" if self._open == source else self.close() + self._prefix(line)
        self._open = source if line.partial else None
        return f"{start}{text}" if line.partial else f"{start}{text}\n"

    def close(self) -> str:
        """Return the newline that ends an open partial line, or ""."""
        was_open, self._open = self._open is not None, None
        return "\n" if was_open else ""

    def _prefix(self, line: LogLine) -> str:
        stamp = f"{style(clock(line.time), 'faint')} " if self._timestamps else ""
        parts = [clean(line.node.rpartition(".")[0])] if self._nodes else []
        if self._ranks and line.rank is not None:
            parts.append(f"rank {line.rank}")
        if not parts:
            return stamp
        label = " ".join(parts)
        self._width = max(self._width, len(label))
        return stamp + style(f"{label:{self._width}} | ", "note")


class Interrupts:
    """Ctrl-C as a flag that is checked between two steps, so that no output is cut (context manager).

    A second Ctrl-C before the flag is checked raises KeyboardInterrupt, to escape from a job dir that does not respond.
    """

    def __init__(self) -> None:
        self.pending = False
        self._before: object = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # the value that signal() returned

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def take(self) -> bool:
        """Return whether Ctrl-C was pressed since the last call."""
        pending, self.pending = self.pending, False
        return pending


class Follower:
    """Printer of new log lines of a job and, optionally, its events."""

    def __init__(
        self,
        job: Followed,
        form: LineFormat,
        chosen: LogFilter,
        *,
        events: bool = False,
        after_event: int = 0,
        tail: int | None = None,
        keep_alive: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a follower.

        after_event  sequence number of the last event that is not printed
        tail         number of lines from the end to begin with; None: begin with the first line
        keep_alive   called every few seconds; see job_argument.watch()
        """
        self.job = job
        self._keep_alive_by = keep_alive
        self._form = form
        self._chosen = chosen
        self._reader = job.logs()
        self._cursor: Cursor | None = None
        self._tail = tail
        self._lines: deque[LogLine] = deque()
        self._unread = False
        self._event = after_event if events else None
        self._heard: set[int | None] = set()
        """Attempts with printed lines; their "running" event is not printed."""
        self.said_reason = ""
        """Reason of the newest attempt's end, once it has been printed."""
        nodes = sum(role.nodes for role in job.offer.roles)
        self._is_end_repeated = events and nodes == 1
        """True if the agent's line on its program's end would repeat the event that follows it."""
        self._poll = _POLL_REMOTE_S if local_folder(job.job_dir) is None else _POLL_LOCAL_S
        self._looked = -_WATCH_S
        self._progress = ProgressLine()

    def print_all(self) -> None:
        """Print all log lines that exist now."""
        while self._read():
            self._print_lines(None)
        click.echo(self._form.close(), nl=False)

    def follow(self, interrupts: Interrupts) -> bool:
        """Print until the job has ended and all is printed (returns True), or Ctrl-C is pressed (returns False).

        Raises JobDirError if the rest of an ended job's log cannot be read.
        """
        with self._progress:
            while not interrupts.take():
                ended = self.job.refresh().done  # before reading, so that no last lines are missed
                self._print_events()
                more = self._read() if ended else self._read_if_it_can_be()
                self._print_lines(interrupts)
                if ended and not more:
                    click.echo(self._form.close(), nl=False)
                    return True
                self._keep_alive()
                if not more and not ended:
                    self._wait(interrupts)
        return False

    def _read(self) -> bool:
        """Read more lines unless some are buffered; return whether any are buffered."""
        chosen = self._chosen
        if self._tail is not None:
            lines, self._cursor = self._reader.tail(
                self._tail, attempt=chosen.attempt, node=chosen.node, since=chosen.since
            )
            self._lines.extend(lines)
            self._tail = None
        if not self._lines:
            lines, self._cursor = self._reader.read(
                self._cursor, attempt=chosen.attempt, node=chosen.node, since=chosen.since, limit=_READ_LINES
            )
            self._lines.extend(lines)
        return bool(self._lines)

    def _read_if_it_can_be(self) -> bool:
        """Read more lines of a running job. If the job dir does not respond, report it once and return False."""
        from ....protocol.jobdir import JobDirError

        try:
            more, self._unread = self._read(), False
        except JobDirError as error:
            if not self._unread:
                self._say(f"the log cannot be read for now: {error}")
            more, self._unread = False, True
        return more

    def _print_lines(self, interrupts: Interrupts | None) -> None:
        """Print the buffered lines; after Ctrl-C the rest stays buffered."""
        while self._lines and not (interrupts is not None and interrupts.pending):
            self._progress.clear()
            batch = [self._lines.popleft() for _ in range(min(_WRITE_LINES, len(self._lines)))]
            self._heard.update(line.attempt for line in batch)
            click.echo("".join(self._form(line) for line in batch if not self._is_repeated(line)), nl=False)

    def _is_repeated(self, line: LogLine) -> bool:
        return self._is_end_repeated and line.stream == "agent" and _NODE_END.match(line.text) is not None

    def _print_events(self) -> None:
        if self._event is None:
            return
        for event in self.job.events(after=self._event):
            self._event = event.seq
            is_summary = self.job.done and event.kind == "state" and event.message.startswith(self.job.state)
            is_known = event.kind == "state" and event.message == "running" and event.attempt in self._heard
            if is_summary or is_known or event.kind in _QUIET_EVENTS:  # the summary at the end repeats it
                continue
            text = event.message
            if event.kind == "outcome":
                self.said_reason = text.partition(": ")[2]
            elif self.said_reason:
                text = text.removesuffix(f" after: {self.said_reason}").removesuffix(f": {self.said_reason}")
            self._say(text)

    def _say(self, text: str) -> None:
        self._progress.clear()
        click.echo(self._form.close(), nl=False)
        click.echo(f"{style('cloudgpu', 'note', err=True)}: {clean(text)}", err=True)

    def _wait(self, interrupts: Interrupts) -> None:
        """Sleep until the next poll, or until Ctrl-C is pressed."""
        if self.job.state != "running":
            self._progress(f"{self.job.id} {self.job.state}, submitted {ago(self.job.created)}")
        until = time.monotonic() + self._poll
        while not interrupts.pending and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))

    def _keep_alive(self) -> None:
        if time.monotonic() - self._looked > _WATCH_S:
            self._keep_alive_by()
            self.job.mark_watched()
            self._looked = time.monotonic()
