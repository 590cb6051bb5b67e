"""Container engines (podman, docker, buildah): find and run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import click

from ..exit_codes import Exit
from ..shared.errors import CommandError


class Engine(NamedTuple):
    """Container engine, and whether it can run images."""

    name: str
    runs: bool


ENGINES = (Engine("podman", True), Engine("docker", True), Engine("buildah", False))
"""Engines in order of preference; podman comes first as it needs no daemon."""

engine_option = click.option(
    "--engine",
    type=click.Choice([engine.name for engine in ENGINES]),
    envvar="CLOUDGPU_ENGINE",
    help="Default: the first of these that is installed.",
)


def find_engine(name: str | None, *, to_run: bool) -> str:
    """Return the name of an installed engine: `name`, or else the first of ENGINES. Raises CommandError.

    to_run: require an engine that can run containers, not only build images
    """
    able = [engine.name for engine in ENGINES if engine.runs or not to_run]
    if name is not None and name not in able:
        raise CommandError(f"{name} cannot run containers", hint=f"use {' or '.join(able)}", exit_code=Exit.USAGE)
    for candidate in [name] if name else able:
        if shutil.which(candidate):
            return candidate
    wanted = name or ", ".join(able)
    raise CommandError(
        f"no container program is installed: looked for {wanted}",
        hint="apt install podman, or see podman.io",
        exit_code=Exit.UNAVAILABLE,
    )


def call(command: Sequence[str], doing: str) -> None:
    """Run a command with its output on the terminal. Raises CommandError if it fails, with `doing` in the message."""
    code = subprocess.run(command, check=False).returncode
    if code:
        raise CommandError(f"{doing} failed: {command[0]} ended with {code}", hint="see above", exit_code=Exit.FAILED)


def output_of(command: Sequence[str], doing: str) -> str:
    """Run a command and return its stdout. Raises CommandError with the last line of stderr if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1]
        raise CommandError(f"{doing} failed: {said}", exit_code=Exit.FAILED)
    return done.stdout


def exec_command(command: Sequence[str]) -> None:
    """Replace this process by the command, which then receives the signals and sets the exit code."""
    os.execvp(command[0], list(command))  # noqa: S606 - no shell is wanted
