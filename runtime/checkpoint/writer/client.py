"""Client of the checkpoint writer, used by the trainer: two slots of shared memory, and the outcomes of saves.

    client = WriterClient.connect(store, rank, world, attempt)
    client.reserve(size)
    slot = client.free_slot()                # None: earlier saves are still being written; do not save now
    client.slot(slot)[:size] = ...           # the copy, which blocks training
    client.submit(Save(name, slot, size, manifest, finished=False, keep=3))
    ...
    for result in client.poll(): ...         # at a later step boundary

Only wait(), wait_for_writer(), drain() and cached() block on the writer. No method blocks on the store. Not
thread-safe: a client belongs to the process and the thread that created it; in a forked child it is closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from dataclasses import dataclass

from ....protocol.checkpoint_names import Name
from ..errors import logger
from ..store import CheckpointStore
from .link import AGENT_RESTART_TIMEOUT_S, Links, WriterLink
from .previous_writers import finish_earlier, subject
from .protocol import VERSION, ClosedError, Message, Save, SaveResult, close_all, own_addresses, wait_readable
from .slots import Slot, content_file, read_content

__all__ = ["Save", "SaveResult", "WriterClient", "finish_earlier"]

SLOTS = 2
DEATHS = 3
"""Number of writers that may die during one save before the save fails."""
_ANSWER_S = 10.0
"""Timeout in seconds for a response of the writer's main thread, which never blocks."""
_POLL_S = 0.2
"""Seconds between checks in wait() whether the agent has restarted its writer."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A save whose outcome is not known yet."""

    save: Save
    since: float
    """time.monotonic() at submit()."""
    written: bool = False
    """True if this rank's part is durable and its slot is free, so that a new writer need only commit the save."""
    abandoned: bool = False
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _SlotState:
    """State of one of the two slots."""

    slot: Slot | None = None
    ready: bool = False
    """True if the slot's memory is allocated."""
    refused: bool = False
    """True if the last allocation of the slot's memory failed."""
    flight: _Flight | None = None
    used: float = 0.0
    """time.monotonic() at the last submit() of this slot."""

    def refuse(self) -> None:
        """Note that the allocation failed, and release the part that was allocated."""
        self.refused = True
        if self.slot is not None:
            self.slot.give_back()


class WriterClient:
    """Client of a checkpoint writer; see the module's docstring. Use connect() to create one."""

    def __init__(self, store: CheckpointStore, rank: int, world: int, attempt: int) -> None:
        self._store, self._rank, self._world, self._attempt = store, rank, world, attempt
        self._links = Links(own_addresses(*subject(store, rank)))
        self._link: WriterLink | None = None
        self._places = [_SlotState() for _ in range(SLOTS)]
        self._size = 0
        self._flights: dict[Name, _Flight] = {}
        self._results: list[SaveResult] = []
        self._answers: list[tuple[Message, list[int]]] = []
        self._closed = False
        _ALL.add(self)

    @classmethod
    def connect(cls, store: CheckpointStore, rank: int, world: int, attempt: int) -> WriterClient:
        """Return a client of the node's writer ($CLOUDGPU_WRITER); without one, start a writer process.

        Returns before the writer is ready. A writer that dies is replaced, and staged saves are submitted again.
        """
        client = cls(store, rank, world, attempt)
        client._reconnect()
        return client

    # Slots

    def reserve(self, size: int) -> None:
        """Make both slots at least `size` bytes long; memory is allocated in the background.

        Raises OSError if no shared memory can be created.
        """
        self._size = max(self._size, size)
        self._pump()
        for number, place in enumerate(self._places):
            if place.flight is None:
                self._grow(number)

    def free_slot(self) -> int | None:
        """Return the number of the slot to stage into; None if both are being written.

        Of two free slots it is the one used longer ago, but not one whose memory could not be allocated.
        """
        self._pump()
        free = [number for number, place in enumerate(self._places) if place.flight is None]
        if not free:
            return None
        number = min(free, key=lambda number: (self._places[number].refused, self._places[number].used))
        self._grow(number)
        return number

    def slot(self, number: int) -> memoryview:
        """Return a slot's memory: writable, page-aligned, at least as long as reserved.

        Call it again after reserve() and free_slot(), which may replace a free slot by a longer one. Raises OSError if
        there is not enough memory.
        """
        place = self._places[number]
        if place.slot is None:
            raise ValueError("reserve() comes first")
        if not place.ready:  # the writer has not allocated it yet; writing without that could cause an OOM kill
            try:
                place.slot.allocate()
            except OSError:
                place.refuse()
                raise
            place.ready, place.refused = True, False
        return place.slot.view

    def _grow(self, number: int) -> None:
        place = self._places[number]
        if place.slot is None or place.slot.size < self._size:
            place.slot, place.ready, place.refused = Slot.make(self._size), False, False
            self._send_slot(number)

    # Saves

    def submit(self, save: Save) -> None:
        """Submit a staged slot for writing; do not change its memory until free_slot() returns it again.

        Raises ValueError if the slot is not free or too small, if the name was submitted before, or if it is of another
        attempt.
        """
        place = self._places[save.slot]
        if place.flight is not None or place.slot is None or save.size > place.slot.size:
            raise ValueError(f"slot {save.slot} is not free, or too small for {save.size} bytes")
        if save.name in self._flights or save.name.attempt != self._attempt:
            raise ValueError(f"{save.name} has been submitted already, or is of another attempt than {self._attempt}")
        flight = _Flight(save, time.monotonic())
        place.flight, place.used = flight, flight.since
        self._flights[save.name] = flight
        self._send_save(flight)
        self._pump()

    def poll(self) -> list[SaveResult]:
        """Return the outcomes of saves that have become known since the last call. Never blocks."""
        self._pump()
        results, self._results = self._results, []
        return results

    def wait(self, timeout_s: float) -> list[SaveResult]:
        """Wait until the outcomes of all submitted saves are known, or for `timeout_s`; return the known outcomes."""
        end = time.monotonic() + timeout_s
        self._pump()
        while self._flights and (left := end - time.monotonic()) > 0:
            self._wait_for_message(left)
        return self.poll()

    def wait_for_writer(self) -> bool:
        """Wait for a connection to a writer, which the agent may still be starting; return whether there is one.

        If the program hung or died without a writer, its staged saves would be lost.
        """
        end = time.monotonic() + AGENT_RESTART_TIMEOUT_S + _POLL_S  # includes an attempt to start a writer
        self._pump()
        while self._link is None and self._links.keeps_slots and (left := end - time.monotonic()) > 0:
            self._wait_for_message(left)
        return self._link is not None

    def abandon(self, name: Name) -> None:
        """Abandon a save that cannot be completed because another rank failed; rank 0's writer removes its files."""
        if flight := self._flights.get(name):
            flight.abandoned = True
            self._send({"op": "abandon", "name": str(name)})

    # Earlier processes of this rank

    def drain(self, timeout_s: float) -> bool:
        """Wait until all saves staged by earlier processes of this rank are durable or have failed.

        Return False at the timeout. A process that claims its attempt calls finish_earlier() before the claim instead.
        """
        ours = self._link.address if self._link else None
        return finish_earlier(self._store, self._rank, timeout_s, but=ours)

    def cached(self, name: Name) -> tuple[bytes, memoryview] | None:
        """Return manifest and data of a checkpoint that an earlier process of this rank staged on this machine.

        None if the writer does not have it; only the node's writer keeps such copies, until the first submit(). Verify
        the data like a file: the earlier process may have died while it overwrote the slot. Changes to the view are
        private to this process.
        """
        if not self._links.keeps_slots:
            return None
        answer = self._ask({"op": "cached", "name": str(name)}, "cached", _ANSWER_S)
        if answer is None or len(answer[1]) != 2:  # the kernel drops descriptors at the limit of open files
            close_all(answer[1] if answer else ())
            return None
        manifest, slot = answer[1][0], Slot(answer[1][1])
        try:
            return read_content(manifest), slot.private_view(answer[0]["size"])
        except OSError:  # not enough address space or memory: read from the store
            return None

    def close(self) -> None:
        """Close the client; submitted saves are still written, by a writer that runs until then."""
        self._closed = True
        self._drop_link()
        self._places = [_SlotState() for _ in range(SLOTS)]
        self._flights.clear()

    # The writer

    def _pump(self) -> None:
        """Process the writer's messages, and replace the writer if it has died. Never blocks."""
        if self._closed:
            raise ValueError("this client has been closed; a forked process needs one of its own")
        if self._link is None:
            self._reconnect()
        while self._link is not None:
            try:
                received = self._link.receive()
            except ClosedError:
                self._handle_writer_exit()
                continue
            if received is None:
                return
            self._take(*received)

    def _take(self, message: Message, descriptors: list[int]) -> None:
        self._links.works()
        match message["op"]:
            case "ready":
                self._slot_is_ready(message)
            case "written":
                self._set_written(Name.parse(message["name"]))
            case "result":
                name = Name.parse(message.pop("name"))
                del message["op"]
                if name is not None and name in self._flights:
                    del self._flights[name]
                    self._free(name)
                    self._results.append(SaveResult(name=name, **message))
            case "note":
                logger().warning(message["text"])
            case _:
                self._answers.append((message, descriptors))

    def _slot_is_ready(self, message: Message) -> None:
        place = self._places[message["slot"]]
        if place.slot is None or place.slot.size != message["size"]:
            return  # it was replaced in the meantime
        if message["error"] is not None:
            if not place.ready:  # else slot() has allocated the memory in the meantime
                place.refuse()
        else:
            place.ready, place.refused = True, False
            # Mapping existing pages is quick, but training need not wait for it.
            threading.Thread(target=_prefault, args=(place.slot,), name="cloudgpu-pages", daemon=True).start()

    def _set_written(self, name: Name | None) -> None:
        flight = self._flights.get(name) if name else None
        if flight is not None:
            flight.written = True
            self._free(flight.save.name)

    def _free(self, name: Name) -> None:
        for place in self._places:
            if place.flight is not None and place.flight.save.name == name:
                place.flight = None

    def _handle_writer_exit(self) -> None:
        """Connect to another writer after one has died; a save during which DEATHS writers died has failed."""
        reason = self._link.describe_exit() if self._link else ""
        self._drop_link()
        for flight in list(self._flights.values()):
            flight.deaths += 1
            if flight.deaths >= DEATHS:
                self._fail(flight, f"{reason} ({DEATHS} times during this save)")
        self._reconnect()

    def _fail(self, flight: _Flight, error: str) -> None:
        name = flight.save.name
        del self._flights[name]
        self._free(name)
        seconds = time.monotonic() - flight.since
        self._results.append(SaveResult(name, flight.written, False, error, False, seconds))

    def _reconnect(self) -> None:
        """Connect to a writer if one is available, and send it the slots and all saves in progress."""
        try:
            self._link = self._links.next()
        except OSError as error:
            for flight in list(self._flights.values()):
                self._fail(flight, f"no checkpoint writer can be started: {error.strerror}")
            return
        if self._link is None:
            return
        job_dir = self._store.job_dir
        self._send(
            {
                "op": "hello",
                "version": VERSION,
                "url": job_dir.url,
                "make": job_dir.make,
                "prefix": self._store.prefix,
                "rank": self._rank,
                "world": self._world,
                "local": os.environ.get("LOCAL_WORLD_SIZE") == str(self._world),
            }
        )
        for number in range(SLOTS):
            self._send_slot(number)
        for flight in list(self._flights.values()):
            self._send_save(flight)

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for _, descriptors in self._answers:
            close_all(descriptors)
        self._answers.clear()

    def _send_slot(self, number: int) -> None:
        slot = self._places[number].slot
        if slot is not None:
            self._send({"op": "slot", "slot": number}, slot.descriptor)

    def _send_save(self, flight: _Flight) -> None:
        save = flight.save
        message = {
            "op": "save",
            "name": str(save.name),
            "slot": None if flight.written else save.slot,
            "size": save.size,
            "finished": save.finished,
            "keep": save.keep,
            "since": flight.since,
        }
        contents: list[int] = []
        try:
            contents.append(content_file("cloudgpu-manifest", save.manifest))
            contents.append(content_file("cloudgpu-rows", save.rows))
            self._send(message, *contents)
        except OSError as error:
            self._fail(flight, f"the save cannot be handed to the writer: {error.strerror}")
        finally:
            close_all(contents)
        if flight.abandoned:
            self._send({"op": "abandon", "name": str(save.name)})

    def _send(self, message: Message, *descriptors: int) -> None:
        """Send a message; if the writer has died, the next _pump() notices and informs its replacement."""
        if self._link is not None:
            with contextlib.suppress(ClosedError):
                self._link.send(message, *descriptors)

    def _ask(self, message: Message, op: str, timeout_s: float) -> tuple[Message, list[int]] | None:
        """Send a query and return the response `op`, None at the timeout. A new writer gets the query again."""
        end = time.monotonic() + timeout_s
        asked: WriterLink | None = None
        while True:
            if self._link is not asked:
                asked = self._link
                self._send(message)
            for answer in [answer for answer in self._answers if answer[0]["op"] == op]:
                self._answers.remove(answer)
                return answer
            left = end - time.monotonic()
            if left <= 0:
                return None
            self._wait_for_message(left)

    def _wait_for_message(self, timeout_s: float) -> None:
        if self._link is None:
            time.sleep(min(_POLL_S, timeout_s))
        else:
            wait_readable(self._link.connection, timeout_s)
        self._pump()


def _prefault(slot: Slot) -> None:
    with contextlib.suppress(OSError):  # too little memory now: pages are mapped on first write
        slot.prefault()


_ALL: weakref.WeakSet[WriterClient] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close all clients in a forked child, which would keep their connections and memory after the trainer's exit."""
    for client in list(_ALL):
        for slot in [place.slot for place in client._places if place.slot]:
            slot.leave_to_parent()
        client.close()


os.register_at_fork(after_in_child=_close_in_child)
