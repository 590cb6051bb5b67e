"""The connection to a checkpoint writer: the node's, or a process of the trainer's own."""

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
"""Environment variable: path of the socket of the node's writer."""
AGENT_PATIENCE_S = 10.0
"""How long the agent may take to start its writer again; then the trainer starts one of its own."""
_LONGEST_PAUSE_S = 30.0
_LAST_WORDS = 2000
"""Bytes of the writer's error output that are told when it has died."""


class WriterLink:
    """One writer's life as its trainer sees it."""

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
        """Where others can ask for it, if it is our own."""
        self._errors = errors

    @classmethod
    def to_node(cls, address: str) -> WriterLink | None:
        """None if nobody listens there now."""
        connection = connect(address)
        return cls(connection) if connection else None

    @classmethod
    def to_own(cls, addresses: Sequence[bytes]) -> WriterLink:
        """Start a writer of our own; returns before it is ready. Raises OSError if no process can be started.

        It can be asked for at one of the addresses from now on, should this process die before it is ready.
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
        """Raises ClosedError."""
        send(self.connection, message, descriptors)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Raises ClosedError."""
        return receive(self.connection)

    def last_words(self) -> str:
        """How the writer ended, as far as can be seen; it has closed the connection."""
        if self.process is None or self._errors is None:
            return "the node's checkpoint writer has gone"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.01)  # the kernel closes its files a moment before it lets us know
        code = self.process.poll()
        size = os.fstat(self._errors).st_size
        words = os.pread(self._errors, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode(errors="replace").strip()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
        return f"the checkpoint writer has ended {how}{': ' if words else ''}{words}"

    def close(self) -> None:
        """Leave it; a writer of our own ends when it has done its work."""
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
    search_path = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100 - also of ""
    # They would end it while it starts, before it can say that they are not for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        return subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": search_path},  # what this process finds, it finds
            cwd="/",  # ours may be one that is to be deleted or unmounted
            stdin=subprocess.DEVNULL,
            # Not our output: who reads that to its end would wait for the writer's end, too.
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[end.fileno() for end in (connection, listener) if end],
            start_new_session=True,  # Ctrl-C, and the end of a terminal, are for the trainer alone
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Links:
    """Where the next writer comes from, when there is none or the last has died."""

    def __init__(self, own_addresses: Sequence[bytes]) -> None:
        self._own_addresses = own_addresses
        self._address = os.environ.get(ADDRESS)
        self._missing_since: float | None = None
        self._starts = 0
        """Writers of our own that were started and have not said anything yet, in a row."""
        self._not_before = 0.0

    @property
    def keeps_slots(self) -> bool:
        """Whether the writer was there before this process, and may know what an earlier one staged."""
        return bool(self._address)

    def next(self) -> WriterLink | None:
        """None: not now, try again later. Raises OSError."""
        if not self._address:
            return self._own()
        link = WriterLink.to_node(self._address)
        if link is not None:
            self._missing_since = None
            return link
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        return self._own() if now - self._missing_since > AGENT_PATIENCE_S else None

    def works(self) -> None:
        """The writer has said something."""
        self._starts = 0

    def _own(self) -> WriterLink | None:
        """One that dies while it starts is not started again at every step of the training."""
        now = time.monotonic()
        if now < self._not_before:
            return None
        self._starts += 1
        self._not_before = now + (0 if self._starts == 1 else min(_LONGEST_PAUSE_S, 0.1 * 2**self._starts))
        return WriterLink.to_own(self._own_addresses)
