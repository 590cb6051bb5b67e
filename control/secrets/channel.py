"""Give values of secrets to the running supervisor, through a socket in the state directory.

Values are in no file, argument or environment variable on this way. The socket is open to its owner only; a process of
another user, even root's, is refused. One connection carries one request and its answer, each one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import paths
from ..errors import ControlError

if TYPE_CHECKING:
    from .vault import Vault

log = logging.getLogger("cloudgpu.supervisor")

_MOST_BYTES = 16 << 20
"""Maximum size of a message in bytes; the values of one job have 1 MiB at most."""
_TIMEOUT_S = 10.0
_START_S = 10.0
"""Seconds within which a supervisor listens after its start."""
_POLL_S = 0.02
_MAX_SOCKET_PATH = 100
"""Longer paths are addressed through an open folder, as the system allows 107 bytes."""
_BACKLOG = 16

_carried: dict[str, dict[str, str]] = {}
"""Values of a supervisor that this process has ended, for the next one."""


def give(job_id: str, values: Mapping[str, str]) -> None:
    """Give values of a job, name -> value, to the running supervisor. Raises ControlError."""
    if _insist({"give": {job_id: dict(values)}}) is None:
        raise ControlError("no supervisor takes the secrets: it has ended, or is of an older version")


def carry() -> None:
    """Keep the values of the running supervisor in this process, which is about to replace it."""
    answer = _ask({"take": True})
    values = answer.get("values") if answer is not None else None
    if isinstance(values, dict):
        for job_id, held in values.items():
            _carried.setdefault(job_id, {}).update(held)


def hand_over() -> None:
    """Give what carry() kept to the supervisor that runs now. If it does not take it, jobs ask for their secrets."""
    if not _carried:
        return
    if _insist({"give": dict(_carried)}) is None:
        log.warning("the new supervisor did not take over the secrets of the old one: jobs will ask for theirs")
    _carried.clear()


@contextmanager
def listening(vault: Vault, on_given: Callable[[str], None]) -> Iterator[None]:
    """Take values for a vault while this process is the supervisor. `on_given`: called with the job's id.

    A state directory that cannot hold a socket is reported, and jobs without secrets are not affected.
    """
    try:
        server = _bind(paths.supervisor_secrets())
    except OSError as error:
        log.warning("secrets cannot be taken: %s: %s", paths.supervisor_secrets(), error.strerror or error)
        yield
        return
    threading.Thread(target=_serve, args=(server, vault, on_given), name="secrets", daemon=True).start()
    try:
        yield
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _bind(path: Path) -> socket.socket:
    """Return a listening socket at a path, in place of one that a killed supervisor has left."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)
        try:
            with _short(path) as address:
                server.bind(address)
        finally:
            os.umask(mask)
        server.listen(_BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def _serve(server: socket.socket, vault: Vault, on_given: Callable[[str], None]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed
            return
        with connection:
            try:
                _answer(connection, vault, on_given)
            except (OSError, ValueError, RecursionError):  # another program, or one that was killed
                log.warning("a message to the secrets' socket is not understood")


def _answer(connection: socket.socket, vault: Vault, on_given: Callable[[str], None]) -> None:
    """Answer one request. Raises OSError, ValueError."""
    if not _is_own(connection):
        return
    connection.settimeout(_TIMEOUT_S)
    request = _receive(connection)
    given = request.get("give", {})
    if not isinstance(given, dict) or not all(map(_are_values, given.values())):
        raise ValueError("not values by job")
    for job_id, values in given.items():
        vault.give(job_id, values)
        on_given(job_id)
    _send(connection, {"values": vault.all_values()} if request.get("take") is True else {})


def _are_values(values: object) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _insist(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Do as _ask(), again while nothing answers: a supervisor that has just started does not listen yet."""
    until = time.monotonic() + _START_S
    while (answer := _ask(request)) is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return answer


def _ask(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Send a request to the supervisor and return its answer; None: nothing answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            with _short(paths.supervisor_secrets()) as address:
                connection.connect(address)
            if not _is_own(connection):
                return None
            _send(connection, request)
            return _receive(connection)
        except (OSError, ValueError):
            return None


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Receive a line of JSON. Raises OSError, ValueError; no message repeats what was received."""
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece or len(data) > _MOST_BYTES:
            raise ValueError("an incomplete or too long message")
        data += piece
    try:
        message = json.loads(data)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what is received is input
    return message


def _is_own(connection: socket.socket) -> bool:
    """Return whether the other side is a process of this user."""
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return bool(user == os.geteuid())


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield an address of a socket that is short enough."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
