"""Connections of a trainer to checkpoint writers: the node's writer, or one that the trainer starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from .protocol import Message, connect, listen_at_one_of, receive, send
from .slots import anonymous_file

ADDRESS = "CLOUDGPU_WRITER"
"""Environment variable that holds the path of the node writer's socket."""
AGENT_RESTART_TIMEOUT_S = 10.0
"""Seconds that a trainer waits for the agent to restart the node's writer; after that, it starts a separate one."""
_LONGEST_PAUSE_S = 30.0
_LAST_WORDS = 2000
"""Maximum bytes of the writer's error output to report when it has died."""


class WriterLink:
    """Connection to one writer process."""

    def __init__(
        self,
        connection: socket.socket,
        process: subprocess.Popen[bytes] | None = None,
        errors: int | None = None,
        address: bytes | None = None,
    ) -> None:
        self.connection = connection
        self.process = process
        self.address = address
        """Address at which other processes can reach the writer, if this trainer has started it."""
        self._errors = errors

    @classmethod
    def to_node(cls, address: str) -> WriterLink | None:
        """Connect to the node's writer; return None if nothing listens at the address."""
        connection = connect(address)
        return cls(connection) if connection else None

    @classmethod
    def start(cls, addresses: Sequence[bytes]) -> WriterLink:
        """Start a writer process, and return before it is ready. Raises OSError if no process can be started.

        Its socket listens at the first free one of the addresses when this returns, so that a later process can connect
        even if this one dies before the writer is ready.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = anonymous_file("cloudgpu-writer-errors")
        ours.setblocking(False)
        listener = listen_at_one_of(addresses)
        address = listener.getsockname() if listener else None
        try:
            process = _start(theirs, listener, errors)
        except BaseException:
            ours.close()
            os.close(errors)
            raise
        finally:
            theirs.close()
            if listener:
                listener.close()
        return cls(ours, process, errors, address)

    def send(self, message: Message, *descriptors: int) -> None:
        """Send a message. Raises ClosedError if the writer has closed the connection."""
        send(self.connection, message, descriptors)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message with its file descriptors, None if there is none yet.

        Raises ClosedError if the writer has closed the connection.
        """
        return receive(self.connection)

    def describe_exit(self) -> str:
        """Return a message about the exit of the writer, which has closed the connection."""
        if self.process is None or self._errors is None:
            return "the node's checkpoint writer has gone"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.01)  # the kernel closes a process's files shortly before wait() reports its exit
        code = self.process.poll()
        size = os.fstat(self._errors).st_size
        words = os.pread(self._errors, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode(errors="replace").strip()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
        return f"the checkpoint writer has ended {how}{': ' if words else ''}{words}"

    def close(self) -> None:
        """Close the connection; a writer started by this trainer exits when its work is done."""
        self.connection.close()
        if self._errors is not None:
            os.close(self._errors)
            self._errors = None
        if self.process is not None:
            self.process.poll()


def _start(connection: socket.socket, listener: socket.socket | None, errors: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "cloudgpu.runtime.checkpoint.writer", "--fd", str(connection.fileno())]
    if listener:
        command += ["--listen", str(listener.fileno())]
    search_path = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100 - also for ""
    # These signals would kill the writer during its start, before it can ignore them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        return subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": search_path},  # the same imports as in this process
            cwd="/",  # the current folder may be deleted or unmounted
            stdin=subprocess.DEVNULL,
            # A reader of the trainer's output would otherwise wait for the writer to exit.
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[end.fileno() for end in (connection, listener) if end],
            start_new_session=True,  # Ctrl-C, and the hangup of a terminal, are for the trainer alone
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Links:
    """Source of writer connections, for the start and for the replacement of a writer that has died."""

    def __init__(self, own_addresses: Sequence[bytes]) -> None:
        self._own_addresses = own_addresses
        self._address = os.environ.get(ADDRESS)
        self._missing_since: float | None = None
        self._starts = 0
        """Number of writer processes started since a writer last sent a message."""
        self._not_before = 0.0

    @property
    def keeps_slots(self) -> bool:
        """True if a node writer is configured, which may hold saves that an earlier process has staged."""
        return bool(self._address)

    def next(self) -> WriterLink | None:
        """Return a connection; None: no writer at the moment, call again later.

        Raises OSError if no writer process can be started.
        """
        if not self._address:
            return self._own()
        link = WriterLink.to_node(self._address)
        if link is not None:
            self._missing_since = None
            return link
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        return self._own() if now - self._missing_since > AGENT_RESTART_TIMEOUT_S else None

    def works(self) -> None:
        """Note that the writer has sent a message."""
        self._starts = 0

    def _own(self) -> WriterLink | None:
        """Start a writer process and return a connection to it; None during the backoff after failed starts."""
        now = time.monotonic()
        if now < self._not_before:
            return None
        self._starts += 1
        self._not_before = now + (0 if self._starts == 1 else min(_LONGEST_PAUSE_S, 0.1 * 2**self._starts))
        return WriterLink.start(self._own_addresses)
