"""The trainer's side of the checkpoint writer: two slots of shared memory, and what becomes of what is staged in them.

    client = WriterClient.connect(store, rank, world, attempt)
    client.reserve(size)
    slot = client.free_slot()                # None: the store is too slow, nothing is staged this time
    client.slot(slot)[:size] = ...           # what blocks training: one copy
    client.submit(Save(name, slot, size, manifest, finished=False, keep=3))
    ...
    for result in client.poll(): ...         # at a later step boundary

No method but wait(), wait_for_writer(), drain() and cached() waits for the writer, and none for the store, however
slow, hung or dead they are. A client belongs to the process and the thread that made it; in a forked child it is
closed.
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
from .link import AGENT_PATIENCE_S, Links, WriterLink
from .previous_writers import finish_earlier, subject
from .protocol import VERSION, ClosedError, Message, Save, SaveResult, close_all, own_addresses, wait_readable
from .slots import Slot, content_file, read_content

__all__ = ["Save", "SaveResult", "WriterClient", "finish_earlier"]

SLOTS = 2
DEATHS = 3
"""Writers that may die over one save before it counts as failed."""
_ANSWER_S = 10.0
"""How long an answer of the writer's main thread, which waits for nothing, may take."""
_LOOK_S = 0.2
"""How often wait() looks whether the agent has started its writer again."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A save that has no result yet."""

    save: Save
    since: float
    """time.monotonic() at submit()."""
    written: bool = False
    """Its slot is free again; a new writer need only commit it."""
    abandoned: bool = False
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Place:
    """One of the two slots."""

    slot: Slot | None = None
    ready: bool = False
    """Its memory is there."""
    refused: bool = False
    """There was no memory for it when it was last asked for."""
    flight: _Flight | None = None
    used: float = 0.0
    """When it was last submitted."""

    def refuse(self) -> None:
        """There is no memory for all of it, and nothing is in what there was."""
        self.refused = True
        if self.slot is not None:
            self.slot.give_back()


class WriterClient:
    """See the module's text; made by connect()."""

    def __init__(self, store: CheckpointStore, rank: int, world: int, attempt: int) -> None:
        self._store, self._rank, self._world, self._attempt = store, rank, world, attempt
        self._links = Links(own_addresses(*subject(store, rank)))
        self._link: WriterLink | None = None
        self._places = [_Place() for _ in range(SLOTS)]
        self._size = 0
        self._flights: dict[Name, _Flight] = {}
        self._results: list[SaveResult] = []
        self._answers: list[tuple[Message, list[int]]] = []
        self._closed = False
        _ALL.add(self)

    @classmethod
    def connect(cls, store: CheckpointStore, rank: int, world: int, attempt: int) -> WriterClient:
        """A client of the node's writer ($CLOUDGPU_WRITER), else of one of its own, which is started here.

        Returns at once: the writer starts meanwhile. One that dies is replaced, and is given again what is staged.
        """
        client = cls(store, rank, world, attempt)
        client._revive()
        return client

    # Slots

    def reserve(self, size: int) -> None:
        """Have both slots hold `size` bytes; returns at once, the memory's pages are made in the background.

        Raises OSError where no shared memory can be had.
        """
        self._size = max(self._size, size)
        self._pump()
        for number, place in enumerate(self._places):
            if place.flight is None:
                self._grow(number)

    def free_slot(self) -> int | None:
        """The slot to stage into: of the free ones that with the older content, or the only one for which there is
        memory; None if both are being written.
        """
        self._pump()
        free = [number for number, place in enumerate(self._places) if place.flight is None]
        if not free:
            return None
        number = min(free, key=lambda number: (self._places[number].refused, self._places[number].used))
        self._grow(number)
        return number

    def slot(self, number: int) -> memoryview:
        """A slot's memory, writable, page-aligned, at least as long as reserved. A free one may be replaced by a longer
        one in reserve() and free_slot(): ask again after them.

        Raises OSError if there is not enough memory for it.
        """
        place = self._places[number]
        if place.slot is None:
            raise ValueError("reserve() comes first")
        if not place.ready:  # asked for sooner than the writer could: now, or whoever writes to it would die of it
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
            self._tell_slot(number)

    # Saves

    def submit(self, save: Save) -> None:
        """Hand a staged slot over; it must not be touched until free_slot() returns it again."""
        place = self._places[save.slot]
        if place.flight is not None or place.slot is None or save.size > place.slot.size:
            raise ValueError(f"slot {save.slot} is not free, or too small for {save.size} bytes")
        if save.name in self._flights or save.name.attempt != self._attempt:
            raise ValueError(f"{save.name} has been submitted already, or is of another attempt than {self._attempt}")
        flight = _Flight(save, time.monotonic())
        place.flight, place.used = flight, flight.since
        self._flights[save.name] = flight
        self._tell_save(flight)
        self._pump()

    def poll(self) -> list[SaveResult]:
        """What has become durable or failed since the last call. Never blocks."""
        self._pump()
        results, self._results = self._results, []
        return results

    def wait(self, timeout_s: float) -> list[SaveResult]:
        """Results of all that was submitted; fewer if time runs out."""
        end = time.monotonic() + timeout_s
        self._pump()
        while self._flights and (left := end - time.monotonic()) > 0:
            self._wait_for_message(left)
        return self.poll()

    def wait_for_writer(self) -> bool:
        """Until there is one that hears what is staged; False: none could be had.

        The agent's may still be starting: what a program stages before it hangs, or dies, would be told to nobody.
        """
        end = time.monotonic() + AGENT_PATIENCE_S + _LOOK_S  # after that, one of our own was tried
        self._pump()
        while self._link is None and self._links.keeps_slots and (left := end - time.monotonic()) > 0:
            self._wait_for_message(left)
        return self._link is not None

    def abandon(self, name: Name) -> None:
        """This save will never be complete (another rank failed): rank 0's writer need not wait, and removes it."""
        if flight := self._flights.get(name):
            flight.abandoned = True
            self._tell({"op": "abandon", "name": str(name)})

    # Earlier processes of this rank

    def drain(self, timeout_s: float) -> bool:
        """Wait until what earlier processes of this rank had staged is durable or has failed; False: time ran out.

        Where the attempt is claimed here, finish_earlier() must come before: see there.
        """
        ours = self._link.address if self._link else None
        return finish_earlier(self._store, self._rank, timeout_s, but=ours)

    def cached(self, name: Name) -> tuple[bytes, memoryview] | None:
        """The manifest and the bytes of a checkpoint that an earlier process of this rank staged on this machine.

        To be verified like a file: that process may have died while overwriting it. It goes with the first submit(), if
        it was not read before. Only the node's writer has any. The view may be written to, which nobody else sees.
        """
        if not self._links.keeps_slots:
            return None
        answer = self._ask({"op": "cached", "name": str(name)}, "cached", _ANSWER_S)
        if answer is None or len(answer[1]) != 2:  # the kernel drops descriptors where no more can be open
            close_all(answer[1] if answer else ())
            return None
        manifest, slot = answer[1][0], Slot(answer[1][1])
        try:
            return read_content(manifest), slot.private_view(answer[0]["size"])
        except OSError:  # no room for it: the store has it, too
            return None

    def close(self) -> None:
        """Leave. What was submitted is still written, by a writer that lives on until then."""
        self._closed = True
        self._drop_link()
        self._places = [_Place() for _ in range(SLOTS)]
        self._flights.clear()

    # The writer

    def _pump(self) -> None:
        """Take in what the writer has said, and replace it if it is dead. Never blocks."""
        if self._closed:
            raise ValueError("this client has been closed; a forked process needs one of its own")
        if self._link is None:
            self._revive()
        while self._link is not None:
            try:
                received = self._link.receive()
            except ClosedError:
                self._bury()
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
            return  # it has been replaced meanwhile
        if message["error"] is not None:
            if not place.ready:  # else we have got the memory ourselves meanwhile
                place.refuse()
        else:
            place.ready, place.refused = True, False
            # A page table is made of pages that are there: quick, but not to be waited for either.
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

    def _bury(self) -> None:
        """The writer is dead: count it against what it was writing, and start anew."""
        reason = self._link.last_words() if self._link else ""
        self._drop_link()
        for flight in list(self._flights.values()):
            flight.deaths += 1
            if flight.deaths >= DEATHS:
                self._fail(flight, f"{reason} ({DEATHS} times during this save)")
        self._revive()

    def _fail(self, flight: _Flight, error: str) -> None:
        name = flight.save.name
        del self._flights[name]
        self._free(name)
        seconds = time.monotonic() - flight.since
        self._results.append(SaveResult(name, flight.written, False, error, False, seconds))

    def _revive(self) -> None:
        """Have a writer, if one can be had now, and tell it everything."""
        try:
            self._link = self._links.next()
        except OSError as error:
            for flight in list(self._flights.values()):
                self._fail(flight, f"no checkpoint writer can be started: {error.strerror}")
            return
        if self._link is None:
            return
        job_dir = self._store.job_dir
        self._tell(
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
            self._tell_slot(number)
        for flight in list(self._flights.values()):
            self._tell_save(flight)

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for _, descriptors in self._answers:
            close_all(descriptors)
        self._answers.clear()

    def _tell_slot(self, number: int) -> None:
        slot = self._places[number].slot
        if slot is not None:
            self._tell({"op": "slot", "slot": number}, slot.descriptor)

    def _tell_save(self, flight: _Flight) -> None:
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
            self._tell(message, *contents)
        except OSError as error:
            self._fail(flight, f"the save cannot be handed to the writer: {error.strerror}")
        finally:
            close_all(contents)
        if flight.abandoned:
            self._tell({"op": "abandon", "name": str(save.name)})

    def _tell(self, message: Message, *descriptors: int) -> None:
        """If it is dead, the next pump will notice, and tell its successor."""
        if self._link is not None:
            with contextlib.suppress(ClosedError):
                self._link.send(message, *descriptors)

    def _ask(self, message: Message, op: str, timeout_s: float) -> tuple[Message, list[int]] | None:
        """Its answer; None if there was none in this time. The question is put again to a new writer."""
        end = time.monotonic() + timeout_s
        asked: WriterLink | None = None
        while True:
            if self._link is not asked:
                asked = self._link
                self._tell(message)
            for answer in [answer for answer in self._answers if answer[0]["op"] == op]:
                self._answers.remove(answer)
                return answer
            left = end - time.monotonic()
            if left <= 0:
                return None
            self._wait_for_message(left)

    def _wait_for_message(self, timeout_s: float) -> None:
        if self._link is None:
            time.sleep(min(_LOOK_S, timeout_s))
        else:
            wait_readable(self._link.connection, timeout_s)
        self._pump()


def _prefault(slot: Slot) -> None:
    with contextlib.suppress(OSError):  # too little memory now: the pages are mapped when they are written to
        slot.prefault()


_ALL: weakref.WeakSet[WriterClient] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked worker would keep the connection open, and the slots' memory, when its trainer is dead."""
    for client in list(_ALL):
        for slot in [place.slot for place in client._places if place.slot]:
            slot.leave_to_parent()
        client.close()


os.register_at_fork(after_in_child=_close_in_child)
