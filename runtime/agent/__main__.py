"""Run one node of one attempt: `python -m cloudgpu.runtime.agent`."""

from __future__ import annotations

import contextlib
import os
import sys

from .command import main

if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # does not join threads: a thread that hangs on an unreachable job dir must not keep the machine up
