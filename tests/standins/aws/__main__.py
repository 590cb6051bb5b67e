"""The stand-in as a process of its own: prints its URL, ends with its parent's end of the pipe, or a signal."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from . import Aws

parser = argparse.ArgumentParser(description="a stand-in for AWS, on the loopback")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--boot", action="store_true", help="launched machines run their user data")
given = parser.parse_args()

ended = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: ended.set())
with Aws(boot=given.boot, port=given.port) as aws:
    print(aws.url, flush=True)
    for name, value in aws.environ.items():
        print(f"export {name}={value}", file=sys.stderr)
    ended.wait()
