"""Entry point of the container image and of the programs on a machine: `python -m cloudgpu.runtime COMMAND …`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand: a module with a function main(arguments) -> exit code."""

    module: str
    summary: str
    leaves_at_once: bool = False
    """True: exit by os._exit(), so that threads that hang on an unreachable job dir do not keep the machine running.
    False: exit by Python's normal shutdown, as a training program needs."""


COMMANDS = {
    "agent": Command(".agent.command", "run one node of a job; what machines are started with", leaves_at_once=True),
    "run": Command(".attach", "run a training program and make it resumable: run -- train.py --epochs 10"),
    "drill": Command(".verify.drill", "one run of a verification: what `cloudgpu verify-resume` starts"),
    "compare": Command(".verify.compare", "whether two runs of a verification agree"),
}


def usage() -> str:
    lines = [f"  {name:<8}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: python -m cloudgpu.runtime COMMAND …", "", *lines, "", "See COMMAND --help."])


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], int] = importlib.import_module(COMMANDS[name].module, __package__).main
    return run(rest)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    if len(sys.argv) > 1 and (command := COMMANDS.get(sys.argv[1])) and command.leaves_at_once:
        os._exit(code)
    sys.exit(code)
