"""A cloud's stand-in as a process of its own: prints its URL, ends at a signal, or with the test that started it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Running(Protocol):
    """A stand-in."""

    url: str


def main(
    description: str,
    make: Callable[[bool, int], AbstractContextManager[Running]],
    environ: Callable[[str], dict[str, str]],
) -> None:
    """The program. `make` gets whether machines boot, and the port; `environ` tells what points clients to a URL."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--boot", action="store_true", help="launched machines really boot")
    parser.add_argument("--with-parent", action="store_true", help="end as well when standard input does")
    given = parser.parse_args()

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if given.with_parent:
        threading.Thread(target=_follow_parent, args=(ended,), daemon=True).start()
    with make(given.boot, given.port) as running:
        print(running.url, flush=True)
        if not given.with_parent:
            for name, value in environ(running.url).items():
                print(f"export {name}={value}", file=sys.stderr)
        ended.wait()


def _follow_parent(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


@contextlib.contextmanager
def started(package: str, *, boot: bool) -> Iterator[str]:
    """Run the stand-in that is in this package (`cloudgpu.tests.standins.aws`); its URL.

    It ends when this process does, however that comes.
    """
    command = [sys.executable, "-m", package, "--with-parent", *(["--boot"] if boot else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, f"{package} did not start; run it by hand: {' '.join(command)}"
            yield url
        finally:
            process.stdin.close()
            process.wait(180)
