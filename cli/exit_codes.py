"""Exit codes that scripts may rely on. docs/reference/cli.md repeats this table; a test compares the two."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INVALID = 3
    IMPOSSIBLE = 4
    STOPPED = 5
    UNAVAILABLE = 6
    INCOMPLETE = 7
    CRASH = 70
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "the command did what it was asked to; for `submit` and `wait`: the job succeeded",
    Exit.FAILED: "the job failed; for `infra preview --expect-no-changes`: something would be changed",
    Exit.USAGE: "the command line is wrong, or names a job that is not there or not in a state for it",
    Exit.INVALID: "the job file or the configuration is invalid",
    Exit.IMPOSSIBLE: "the job file is valid, but nothing can run it; for `infra` and `cluster`: a check refuses it",
    Exit.STOPPED: "the job was cancelled or stopped by one of its limits; for `wait --timeout`: it still runs",
    Exit.UNAVAILABLE: "the store, the job dir or the target cannot be used now",
    Exit.INCOMPLETE: "for `verify-resume`: all that is saved agrees, but not all that the program delivers",
    Exit.CRASH: "a defect of cloudgpu itself; the message names a file with the details",
    Exit.INTERRUPTED: "ended by Ctrl-C",
}
