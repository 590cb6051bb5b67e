"""Become one run of a program, in a fork of an interpreter that has imported torch: see driver.py.

    start.py FOLDER OUTPUT ERRORS train.py …                            as `python train.py …` in FOLDER
    start.py FOLDER OUTPUT ERRORS -m cloudgpu.runtime run … -- train.py …

Standard output and standard error go to the files OUTPUT and ERRORS.
"""

from __future__ import annotations

import os
import runpy
import sys


def main(folder: str, output: str, errors: str, *words: str) -> int:
    os.setsid()
    os.chdir(folder)
    for number, path in enumerate((output, errors), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if words[0] == "-m":
        from cloudgpu.runtime.__main__ import main as run

        sys.argv = list(words[1:])
        return run(words[2:])
    sys.argv, sys.path[0] = list(words), folder
    runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
