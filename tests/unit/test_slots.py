"""Anonymous shared memory: a process's writes are visible to another, and nothing remains afterwards."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.runtime.checkpoint.writer import slots
from cloudgpu.runtime.checkpoint.writer.memory_limit import available
from cloudgpu.runtime.checkpoint.writer.slots import Slot, anonymous_file, content_file, read_content


def descriptors_of_slots() -> list[str]:
    """Return the paths of the slots' descriptors. Threads of earlier tests may open and close others meanwhile."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return [name for name in found if "cloudgpu-slot" in name]


def test_two_processes_share_it() -> None:
    slot = Slot.make(10_000)
    slot.view[:5] = b"hello"
    code = f"""
from cloudgpu.runtime.checkpoint.writer.memory_limit import available
from cloudgpu.runtime.checkpoint.writer.slots import Slot
slot = Slot({slot.descriptor})
assert bytes(slot.view[:5]) == b"hello"
slot.view[-5:] = b"world"
"""
    subprocess.run([sys.executable, "-c", code], check=True, pass_fds=(slot.descriptor,))
    assert bytes(slot.view[-5:]) == b"world"


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 9 << 20])
def test_it_holds_at_least_what_was_asked(size: int) -> None:
    slot = Slot.make(size)
    slot.allocate()
    slot.prefault()
    assert size <= len(slot.view) == slot.size < size + 2 * mmap.PAGESIZE
    assert not any(slot.view[: slot.size : mmap.PAGESIZE])


def test_memory_is_taken_when_it_is_allocated_and_given_back() -> None:
    slot = Slot.make(8 << 20)
    assert slot.allocated == 0
    slot.allocate()
    assert slot.allocated == 8 << 20
    assert any("(deleted)" in name for name in descriptors_of_slots())  # unlinked


def test_it_goes_with_its_last_reference() -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("cloudgpu-slot")

    gc.collect()  # objects of earlier tests
    before, descriptors = maps(), len(descriptors_of_slots())
    slot = Slot.make(100_000)
    view = slot.view
    assert maps() == before + 1 and len(descriptors_of_slots()) > descriptors
    slot.close()
    view[0] = 1  # existing views stay valid
    del view
    gc.collect()
    assert (maps(), len(descriptors_of_slots())) == (before, descriptors)


def test_a_forked_child_does_not_have_it() -> None:
    code = """
import os
from cloudgpu.runtime.checkpoint.writer.memory_limit import available
from cloudgpu.runtime.checkpoint.writer.slots import Slot
slot = Slot.make(100_000)
view = slot.view
if (child := os.fork()) == 0:
    os._exit("cloudgpu-slot" in open("/proc/self/maps").read())
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_private_view_is_not_shared() -> None:
    slot = Slot.make(10_000)
    slot.view[:5] = b"hello"
    view = slot.private_view(5)
    view[:1] = b"j"
    assert (bytes(view), bytes(slot.view[:5])) == (b"jello", b"hello")
    assert len(slot.private_view(0)) == 0


def test_a_forked_child_keeps_what_it_has_where_the_slot_was(tmp_path: Path) -> None:
    """The slot leaves a hole in the child's memory. A new mapping may land there before the client notices the fork."""
    code = f"""
import mmap, os
size, anonymous = 64 << 20, []
os.register_at_fork(after_in_child=lambda: anonymous.extend(mmap.mmap(-1, size) for _ in range(8)))
from cloudgpu.tests.standins.staging import Training
one = Training({f"file://{tmp_path}"!r}, size=size)
one.client.slot(one.client.free_slot())  # mapped, and looked at by nobody
if (child := os.fork()) == 0:
    for memory in anonymous:
        memory[size // 2] = 1  # SIGSEGV if it was unmapped
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_memfd_a_file_stands_in() -> None:
    """memfd_create(2) may be forbidden."""
    code = """
import errno, os, sys
def forbidden(*_):
    raise OSError(errno.ENOSYS, "not here")
os.memfd_create = forbidden
from cloudgpu.runtime.checkpoint.writer.memory_limit import available
from cloudgpu.runtime.checkpoint.writer.slots import Slot
slot = Slot.make(100_000)
slot.allocate()
slot.view[:3] = b"abc"
assert os.pread(slot.descriptor, 3, 0) == b"abc"
assert os.fstat(slot.descriptor).st_nlink == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_too_little_memory_is_an_error_and_no_death() -> None:
    left = available()
    assert left
    slot = Slot(anonymous_file("too-large", left + (1 << 40)))  # allocating it would trigger the OOM killer
    with pytest.raises(OSError, match=r"Cannot allocate memory: a slot needs \d+ MiB more") as caught:
        slot.allocate()
    assert caught.value.errno == errno.ENOMEM
    assert slot.allocated == 0


def test_slots_that_are_allocated_at_once_count_each_other() -> None:
    """Each of them would fit alone. No memory is allocated here, because this machine needs it."""
    left = available()
    assert left
    first, second = (Slot(anonymous_file("one-of-two", left * 6 // 10)) for _ in range(2))
    first._claim()
    with pytest.raises(OSError, match="Cannot allocate memory: a slot needs"):
        second._claim()
    with pytest.raises(OSError, match="Cannot allocate memory"):  # the other slot's claim stays unchanged
        second.allocate()
    slots._CLAIMING.clear()
    second._claim()
    slots._CLAIMING.clear()


def test_memory_that_is_given_back_can_be_had_again() -> None:
    slot = Slot.make(3 * slots._ALLOCATE // 2)
    slot.allocate()
    assert (slot.allocated, slot.missing) == (slot.size, 0)
    slot.give_back()
    assert (slot.allocated, slot.missing) == (0, slot.size)
    slot.allocate()
    slot.view[-1] = 1
    assert slot.missing == 0


@pytest.mark.parametrize("content", [b"", b"x", bytes(3 << 20)])
def test_contents_travel(content: bytes) -> None:
    assert read_content(content_file("content", content)) == content
