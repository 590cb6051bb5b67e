"""The checkpoint writer and its client, in real processes: staged data is never lost, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import local_url
from cloudgpu.runtime.checkpoint.errors import FencedError
from cloudgpu.runtime.checkpoint.format.manifest import manifest_file
from cloudgpu.runtime.checkpoint.writer.client import finish_earlier
from cloudgpu.runtime.checkpoint.writer.protocol import (
    ClosedError,
    SaveResult,
    close_all,
    is_listened_to,
    own_addresses,
    receive,
    send,
    wait_until_durable,
)
from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.staging import (
    Training,
    content,
    open_store,
    start,
    verified_steps,
    verify,
    writers,
)

MB = 1 << 20


def until(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


@contextlib.contextmanager
def training(folder: Path, **options: int) -> Iterator[Training]:
    """Yield a training, which is closed at the end; if it has a dedicated writer, that has then ended."""
    addresses = own_addresses(local_url(folder), "checkpoints", options.get("rank", 0))

    def listened_to() -> set[bytes]:
        return set(filter(is_listened_to, addresses))

    before = listened_to()
    one = Training(local_url(folder), **options)
    try:
        yield one
    finally:
        with contextlib.suppress(ValueError):
            one.client.close()
        until(lambda: listened_to() <= before)


@contextlib.contextmanager
def node_writer(path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the agent's writer, which clients find by CLOUDGPU_WRITER."""
    command = [sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(path), *options]
    process = subprocess.Popen(command)
    until(path.exists)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def writer_of(one: Training) -> int:
    link = one.client._link
    assert link and link.process
    return link.process.pid


def other_writer(one: Training, pid: int) -> bool:
    return one.client._link is not None and writer_of(one) != pid


# Saves


def test_saves_are_committed_verified_and_kept(tmp_path: Path) -> None:
    with training(tmp_path, size=20 * MB + 7) as one:
        for step in range(5):
            begun = time.monotonic()
            result = one.save(step, keep=2)
            assert (result.written, result.committed, result.error, result.fenced) == (True, True, None, False)
            assert 0 < result.seconds <= time.monotonic() - begun
        assert finish_earlier(one.store, 0, 60)  # retention runs after the result is reported
        assert verified_steps(one.store) == [4, 3]
        folders = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert folders == {str(one.name(4)), str(one.name(3))}
        assert not one.store.read_commit(one.name(4)).finished
        assert one.save(5, finished=True).committed
        assert one.store.read_commit(one.name(5)).finished


def test_an_empty_state_and_one_of_another_size(tmp_path: Path) -> None:
    with training(tmp_path, size=0) as one:
        assert one.save(1).committed
        for step, size in enumerate([1, 5 * MB, 100, 9 * MB], 2):
            one.size = size
            one.client.reserve(size)
            assert one.save(step).committed
            verify(one.store, one.name(step))


def test_both_slots_are_used_and_the_newest_content_survives_longest(tmp_path: Path) -> None:
    with training(tmp_path) as one:
        slots = []
        for step in range(4):
            slots.append(one.client.free_slot())
            one.save(step)
        assert slots in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_without_memory_for_a_second_slot_one_is_used(tmp_path: Path) -> None:
    with training(tmp_path) as one:
        assert one.save(0).committed
        until(lambda: (one.client.poll(), all(place.ready for place in one.client._places))[1])
        place = one.client._places[1]
        place.ready = False
        place.refuse()  # as when the writer reports that there is no memory
        assert place.slot
        assert place.slot.allocated == 0
        for step in range(1, 4):
            assert one.client.free_slot() == 0
            assert one.save(step).committed
        assert one.stage(4)
        assert one.stage(5)  # both at once: the allocation is retried, and there is memory now
        assert [result.committed for result in one.client.wait(180)] == [True, True]
        assert all(place.ready for place in one.client._places)


def test_ranks_are_committed_by_the_first(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(training(tmp_path, rank=rank, world=3, size=MB)) for rank in range(3)]
        for step in range(3):
            for one in ranks:
                one.stage(step)
            results = [one.client.wait(180)[0] for one in ranks]
            assert [result.error for result in results] == [None] * 3
            assert [result.committed for result in results] == [True, False, False]
            assert all(result.written for result in results)
        assert verified_steps(ranks[0].store) == [2, 1, 0]


def test_a_save_that_another_rank_cannot_complete_is_abandoned(tmp_path: Path) -> None:
    with training(tmp_path, world=2) as one:
        name = one.stage(1)
        assert name
        until(lambda: one.store.ranks_written(name) == {0})
        assert one.client.poll() == []
        one.client.abandon(name)
        (result,) = one.client.wait(180)
        assert (result.written, result.committed) == (True, False)
        assert "another rank" in (result.error or "")
        assert one.store.names() == []


def test_a_later_complete_save_supersedes(tmp_path: Path) -> None:
    with training(tmp_path, world=2) as one, training(tmp_path, rank=1, world=2) as two:
        one.stage(1)  # the other rank never stages it
        one.stage(2)
        assert two.save(2).written
        results = {result.name.step: result for result in one.client.wait(180)}
        assert results[2].committed
        assert "superseded" in (results[1].error or "")
        assert verified_steps(one.store) == [2]
        assert finish_earlier(one.store, 0, 60)
        assert [name.step for name in one.store.names()] == [2]


def test_a_superseded_training_is_fenced(tmp_path: Path) -> None:
    with training(tmp_path) as zombie:
        zombie.store.claim(1)
        assert zombie.save(10).committed
        assert zombie.store.claim(None) == 2
        result = zombie.save(11)
        assert (result.committed, result.fenced) == (False, True)
        assert "attempt 2 has taken over" in (result.error or "")
        assert [name.step for name in zombie.store.names()] == [10]
        with training(tmp_path, attempt=2) as newer:
            assert newer.save(5, keep=1).committed
            assert finish_earlier(newer.store, 0, 60)
            assert verified_steps(newer.store) == [5]
        with pytest.raises(FencedError):
            zombie.store.check_fence(1)


def test_the_writer_gives_way_to_the_training(tmp_path: Path) -> None:
    with training(tmp_path) as one:
        assert one.save(0).committed
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, writer_of(one)) == min(own + 10, 19)


# Killed processes


def test_a_killed_writer_is_replaced_and_nothing_staged_is_lost(tmp_path: Path) -> None:
    with training(tmp_path, size=8 * MB) as one:
        assert one.save(0).committed
        for step in (1, 2):
            name = one.stage(step)
            os.kill(writer_of(one), signal.SIGKILL)
            (result,) = one.client.wait(180)
            assert (result.name, result.committed, result.error) == (name, True, None)
        assert verified_steps(one.store)[0] == 2


def test_a_killed_writer_is_noticed_without_a_save(tmp_path: Path) -> None:
    with training(tmp_path) as one:
        one.save(0)
        first = writer_of(one)
        os.kill(first, signal.SIGKILL)
        until(lambda: one.client.poll() == [] and other_writer(one, first))
        assert one.save(1).committed


def test_a_save_that_kills_every_writer_fails(tmp_path: Path) -> None:
    with training(tmp_path, world=2) as one:  # the save cannot end without the other rank
        one.stage(1)
        deaths = 0
        results: list[SaveResult] = []
        while not results:
            pid = writer_of(one) if one.client._link else 0
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    deaths += 1
            while not results and not other_writer(one, pid):
                results += one.client.poll()
        assert deaths == 3
        assert not results[0].committed
        assert "ended by signal 9" in (results[0].error or "")


def test_an_abandoned_save_stays_so_for_the_next_writer(tmp_path: Path) -> None:
    with training(tmp_path, world=2) as one:
        name = one.stage(1)
        assert name
        until(lambda: one.store.ranks_written(name) == {0})
        pid = writer_of(one)
        os.kill(pid, signal.SIGSTOP)  # it does not receive the message
        one.client.abandon(name)
        os.kill(pid, signal.SIGKILL)
        (result,) = one.client.wait(180)
        assert "another rank" in (result.error or "")
        assert one.store.names() == []


def test_too_many_open_files_fail_a_save_and_no_more(tmp_path: Path) -> None:
    """The training continues, and the next save finds both slots free."""
    code = f"""
import os, resource
from cloudgpu.tests.standins.staging import Training
one = Training({local_url(tmp_path)!r})
assert one.save(1).committed
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for room in range(2):
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, hard))
    result = one.save(10 + room)
    assert "Too many open files" in result.error, result
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for step in range(20, 23):
    assert one.save(step).committed
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_messages_of_a_peer_that_has_ended_are_received() -> None:
    """Linux reports ECONNRESET before data that is still unread, which may contain the last save."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            for number in range(3):
                send(theirs, {"op": "save", "number": number}, [ours.fileno()])
            send(ours, {"op": "ready"})
        for number in range(3):
            received = receive(ours)
            assert received is not None
            assert received[0]["number"] == number
            close_all(received[1])
        with pytest.raises(ClosedError):
            receive(ours)


def test_data_staged_by_a_killed_trainer_is_committed(tmp_path: Path) -> None:
    url = local_url(tmp_path)
    before = writers()
    process = start(url, 0, 1, 1, 30 * MB)
    assert process.stdout
    line = next(line for line in process.stdout if line.startswith("staged"))
    process.kill()
    process.wait()
    assert line == "staged 0\n"
    store = open_store(url)
    assert finish_earlier(store, 0, 60)
    assert verified_steps(store) == [0]
    until(lambda: writers() <= before)


def test_data_staged_by_killed_ranks_is_committed(tmp_path: Path) -> None:
    url = local_url(tmp_path)
    processes = [start(url, rank, 2, 3, 5 * MB, env={"LOCAL_WORLD_SIZE": "2"}) for rank in range(2)]
    store = open_store(url)
    for process in processes:
        assert process.stdout
        assert any(line.startswith("staged") for line in process.stdout)
    for process in processes:
        process.kill()
        process.wait()
    assert all(finish_earlier(store, rank, 60) for rank in range(2))
    assert verified_steps(store)


@pytest.mark.parametrize("whose", ["node", "own"])
def test_a_part_that_was_never_staged_is_not_waited_for(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks share a machine; one has staged its part and is killed, the other never staged: the next start does not
    wait."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    path, url = tmp_path / "writer", local_url(tmp_path)
    with contextlib.ExitStack() as stack:
        if whose == "node":
            monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
            stack.enter_context(node_writer(path))
        processes = [start(url, rank, 2, steps, MB) for rank, steps in ((0, 1), (1, 0))]
        assert processes[1].wait(180) == 0
        assert processes[0].stdout
        assert any(line.startswith("staged") for line in processes[0].stdout)
        processes[0].kill()
        processes[0].wait()
        begun = time.monotonic()
        assert finish_earlier(open_store(url), 0, 240)
        assert time.monotonic() - begun < 120
        assert open_store(url).names() == []


def kill_rounds(folder: Path, rounds: int, choose: random.Random, env: dict[str, str] | None = None) -> None:
    url, store, steps = local_url(folder), open_store(local_url(folder)), 10_000
    staged, committed = -1, -1
    for number in range(rounds):
        process = start(url, 0, 1, steps, choose.choice([1000, 3 * MB, 17 * MB]), env=env)
        kind = ("trainer", "writer", "both")[number % 3]
        lines: list[str] = []
        assert process.stdout
        reader = threading.Thread(target=lambda out=process.stdout, lines=lines: lines.extend(out), daemon=True)
        reader.start()
        until(lambda lines=lines: any(line.startswith("staged") for line in lines))  # type: ignore[misc]
        time.sleep(choose.random() * 0.2)
        own = {pid for pid in writers() if _parent(pid) == process.pid}
        if kind != "trainer":
            for pid in own:
                os.kill(pid, signal.SIGKILL)
        if kind == "writer":
            time.sleep(choose.random() * 0.3)
        process.kill()
        process.wait()
        reader.join()
        assert not any(line.startswith("failed") for line in lines), lines
        reported = [line.split() for line in lines]
        staged = max([int(words[1]) for words in reported if words[0] == "staged"], default=-1)
        committed = max([int(words[1]) for words in reported if words[0] == "committed"], default=committed)
        assert finish_earlier(store, 0, 60)
        found = verified_steps(store)
        assert len(found) <= 4  # KEEP, and one that was committed just before a kill, without retention
        assert [-1, *found[:1]][-1] >= committed
        if kind == "trainer":
            assert staged <= found[0] <= staged + 1  # one may be staged that the killed process has not printed


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize("seed", range(40 if LONG else 1))
def test_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    kill_rounds(tmp_path, 25 if LONG else 6, random.Random(seed))


# The node's writer


def test_the_nodes_writer_serves_all_ranks_and_ends_on_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("long" * 40) / "writer"  # longer than a socket address may be
    path.parent.mkdir()
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    before = writers()
    with node_writer(path) as process:
        assert path.stat().st_mode & 0o777 == 0o600
        with training(tmp_path, world=2) as one, training(tmp_path, rank=1, world=2) as two:
            for step in range(3):
                one.stage(step)
                two.stage(step)
                assert two.client.wait(180)[0].written
                assert one.client.wait(180)[0].committed
            assert writers() - before == {process.pid}  # no rank has started a separate writer
            assert wait_until_durable(str(path), 60)
            process.terminate()
            one.stage(3)  # a trainer may save on the same signal
            two.stage(3)
            assert two.client.wait(180)[0].written
            assert one.client.wait(180)[0].committed
            assert process.poll() is None
            one.client.close()
            two.client.close()
            assert process.wait(180) == 0
        assert not path.exists()
    assert verified_steps(one.store)[0] == 3
    assert wait_until_durable(str(path), 60)  # no writer, so nothing is staged


def test_training_begins_when_the_node_writer_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training waits for the node's writer; otherwise data staged by a program that dies at once would be lost."""
    path = tmp_path / "writer"
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    code = """
import os, signal
import numpy as np
from cloudgpu.runtime import Checkpointer
class Box:
    def __init__(self): self.data = np.zeros(100)
    def state_dict(self): return {"data": self.data}
    def load_state_dict(self, state): self.data[:] = state["data"]
box = Box()
ckpt = Checkpointer(box=box, every=1, folder="there")
print("made", flush=True)
for step in ckpt.steps(10):
    box.data[:] = step
    if step == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert program.stdout
    assert program.stdout.readline() == "made\n"
    time.sleep(0.5)
    with node_writer(path):
        assert program.wait(180) == -signal.SIGKILL
        assert wait_until_durable(str(path), 60)
    assert [path.parent.name[:8] for path in tmp_path.glob("there/*/COMMIT.json")] == ["00000001"]


def test_a_new_process_restores_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "writer"
    url = local_url(tmp_path)
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    with node_writer(path):
        process = start(url, 0, 1, 1000, 9 * MB)
        assert process.stdout
        next(line for line in process.stdout if line.startswith("committed"))
        process.kill()
        process.wait()
        store = open_store(url)
        assert finish_earlier(store, 0, 60)
        name = store.committed()[0]
        with training(tmp_path, attempt=2, size=9 * MB) as one:
            assert one.client.drain(60)
            found = one.client.cached(name)
            assert found is not None
            assert found[0] == store.get(name, manifest_file(0))
            assert bytes(found[1]) == content(name.step, 0, 9 * MB)
            assert one.client.cached(store.committed()[1]) is None
            assert one.client.cached(one.name(77)) is None
            del found
            assert one.save(name.step + 1).committed
            assert one.client.cached(name) is None  # its memory was released
        with training(tmp_path, rank=1, world=2) as other:
            assert other.client.cached(name) is None


def test_memory_of_ranks_that_are_no_more_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "writer"
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    with node_writer(path) as process:
        with training(tmp_path, world=2) as one, training(tmp_path, rank=1, world=2) as two:
            one.stage(1)
            assert two.save(1).written
            assert one.client.wait(180)[0].committed
        until(lambda: resources(process.pid)["slots"] == 2)  # each rank's newest part
        with training(tmp_path, attempt=2) as alone:
            assert alone.save(2).committed
            assert alone.save(3).committed
            # The rank may not have its second slot yet; no slot may be left of the other rank.
            until(lambda: resources(process.pid)["slots"] <= 2, 180)


def test_a_dead_node_writer_is_waited_for_and_given_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "writer"
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    before = writers()
    with node_writer(path) as first, training(tmp_path, size=5 * MB) as one:
        assert one.save(0).committed
        first.kill()
        first.wait()
        one.stage(1)
        assert one.client.poll() == []
        with node_writer(path) as second:
            assert one.client.wait(180)[0].committed
            assert writers() - before == {second.pid}
            assert one.save(2).committed
    assert verified_steps(one.store) == [2, 1, 0]


def test_a_node_writer_that_does_not_come_back_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_WRITER", str(tmp_path / "nobody"))
    monkeypatch.setattr("cloudgpu.runtime.checkpoint.writer.link.AGENT_RESTART_TIMEOUT_S", 0.3)
    with training(tmp_path) as one:
        assert one.save(1).committed


def test_the_nodes_writer_ends_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "writer"
    code = f"""
import os, subprocess, sys, time
writer = [sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", {str(path)!r}]
subprocess.Popen([*writer, "--parent", str(os.getpid())])
time.sleep(600)
"""
    before = writers()
    agent = subprocess.Popen([sys.executable, "-c", code])
    until(path.exists)
    agent.kill()
    agent.wait()
    until(lambda: writers() <= before)
    assert not path.exists()


def test_a_writer_that_is_late_to_end_leaves_its_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "writer"
    with node_writer(path) as first:
        inode = path.stat().st_ino
        command = [sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(path)]
        second = subprocess.Popen(command)
        until(lambda: path.stat().st_ino != inode)
        first.terminate()
        assert first.wait(180) == 0
        assert is_listened_to(str(path))
        second.terminate()
        assert second.wait(180) == 0
        assert not path.exists()


def test_a_writer_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Any process can take an abstract address first; here it is one that never answers."""
    if os.getuid():
        pytest.skip("NOT TESTED: only root can be another user as well")
    url = local_url(tmp_path)
    code = f"""
import os, time
from cloudgpu.runtime.checkpoint.writer.protocol import listen_at_one_of
os.setuid(65534)
listener = listen_at_one_of([{own_addresses(url, "checkpoints", 0)[0]!r}])
print(listener is not None, flush=True)
time.sleep(600)
"""
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdout and stranger.stdout.readline() == "True\n"
        assert finish_earlier(open_store(url), 0, 1)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_writer_that_cannot_listen_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(tmp_path / "no" / "writer")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_CANTCREAT
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_nonsense_does_not_end_the_nodes_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "writer"
    monkeypatch.setenv("CLOUDGPU_WRITER", str(path))
    hello = b'{"op":"hello","version":1,"url":"file:///x","make":true,"prefix":"","rank":0,"world":1,"local":false}'
    with node_writer(path) as process, Path("/dev/null").open("rb") as null:
        files: list[int] = []
        for _ in range(2):
            for count, *packets in ((0, b"{"), (0, b"[]"), (0, b'{"op":"save"}'), (0, b'{"op":"hello"}'),
                                    (0, hello, b'{"op":"slot","slot":0}'), (2, hello, b'{"op":"slot"}'),
                                    (0, hello, b'{"op":"save","name":"x"}'), (2, hello, b'{"op":"save","name":"x"}'),
                                    (2, hello, b'{"op":"save","name":"00000001-0001-000000000000","slot":7}'),
                                    (2, hello.replace(b"file:", b"fool:")), (2, hello, hello),
                                    (2, hello.replace(b'"version":1', b'"version":99'))):  # fmt: skip
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(str(path))
                    for packet in packets:
                        socket.send_fds(connection, [packet], [null.fileno()] * count)
                    connection.settimeout(60)
                    while connection.recv(1000):
                        pass  # the writer closes the connection
            files.append(resources(process.pid)["files"])
        until(lambda: resources(process.pid)["files"] <= files[0])  # no descriptor that was sent stays open
        with training(tmp_path) as one:
            assert one.save(1).committed
        assert process.poll() is None


# Processes and their resources


def test_a_forked_worker_does_not_keep_the_writer(tmp_path: Path) -> None:
    """One worker is forked by Python, which closes inherited descriptors, and one by libc, which does not."""
    before = writers()
    code = f"""
import ctypes, os, time
from cloudgpu.tests.standins.staging import Training
one = Training({local_url(tmp_path)!r})
assert one.save(0).committed
if os.fork() == 0:
    try:
        one.client.poll()
    except ValueError:
        time.sleep(600)
elif ctypes.CDLL(None).fork() == 0:
    time.sleep(600)
one.stage(1)
print("staged", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout and process.stdout.readline() == "staged\n"
        process.kill()
        process.wait()
        until(lambda: writers() <= before)
        assert verified_steps(open_store(local_url(tmp_path))) == [1, 0]
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_the_trainers_output_ends_with_the_trainer(tmp_path: Path) -> None:
    """Reading the output to its end does not wait for a writer that still waits for another rank."""
    code = f"""
from cloudgpu.tests.standins.staging import Training
one = Training({local_url(tmp_path)!r}, world=2)
one.stage(1)
print(one.client._link.process.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    writer = int(done.stdout)
    assert writer in writers()
    os.kill(writer, signal.SIGTERM)  # schedulers send it to all processes, but the writer still has work
    os.kill(writer, signal.SIGINT)
    os.kill(writer, signal.SIGHUP)
    open_store(local_url(tmp_path)).claim(2)
    assert writer in writers()
    os.kill(writer, signal.SIGKILL)


def resources(pid: int | str) -> Counter[str]:
    """Count open files and mappings of shared slots. A busy process may have one more file open than at rest."""
    maps = Path(f"/proc/{pid}/maps").read_text().count("cloudgpu-slot")
    return Counter(files=len(list(Path(f"/proc/{pid}/fd").iterdir())), slots=maps)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Yield a folder in memory, where no write waits for a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def test_nothing_leaks(memory_folder: Path) -> None:
    with training(memory_folder) as one:
        for step in range(5):
            one.save(step)
        writer = writer_of(one)
        ours, theirs = resources("self"), resources(writer)  # the writer may be removing an old checkpoint
        for step in range(5, 65):
            if step % 10 == 0:
                one.size += 4096
                one.client.reserve(one.size)
            assert one.save(step, keep=1).committed
        until(lambda: resources("self") <= ours and resources(writer) <= theirs)
        os.kill(writer, signal.SIGKILL)
        assert one.save(300).committed
        until(lambda: resources("self") <= ours)
    for _ in range(5):
        with training(memory_folder) as one:
            one.save(400)
    until(lambda: not resources("self")["slots"])


def test_the_writer_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, cloudgpu.runtime.checkpoint.writer; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "psutil", "pydantic"} & set(done.stdout.split())
