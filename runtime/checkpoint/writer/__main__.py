"""`python -m cloudgpu.runtime.checkpoint.writer`: run the checkpoint writer."""

from __future__ import annotations

import os
import sys

from .writer import main

if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # skips the interpreter's shutdown, which a thread that hangs in a store could delay
