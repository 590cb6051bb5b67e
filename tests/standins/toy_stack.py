"""A stack of toy resources that exist only in memory, updated by infra/engine/automation.py in a process that may be
killed.

    with attached(toys()) as environ: …                                     # the provider, in the test's process
    python -m cloudgpu.tests.standins.toy_stack up --count 3 --size 1       # as `cloudgpu infra up` does it
    python -m cloudgpu.tests.standins.toy_stack plan                        # as `cloudgpu infra preview` does it
    python -m cloudgpu.tests.standins.toy_stack preview|down|contents

The last line of the output is the stack's contents as JSON; steps and remarks go to stderr, and errors are reported as
by every command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

from .pulumi.provider import Kind, Made, Provider

STACK = "toys"


class Shelf:
    """In-memory cloud of toys."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.made = 0
        """Number of creations."""
        self.slow_s = 0.0
        """Seconds that a creation takes, unless `hurry` is set."""
        self.hurry = threading.Event()
        self.begun = threading.Event()
        """Set when a creation begins."""


class Toy(Kind[Shelf]):
    """A resource with a size, and a shape that cannot change in place."""

    type = "toy:index:Toy"
    inputs = frozenset({"size", "shape"})
    required = frozenset({"size"})
    replaces = frozenset({"shape"})
    computed = frozenset({"arn"})

    def create(self, name: str, inputs: dict[str, Any]) -> Made:
        self.cloud.begun.set()
        self.cloud.hurry.wait(self.cloud.slow_s)
        self.cloud.made += 1
        identity = f"{name}-{self.cloud.made}"
        self.cloud.things[identity] = dict(inputs)
        return Made(identity, {"arn": f"arn:{identity}"})

    def read(self, identity: str, state: dict[str, Any]) -> dict[str, Any] | None:
        there = self.cloud.things.get(identity)
        return None if there is None else {**state, **there}

    def update(self, identity: str, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        self.cloud.things[identity] = dict(new)
        return {"arn": f"arn:{identity}"}

    def delete(self, identity: str, state: dict[str, Any]) -> None:
        self.cloud.things.pop(identity, None)


def toys() -> Provider:
    """Return a new provider with an empty shelf."""
    return Provider("toy", cloud=Shelf(), kinds=[Toy])


def _program(count: int, size: int, shape: str, *, keep: bool, secret: bool) -> Any:
    def program() -> None:
        import pulumi

        for index in range(count):
            hidden = ["arn"] if secret else None
            opts = pulumi.ResourceOptions(protect=keep and index == 0, additional_secret_outputs=hidden)
            values = {"size": size, "shape": shape, "arn": None}
            pulumi.CustomResource("toy:index:Toy", f"toy-{index}", values, opts)
        if shape == "broken":
            raise ValueError("a program with a defect")
        pulumi.export("count", count)

    return program


def main() -> int:
    os.environ["GRPC_VERBOSITY"] = "ERROR"  # as in cli/infra/stack_run.py
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--shape", default="round")
    parser.add_argument("--keep", action="store_true", help="The first one is protected.")
    parser.add_argument("--secret", action="store_true", help="The state has secrets, as some providers' has.")
    given = parser.parse_args()
    from cloudgpu.cli.shared import errors

    try:
        print(json.dumps(_do(given)))
    except BaseException as error:  # noqa: BLE001 - as in cli/main.py
        return int(errors.report(error, sys.argv))
    return 0


def _do(given: argparse.Namespace) -> Any:
    from cloudgpu.cli.infra.stack_view import step_text
    from cloudgpu.infra.engine import executable as engine
    from cloudgpu.infra.engine.automation import ProgressCallbacks, opened
    from cloudgpu.infra.engine.backend import backend_of

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = engine.find()
    if found is None:
        raise engine.missing_engine_error()
    program = _program(given.count, given.size, given.shape, keep=given.keep, secret=given.secret)
    with opened(
        STACK, backend_of(None, os.environ), found, ProgressCallbacks(lambda one: say(step_text(one)), say, say)
    ) as stack:
        if given.verb == "contents":
            return asdict(stack.contents())
        if given.verb == "down":
            return asdict(stack.down(keep_protected=given.keep))
        if given.verb == "plan":
            stack.remark_interrupted()
        else:
            stack.recover()
        changes = [f"{change.op} {change.name}" for change in stack.preview(program)]
        if given.verb in ("plan", "preview"):
            return {"changes": changes}
        return {"changes": changes, "outputs": dict(stack.up(program))}


if __name__ == "__main__":
    sys.exit(main())
