"""A cloud's stand-in as a separate process: prints its URL; ends at a signal, or with the test that started it."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .zygote import Zygote


class Running(Protocol):
    """A running stand-in."""

    url: str


def main(
    description: str,
    make: Callable[[argparse.Namespace], AbstractContextManager[Running]],
    environ: Callable[[str], dict[str, str]],
) -> None:
    """Run the program. `make` gets `port`, `boot` and `certificate`; `environ` returns the variables that point clients
    to a URL."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--boot", action="store_true", help="launched machines really boot")
    parser.add_argument("--certificate", type=Path, help="PEM file of a certificate with its key, for TLS")
    parser.add_argument("--with-parent", action="store_true", help="end as well when standard input does")
    given = parser.parse_args()

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if given.with_parent:
        threading.Thread(target=_follow_parent, args=(ended,), daemon=True).start()
    with make(given) as running:
        print(running.url, flush=True)
        if given.with_parent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nothing reads the pipe
        else:
            for name, value in environ(running.url).items():
                print(f"export {name}={value}", file=sys.stderr)
        ended.wait()


def _follow_parent(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


@contextlib.contextmanager
def started(package: str, *, boot: bool, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Run the stand-in of this package (`cloudgpu.tests.standins.aws`) in a new process; yield its URL.

    The process is forked from one with preloaded imports, which take seconds of CPU time. It ends when this process
    does, even if that is killed.
    """
    command = ["-m", package, "--with-parent", *(["--boot"] if boot else []), *arguments]
    process = _zygote(package).start(command, os.environ)
    try:
        url = process.stdout.readline().strip()
        assert url, f"{package} did not start: {process.stderr.read()}"
        yield url
    finally:
        process.stdin.close()
        process.wait(180)
        process.stdout.close()
        process.stderr.close()


@functools.cache
def _zygote(package: str) -> Zygote:
    zygote = Zygote(f"{package}.imports")
    atexit.register(zygote.close)
    return zygote
