"""Protocol between trainers and the checkpoint writer.

Messages are JSON objects, one per packet of an AF_UNIX socket of type SOCK_SEQPACKET: a packet arrives whole or not at
all, together with its file descriptors. Content that may be long (a manifest) is passed as a descriptor, so that
sending never blocks on a socket's buffer.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol.checkpoint_names import Name

VERSION = 1
"""Version of the messages. Trainer and writer may use different installations of cloudgpu."""
_PACKET = 64 << 10
"""Receive buffer in bytes, longer than any message."""
_DESCRIPTORS = 4
LONGEST_TEXT = 4000
"""Maximum characters of an error or note in a message: some stores respond with a whole HTML page."""
_PATH = 107
_RETRY_S = 0.01

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Save:
    """One rank's part of a checkpoint, staged in a slot."""

    name: Name
    slot: int
    size: int
    """Number of bytes of the checkpoint in the slot, from its start."""
    manifest: bytes
    """RankManifest without chunk hashes: the writer adds them."""
    finished: bool
    """True if the training reached its end with this step. `finished`, `keep` and `rows` are only used from rank 0."""
    keep: int
    """Number of checkpoints to keep, including this one."""
    rows: bytes = b""
    """Metrics of the steps since the last save; may be empty."""


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Outcome of a Save."""

    name: Name
    written: bool
    """True if this rank's part is durable."""
    committed: bool
    """True if the checkpoint is committed; known on rank 0 only."""
    error: str | None
    fenced: bool
    """True if a newer attempt has taken over, so that no later save of this attempt can be committed."""
    seconds: float
    """Seconds from submit() until the save was durable (on rank 0: committed) or had failed."""


class ClosedError(Exception):
    """The other side has closed the connection."""


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a message without blocking. The caller still has to close the descriptors.

    Raises ClosedError if the peer has closed the connection or does not read.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    packet = json.dumps(message, separators=(",", ":")).encode()
    try:
        connection.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError as error:  # also a full buffer: messages for two slots do not fill it, so the peer does not read
        raise ClosedError(str(error)) from error


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors, None if there is none yet.

    Raises ClosedError if the peer has closed the connection or sent an invalid message.
    """
    try:
        try:
            packet, descriptors = _receive(connection)
        except ConnectionResetError:
            # The peer exited before it had read all messages. The kernel reports this error once; then the messages
            # that the peer had sent can still be read.
            packet, descriptors = _receive(connection)
    except BlockingIOError:
        return None
    except OSError as error:
        raise ClosedError(str(error)) from error
    if not packet:
        raise ClosedError("the other side has ended")
    try:
        message = json.loads(packet)
    except ValueError as error:
        close_all(descriptors)
        raise ClosedError(f"not a message: {error}") from error
    return message, descriptors


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET, _DESCRIPTORS, flags)
    return packet, descriptors


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def listen(address: str | bytes) -> socket.socket:
    """Return a socket that listens at a path, or at an abstract address (bytes that start with 0).

    The kernel frees an abstract address when its listener is closed. Raises OSError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        with _short(address) as short:
            listener.bind(short)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def connect(address: str | bytes) -> socket.socket | None:
    """Connect to an address; return None if no process of this user or root listens there.

    Only at an abstract address, which any process can take, is the listener's user checked; a path is protected by its
    folder's permissions.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        with _short(address) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        return None
    if isinstance(address, bytes) and not is_same_user(connection):
        connection.close()
        return None
    return connection


@contextlib.contextmanager
def _short(address: str | bytes) -> Iterator[str | bytes]:
    """Yield an address within the limit of 107 bytes for a socket's path; a longer path is opened via its folder."""
    if isinstance(address, bytes) or len(os.fsencode(address)) <= _PATH:
        yield address
        return
    folder, name = os.path.split(address)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen_at_one_of(addresses: Sequence[bytes]) -> socket.socket | None:
    """Listen at the first free address; return None if all are in use."""
    for address in addresses:
        with contextlib.suppress(OSError):
            return listen(address)
    return None


def own_addresses(url: str, prefix: str, rank: int) -> list[bytes]:
    """Return the abstract addresses (no files), of which the writer that a trainer starts takes the first free one.

    There are several, because an earlier process's writer may still be running.
    """
    subject = hashlib.sha256("\0".join((str(os.getuid()), url, prefix, str(rank))).encode()).hexdigest()[:32]
    return [f"\0cloudgpu-writer-{subject}-{number}".encode() for number in range(4)]


def is_listened_to(address: str | bytes) -> bool:
    connection = connect(address)
    if connection is not None:
        connection.close()
    return connection is not None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the peer; for a socketpair, of the process that created it."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer runs as this user or root."""
    return peer(connection)[1] in (os.getuid(), 0)


def wait_readable(connection: socket.socket, timeout_s: float) -> bool:
    """Wait for a message; return False at the timeout.

    Uses poll(), since select() is limited to descriptors below 1024.
    """
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(max(0.0, timeout_s) * 1000))


def wait_until_durable(address: str | bytes, timeout_s: float, of: tuple[str, str, int] | None = None) -> bool:
    """Wait until all saves staged with the writer at an address are durable or have failed.

    of  URL, prefix and rank whose saves to wait for; None: all ranks

    Return False at the timeout, True also if no writer listens at the address, since nothing is staged then.
    """
    end = time.monotonic() + timeout_s
    while (connection := connect(address)) is not None:
        with connection, contextlib.suppress(ClosedError):
            return _drained(connection, end, of)
        if time.monotonic() >= end:
            return False
        time.sleep(_RETRY_S)  # the writer is exiting or was killed; another may have replaced it
    return True


def _drained(connection: socket.socket, end: float, of: tuple[str, str, int] | None) -> bool:
    """Return whether the writer has drained before `end`. Raises ClosedError."""
    send(connection, {"op": "drain", "of": of})
    while wait_readable(connection, end - time.monotonic()):
        answer = receive(connection)
        if answer is not None and answer[0].get("op") == "drained":
            return True
    return False
