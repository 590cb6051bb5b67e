"""The checkpoint writer: a separate process that hashes and writes what trainers stage in shared memory.

    python -m cloudgpu.runtime.checkpoint.writer --socket PATH [--grace SECONDS] [--parent PID]     one per node
    python -m cloudgpu.runtime.checkpoint.writer --fd NUMBER [--listen NUMBER]       started by a trainer

Standard library, obstore and xxhash only: it starts in a tenth of a second and takes 30 MB. One thread per rank writes.
The main thread only handles messages, so that a store that hangs does not delay responses.

The agent's writer serves every rank of the node, and keeps the newest part that each has written, so that a restarted
process can restore from memory.

  start     before the program, with CLOUDGPU_WRITER=PATH in the program's environment. PATH is created at once, mode
            0600, in a folder of the agent; a stale one is replaced. If the writer dies, start it again in the same way:
            trainers reconnect, and submit again what was staged.
  query     protocol.wait_until_durable(PATH, timeout_s): wait until everything staged, also by processes that have
            exited, is durable or has failed. Standard library only.
  end       SIGTERM: it writes what is staged, and exits when no trainer is connected, at the latest after --grace
            seconds. It removes PATH, and exits with 0, or with 1 if something was left unwritten. When its parent
            process (--parent) exits, it does the same, without a time limit.

A trainer's own writer exits when the trainer has exited or closed its client, and what was staged is committed or has
failed. It ignores signals that are sent to all processes (Ctrl-C, SIGTERM by a scheduler).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from .protocol import listen
from .server import Server

GRACE_S = 30.0
_NICE = 10
"""Gives training priority for CPU cores, which about halves what a save costs it. Before a machine is preempted,
training stops, so that the writer is not slowed down."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cloudgpu.runtime.checkpoint.writer")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, help="listen here for the ranks of this node")
    where.add_argument("--fd", type=int, help="serve the process at the other end of this socket, then end")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="seconds to go on after SIGTERM")
    parser.add_argument(
        "--listen", type=int, help="with --fd: a listening socket, for processes that wait until saves are durable"
    )
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="with --socket: end when this process has ended"
    )
    options = parser.parse_args(arguments)
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _die
    if options.fd is not None:
        return _serve_one(options.fd, options.listen)
    return _serve_node(options.socket, options.grace, options.parent)


def _die(mistake: threading.ExceptHookArgs) -> None:
    """Exit when a thread has failed: trainers then start another writer, which takes over the work."""
    sys.__excepthook__(mistake.exc_type, mistake.exc_value or mistake.exc_type(), mistake.exc_traceback)
    sys.stderr.flush()
    os._exit(os.EX_SOFTWARE)


def _serve_one(descriptor: int, listening: int | None) -> int:
    """Serve the process at the other end of an inherited connection."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    server = Server(lasting=False)
    server.add(socket.socket(fileno=descriptor))
    if listening is not None:
        server.listen(socket.socket(fileno=listening))
    server.run()
    return 0


def _serve_node(path: Path, grace_s: float, parent: int) -> int:
    server = Server(lasting=True)
    mask = os.umask(0o177)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        server.listen(listen(str(new)))
        ours = new.stat().st_ino
        new.replace(path)  # created by rename, so that a process that sees the path can connect
    except OSError as error:
        print(f"cloudgpu: the checkpoint writer cannot listen at {path}: {error.strerror or error}", file=sys.stderr)
        return os.EX_CANTCREAT
    finally:
        os.umask(mask)
    signal.set_wakeup_fd(server.waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace_s))
    try:
        server.watch(os.pidfd_open(parent), lambda: server.stop(float("inf")))
    except ProcessLookupError:
        server.stop(float("inf"))
    except OSError as error:
        print(f"cloudgpu: the end of process {parent} will not be noticed: {error.strerror}", file=sys.stderr)
    everything = server.run()
    with contextlib.suppress(OSError):
        if path.stat().st_ino == ours:  # not if a restarted agent's writer has replaced it
            path.unlink()
    return 0 if everything else 1
