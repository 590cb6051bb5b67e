"""The checkpoint writer: a separate process that hashes and writes the saves that trainers stage in shared memory.

    python -m cloudgpu.runtime.checkpoint.writer --socket PATH [--grace SECONDS] [--parent PID]     one per node
    python -m cloudgpu.runtime.checkpoint.writer --fd NUMBER [--listen NUMBER]       started by a trainer

It imports only the standard library, obstore and xxhash, so it starts in a tenth of a second and takes 30 MB. One
thread per rank writes. The main thread only handles messages, so that a store that hangs does not delay responses.

The node's writer, started by the agent, serves every rank of the node. It keeps the newest part that each rank has
written, so that a restarted process can restore from memory.

  start     Start it before the program, with CLOUDGPU_WRITER=PATH in the program's environment. It creates PATH, mode
            0600, in a folder of the agent, and replaces a stale one. If it dies, start it again in the same way:
            trainers reconnect, and submit their staged saves again.
  query     protocol.wait_until_durable(PATH, timeout_s) waits until all staged saves, also those of processes that have
            exited, are durable or have failed.
  end       On SIGTERM it writes the staged saves, and exits when no trainer is connected, or after --grace seconds. It
            removes PATH, and exits with 0, or with 1 if a save was not written. When its parent process (--parent)
            exits, it does the same, without a time limit.

A writer that a trainer has started exits when the trainer has exited or closed its client, and all staged saves are
committed or have failed. It ignores signals that are sent to all processes (Ctrl-C, SIGTERM by a scheduler).
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
"""Niceness of the writer: training has priority for CPU cores, which about halves the time that a save costs it. The
last save before a preemption is not slowed down, because training has stopped by then."""


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
