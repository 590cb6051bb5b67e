"""Process between the agent and one program, which ensures that the program never outlives the agent. Run as a script:

    python -I -S orphan_guard.py AGENT_PID COMMAND...

The kernel signals a parent's death only to its children, not to grandchildren (a shell's python, a loader's workers).
The agent therefore starts this script as its child, and the script starts the program. It adopts the program's orphans.
When the agent dies, even by SIGKILL, the script is notified and kills all of them. It ignores signals to the program's
group, and exits with the program's status. An advantage is that the agent, which has threads, runs no Python code
between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ASKED_TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_LEFT_ALONE_S = 600.0  # limit for a shell's children after SIGTERM has ended the shell
_CANNOT_RUN, _NOT_FOUND = 126, 127  # exit codes of a shell


def main() -> None:
    agent, command = int(sys.argv[1]), sys.argv[2:]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCHLD)
    if os.getppid() != agent:  # the agent died before prctl
        return
    program = os.fork()
    if program == 0:
        _become(command, before)
    _let_go_of_output()
    status = _wait_for(program, agent)
    _kill_children()
    _end_as(status)


def _prctl(option: int, value: int) -> None:
    """Call prctl(2). A no-op on systems other than Linux, where only the agent's cleanup kills the processes."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _become(command: list[str], mask: set[int]) -> None:
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's command
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN)


def _let_go_of_output() -> None:
    """Close this process's copies of the output pipes, so that the agent sees EOF when the program has closed them."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _wait_for(program: int, agent: int) -> int:
    """Wait for the program and return its status. If the agent dies, kill everything and exit."""
    status: int | None = None
    until = 0.0
    while True:
        reaped, alone = _reap()
        if program in reaped:
            status = reaped[program]
            until = time.monotonic() + _LEFT_ALONE_S
        if os.getppid() != agent:
            _kill_children()
            os._exit(1)
        # SIGTERM ends a shell immediately; its children got the signal too, and have the grace period to save.
        if status is not None and (alone or not _was_asked_to_end(status) or time.monotonic() > until):
            return status
        signal.sigtimedwait({signal.SIGCHLD}, 5.0)


def _was_asked_to_end(status: int) -> bool:
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in _ASKED_TO_END
    return os.WEXITSTATUS(status) - 128 in _ASKED_TO_END


def _reap() -> tuple[dict[int, int], bool]:
    """Return the statuses of ended children by PID, and whether no child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True
        if pid == 0:
            return ended, False
        ended[pid] = status


def _kill_children(limit_s: float = 5.0) -> None:
    """Kill children until none is left; the children of a killed process become children of this process."""
    end = time.monotonic() + limit_s
    while not _reap()[1] and time.monotonic() < end:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # has ended; of another user (setuid)
                continue
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)


def _children() -> list[int]:
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start-up time
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me:
                found.append(int(name))
    return found


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no second core dump beside the program's
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
