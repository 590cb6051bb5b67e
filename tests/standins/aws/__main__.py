"""The stand-in as a process of its own: prints its URL, ends at a signal."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from . import Aws


def main() -> None:
    parser = argparse.ArgumentParser(description="a stand-in for AWS, on the loopback")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--boot", action="store_true", help="launched machines run their user data")
    parser.add_argument("--with-parent", action="store_true", help="end as well when standard input does")
    given = parser.parse_args()

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if given.with_parent:
        threading.Thread(target=_follow_parent, args=(ended,), daemon=True).start()
    with Aws(boot=given.boot, port=given.port) as aws:
        print(aws.url, flush=True)
        for name, value in aws.environ.items():
            print(f"export {name}={value}", file=sys.stderr)
        ended.wait()


def _follow_parent(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


main()
