"""Main thread of the checkpoint writer: handles the trainers' messages, and never blocks on a store."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from ....protocol.checkpoint_names import Name
from ....protocol.jobdir import JobDir, JobDirError
from ..store import CheckpointStore
from .committer import Staged
from .protocol import (
    LONGEST_TEXT,
    VERSION,
    ClosedError,
    Message,
    SaveResult,
    close_all,
    is_listened_to,
    is_same_user,
    own_addresses,
    peer,
    receive,
    send,
)
from .rank_writer import Outbox, RankWriter, Written
from .slots import Slot, content_file, read_content

_LONG_S = 3600.0
"""Maximum timeout of select(), in seconds."""

Key = tuple[str, str, int]
"""Identifies a rank of a training: URL, prefix, rank."""


@dataclass(slots=True, eq=False)
class Trainer:
    """A connected process. A trainer has a writer after its message "hello", which other processes do not send."""

    connection: socket.socket
    key: Key | None = None
    writer: RankWriter | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    saves: bool = False
    """True if the process has submitted a save, and so has completed its restore."""
    process: int | None = None
    """pidfd of the trainer, since a forked child may keep the connection open after the trainer has exited."""
    draining: list[Key | None] = field(default_factory=list)
    """Ranks for whose saves the process waits; None: all ranks."""
    is_query_only: bool = True
    """True if the process has sent no "hello" and did not start this server: the server need not wait for its exit."""


class Server:
    """Message loop that runs until no trainer is connected and all saves are finished.

    lasting  True: it also waits for stop()
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._until: float | None = None
        """time.monotonic() at which unwritten saves are given up; set by stop()."""
        self._selector = selectors.DefaultSelector()
        self._trainers: list[Trainer] = []
        self._writers: dict[RankWriter, Key] = {}
        self._kept: dict[Key, Written] = {}
        """Newest part of each rank whose process has exited, for the restore of its next process."""
        self._worlds: dict[tuple[str, str], int] = {}
        """Number of ranks of each training, as reported by its newest process."""
        self._finished_ranks: set[Key] = set()
        """Ranks whose process has exited, and whose staged saves are all written."""
        self.waker, self._woken = socket.socketpair()
        self.waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from a listening socket."""
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def add(self, connection: socket.socket) -> None:
        """Serve the process at the other end of a connection, which has started this server."""
        self._serve(Trainer(connection, is_query_only=False))

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call `call` once, when the descriptor becomes readable."""

        def once() -> None:
            self._selector.unregister(descriptor)
            call()

        self._selector.register(descriptor, selectors.EVENT_READ, once)

    def stop(self, grace_s: float) -> None:
        """Make run() return when all saves are finished and no trainer is connected, or after `grace_s` seconds."""
        self._until = min(self._until or float("inf"), time.monotonic() + grace_s)
        self._lasting = False

    def run(self) -> bool:
        """Run the loop; return whether all staged saves were finished."""
        while not self._is_over():
            left = None if self._until is None else min(_LONG_S, max(0.0, self._until - time.monotonic()))
            for event, _ in self._selector.select(left):
                event.data()
            self._forget_ended()
            self._answer_draining()
        return all(writer.idle for writer in self._writers)

    def wake(self) -> None:
        """Wake the loop, after a change of state. Thread-safe."""
        with contextlib.suppress(BlockingIOError):  # the socket's buffer is full: the loop will wake in any case
            self.waker.send(b"\0")

    def _is_over(self) -> bool:
        if self._until is not None and time.monotonic() >= self._until:
            return True
        return not self._lasting and not self._writers and all(t.is_query_only for t in self._trainers)

    # Events

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has disconnected, or there are no free descriptors: clients retry
            return
        if is_same_user(connection):
            self._serve(Trainer(connection))
        else:
            connection.close()

    def _serve(self, trainer: Trainer) -> None:
        connection = trainer.connection
        connection.setblocking(False)
        self._trainers.append(trainer)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._pump(trainer))
        with contextlib.suppress(OSError):  # in another PID namespace: rely on the connection's end
            trainer.process = os.pidfd_open(peer(connection)[0])
            self._selector.register(trainer.process, selectors.EVENT_READ, lambda: self._died(trainer))

    def _died(self, trainer: Trainer) -> None:
        self._pump(trainer)  # reads its last messages
        if trainer in self._trainers:
            self._drop(trainer)

    def _pump(self, trainer: Trainer) -> None:
        """Handle all messages that a trainer has sent."""
        while trainer in self._trainers:
            try:
                received = receive(trainer.connection)
                if received is None:
                    return
                self._handle(trainer, *received)
            except ClosedError:
                self._drop(trainer)

    def _drop(self, trainer: Trainer) -> None:
        self._trainers.remove(trainer)
        self._selector.unregister(trainer.connection)
        trainer.connection.close()
        if trainer.process is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(trainer.process)
            os.close(trainer.process)
        if trainer.writer:
            trainer.writer.detach()
        trainer.slots.clear()

    def _forget_ended(self) -> None:
        for writer, key in list(self._writers.items()):
            if writer.ended:
                del self._writers[writer]
                self._finished_ranks.add(key)
                if writer.written and self._lasting and self._may_restore(key):
                    self._kept[key] = writer.written  # replaces the part of an older process of the rank
                writer.written = None  # breaks a reference cycle, which would delay freeing the memory

    def _may_restore(self, key: Key) -> bool:
        """Return whether a new process of a rank may request its kept part: not once it has submitted a save."""
        followed = any(trainer.key == key and trainer.saves for trainer in self._trainers)
        return key[2] < self._worlds[key[:2]] and not followed

    def _may_still_write(self, key: Key, rank: int, local: bool) -> bool:
        """Return whether a rank may still write its part. Thread-safe. `local`: all ranks are on this machine."""
        other = (key[0], key[1], rank)
        if any(key == other for key in list(self._writers.values())):
            return True
        if other in self._finished_ranks:
            return False
        # The rank may have started a separate writer.
        return not local or any(is_listened_to(address) for address in own_addresses(*other))

    def _answer_draining(self) -> None:
        busy = {key for writer, key in self._writers.items() if not writer.idle}
        for trainer in self._trainers:
            for wanted in [key for key in trainer.draining if key not in busy and not (key is None and busy)]:
                trainer.draining.remove(wanted)
                self._send(trainer, {"op": "drained"})

    # Messages

    def _handle(self, trainer: Trainer, message: Message, descriptors: list[int]) -> None:
        try:
            if trainer.writer is None and message["op"] not in ("hello", "drain"):
                raise ValueError("hello comes first")
            self._HANDLERS[message["op"]](self, trainer, message, descriptors)
        except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
            raise ClosedError("invalid message") from error
        finally:
            close_all(descriptors)  # those that no handler has taken

    def _hello(self, trainer: Trainer, message: Message, _: list[int]) -> None:
        if message["version"] != VERSION or trainer.writer:
            raise ClosedError("another version of the protocol, or a second hello")
        trainer.is_query_only = False
        trainer.key = key = (message["url"], message["prefix"], message["rank"])
        try:
            store = CheckpointStore(JobDir(message["url"], make=message["make"]), message["prefix"])
        except JobDirError as error:
            self._send_note(trainer, str(error))
            raise ClosedError(str(error)) from error
        outbox = Outbox(
            written=lambda name: self._send(trainer, {"op": "written", "name": str(name)}),
            result=lambda result: self._send_result(trainer, result),
            note=lambda text: self._send_note(trainer, text),
        )
        local = bool(message["local"])
        trainer.writer = RankWriter(
            store,
            message["rank"],
            message["world"],
            outbox,
            lambda rank: self._may_still_write(key, rank, local),
            self.wake,
        )
        self._writers[trainer.writer] = key
        self._finished_ranks.discard(key)
        self._worlds[key[:2]] = message["world"]
        for other in [other for other in self._kept if other[:2] == key[:2] and other[2] >= message["world"]]:
            del self._kept[other]  # the rank does not exist any more
        trainer.writer.start()

    def _slot(self, trainer: Trainer, message: Message, descriptors: list[int]) -> None:
        number, slot = message["slot"], Slot(descriptors.pop(0))
        trainer.slots[number] = slot

        def make_pages() -> None:
            error = None
            try:
                slot.allocate()
                slot.prefault()
            except OSError as failure:
                error = failure.strerror
            self._send(trainer, {"op": "ready", "slot": number, "size": slot.size, "error": error})

        threading.Thread(target=make_pages, name="pages", daemon=True).start()

    def _save(self, trainer: Trainer, message: Message, descriptors: list[int]) -> None:
        assert trainer.writer and trainer.key  # noqa: S101 - checked by _handle()
        manifest, rows = read_content(descriptors.pop(0)), read_content(descriptors.pop(0))
        name, number = Name.parse(message["name"]), message["slot"]
        if name is None:
            raise ClosedError("no name of a checkpoint")
        slot = trainer.slots[number] if number is not None else None
        trainer.saves = True
        self._kept.pop(trainer.key, None)
        trainer.writer.stage(
            Staged(name, slot, message["size"], manifest, message["finished"], message["keep"], rows, message["since"])
        )

    def _abandon(self, trainer: Trainer, message: Message, _: list[int]) -> None:
        assert trainer.writer  # noqa: S101
        if name := Name.parse(message["name"]):
            trainer.writer.abandon(name)

    def _cached(self, trainer: Trainer, message: Message, _: list[int]) -> None:
        found = [writer.written for writer, key in self._writers.items() if key == trainer.key]
        found.append(self._kept.get(trainer.key) if trainer.key else None)
        for written in found:
            if written and str(written.name) == message["name"]:
                descriptor = content_file("cloudgpu-manifest", written.manifest)
                self._send(trainer, {"op": "cached", "size": written.size}, [descriptor, written.slot.descriptor])
                os.close(descriptor)
                return
        self._send(trainer, {"op": "cached", "size": None})

    def _drain(self, trainer: Trainer, message: Message, _: list[int]) -> None:
        for other in list(self._trainers):  # messages of trainers that have exited count
            if other is not trainer:
                self._pump(other)
        of = message["of"]
        trainer.draining.append((of[0], of[1], of[2]) if of else None)

    _HANDLERS = {  # noqa: RUF012 - constant
        "hello": _hello,
        "slot": _slot,
        "save": _save,
        "abandon": _abandon,
        "cached": _cached,
        "drain": _drain,
    }

    # Responses; thread-safe

    def _send_result(self, trainer: Trainer, result: SaveResult) -> None:
        fields = {"name": str(result.name), "error": result.error and result.error[:LONGEST_TEXT]}
        self._send(trainer, {"op": "result", **asdict(result), **fields})

    def _send_note(self, trainer: Trainer, text: str) -> None:
        self._send(trainer, {"op": "note", "text": text[:LONGEST_TEXT]})

    def _send(self, trainer: Trainer, message: Message, descriptors: tuple[int, ...] | list[int] = ()) -> None:
        with contextlib.suppress(ClosedError):  # it has exited; the main thread will notice
            send(trainer.connection, message, descriptors)
