"""Fast program starts: each program is forked from a process that has imported slow modules, above all torch.

    zygote = Zygote("torch", "numpy")
    process = zygote.start([program, *arguments], environment)      # as subprocess.Popen, with pipes
    process = zygote.start(["-m", module, *arguments], environment)
    zygote.close()

The programs are normal processes, with their own main module, pipes, children and signals.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO


class Zygote:
    """Process of the interpreter `python` that imports `modules` once and forks for each program."""

    def __init__(self, *modules: str, python: str = sys.executable) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [python, "-m", "cloudgpu.tests.standins.zygote", str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
        stdin, *pipes = [os.pipe() for _ in range(4)]
        theirs = [stdin[0], *(write for _, write in pipes)]
        request = json.dumps([list(arguments), dict(environment)]).encode()
        socket.send_fds(self._ours, [request], theirs)
        for end in theirs:
            os.close(end)
        return Forked(os.fdopen(stdin[1], "w"), *(os.fdopen(read) for read, _ in pipes))

    def close(self) -> None:
        self._ours.close()
        assert self._process.wait(180) == 0


class Forked:
    """Handle of a forked program, with the part of subprocess.Popen's interface that tests use."""

    def __init__(self, stdin: IO[str], stdout: IO[str], stderr: IO[str], status: IO[str]) -> None:
        self.stdin, self.stdout, self.stderr, self._status = stdin, stdout, stderr, status
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, timeout: float = 180.0) -> tuple[str, str]:
        """Return all output until the end."""
        end = time.monotonic() + timeout
        texts = ["", ""]

        def read(number: int, pipe: IO[str]) -> None:
            texts[number] = pipe.read()

        threads = [
            threading.Thread(target=read, args=one, daemon=True) for one in enumerate((self.stdout, self.stderr))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.wait(max(0.0, end - time.monotonic()))
        return texts[0], texts[1]


def serve(requests: socket.socket) -> None:
    """Fork twice for each request: a process that waits for the program and reports its exit code, and the program
    itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the waiting processes are never reaped explicitly
    while True:
        request, pipes, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not request:
            return
        if os.fork():
            for pipe in pipes:
                os.close(pipe)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        arguments, environment = json.loads(request)
        if program := os.fork():
            *streams, status = pipes
            os.write(status, f"{program}\n".encode())
            for pipe in streams:
                os.close(pipe)
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        _become(arguments, environment, pipes)


def _become(arguments: list[str], environment: dict[str, str], pipes: Sequence[int]) -> None:
    for number, pipe in enumerate(pipes[:3]):
        os.dup2(pipe, number)
    for pipe in pipes:
        os.close(pipe)
    os.environ.clear()
    os.environ.update(environment)
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    code = 0
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
