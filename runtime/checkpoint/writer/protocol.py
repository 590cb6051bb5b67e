"""What trainers and the checkpoint writer say to each other.

Messages are JSON objects, one per packet of an AF_UNIX socket of type SOCK_SEQPACKET: a packet arrives whole or not at
all, and file descriptors travel with the packet they belong to. What may be long (a manifest) travels as a descriptor,
so that no message ever waits for room in a socket's buffer.
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
"""Of the messages; trainer and writer usually come from one installation, but a program may bring its own."""
_PACKET = 64 << 10
"""Bytes; longer than any message."""
_DESCRIPTORS = 4
LONGEST_TEXT = 4000
"""Characters of what is told in words: some stores answer with a whole page of HTML."""
_PATH = 107
_BREATH_S = 0.01

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Save:
    """One rank's part of a checkpoint, staged in a slot."""

    name: Name
    slot: int
    size: int
    """Bytes of the slot that are the checkpoint's."""
    manifest: bytes
    """RankManifest without chunk hashes: the writer adds them."""
    finished: bool
    """The training reached its end with this step. Of this field and the next two, only rank 0's count."""
    keep: int
    """How many checkpoints are kept, this one included."""
    rows: bytes = b""
    """Metrics of the steps since the last save; may be empty."""


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What became of a Save."""

    name: Name
    written: bool
    """This rank's part is durable."""
    committed: bool
    """It is a checkpoint now; known on rank 0 only."""
    error: str | None
    fenced: bool
    """A newer attempt has taken over: this one will never commit again."""
    seconds: float
    """From submit() until it was durable (on rank 0: committed) or had failed."""


class ClosedError(Exception):
    """The other side is gone."""


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Raises ClosedError. The descriptors remain the sender's to close."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    packet = json.dumps(message, separators=(",", ":")).encode()
    try:
        connection.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError as error:  # also a buffer that is full: two slots' messages never fill one, so nobody reads it
        raise ClosedError(str(error)) from error


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and what came with it; None if there is none yet. Raises ClosedError."""
    try:
        try:
            packet, descriptors = _receive(connection)
        except ConnectionResetError:
            # The other side has died without having read all of ours: the kernel tells that first, and once. What it
            # said before that is still there.
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
    """Raises OSError. An abstract address (bytes that begin with 0) is free again when its listener is dead."""
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
    """A connection to whoever listens there; None if nobody does, or only a stranger: a path is guarded by its folder,
    an abstract address is for whoever comes first.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        with _short(address) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        return None
    if isinstance(address, bytes) and not is_ours(connection):
        connection.close()
        return None
    return connection


@contextlib.contextmanager
def _short(address: str | bytes) -> Iterator[str | bytes]:
    """A path of a socket may have 107 bytes: a longer one is reached through its open folder."""
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
    """None if all are taken."""
    for address in addresses:
        with contextlib.suppress(OSError):
            return listen(address)
    return None


def own_addresses(url: str, prefix: str, rank: int) -> list[bytes]:
    """Where a trainer's own writer can be asked for: one of these abstract addresses, of which no file is left.

    More than one, for an earlier process's writer may still be at work.
    """
    subject = hashlib.sha256("\0".join((str(os.getuid()), url, prefix, str(rank))).encode()).hexdigest()[:32]
    return [f"\0cloudgpu-writer-{subject}-{number}".encode() for number in range(4)]


def is_listened_to(address: str | bytes) -> bool:
    connection = connect(address)
    if connection is not None:
        connection.close()
    return connection is not None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; of a socketpair: who made it."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def is_ours(connection: socket.socket) -> bool:
    """Whether this user or root is at the other end."""
    return peer(connection)[1] in (os.getuid(), 0)


def wait_readable(connection: socket.socket, timeout_s: float) -> bool:
    """Not select(2), which knows no descriptor above 1023."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(max(0.0, timeout_s) * 1000))


def wait_until_durable(address: str | bytes, timeout_s: float, of: tuple[str, str, int] | None = None) -> bool:
    """Whether what was staged with the writer at this address is now durable, or has failed for good.

    of: URL, prefix and rank of whose; None: everybody's. Waits as long as `timeout_s`. True also if no writer is there,
    or none any more: it has nothing that is staged.
    """
    end = time.monotonic() + timeout_s
    while (connection := connect(address)) is not None:
        with connection, contextlib.suppress(ClosedError):
            return _drained(connection, end, of)
        if time.monotonic() >= end:
            return False
        time.sleep(_BREATH_S)  # it ends, or was killed: perhaps there is another
    return True


def _drained(connection: socket.socket, end: float, of: tuple[str, str, int] | None) -> bool:
    """False: time ran out. Raises ClosedError."""
    send(connection, {"op": "drain", "of": of})
    while wait_readable(connection, end - time.monotonic()):
        answer = receive(connection)
        if answer is not None and answer[0].get("op") == "drained":
            return True
    return False
