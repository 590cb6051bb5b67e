"""`cloudgpu image`: build, push and run the image in which jobs run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from ... import __version__
from ..shared.output import remark
from .containers import call, engine_option, exec_command, find_engine

_HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges", "--pids-limit=4096")
"""Flags that remove privileges no training program needs."""
_CODE, _CHECKPOINTS = "/home/trainer/code", "/home/trainer/checkpoints"
_USER = 10001
"""UID of `trainer` in the Containerfile."""
_GPU_FLAGS = {"podman": "--device=nvidia.com/gpu=all", "docker": "--gpus=all"}


@click.group()
def command() -> None:
    """Build, push and run the image in which jobs run.

    It is made of a base of your choice (Python 3.11 or newer and your framework) and cloudgpu in an environment of its
    own. Its program runs as user 10001 under an init process; nothing in it is secret.

    \b
    cloudgpu image build --base docker.io/pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime --tag registry/me/trainer:1
    cloudgpu image run registry/me/trainer:1 --code . --checkpoints ./checkpoints -- train.py --epochs 10
    cloudgpu image push registry/me/trainer:1
    """


@command.command(short_help="Build the image in which jobs run.")
@click.option("--base", required=True, help="Image to build upon; pin it by tag or, better, by digest.")
@click.option("--tag", default=f"cloudgpu-runtime:{__version__}", show_default=True, help="Name of the result.")
@click.option("--python", default="python3", show_default=True, help="Of the base: the one that has the framework.")
@click.option("--offline", is_flag=True, help="No network while building; the base must have tini.")
@click.option("--isolation", type=click.Choice(["chroot", "oci", "rootless"]), help="Of podman and buildah.")
@click.option("--context", type=click.Path(path_type=Path), help="Write what the build reads there; build nothing.")
@engine_option
def build(
    *, base: str, tag: str, python: str, offline: bool, isolation: str | None, context: Path | None, engine: str | None
) -> None:
    """Build the image: downloads the wheels it needs, then builds without asking an index again.

    \b
    cloudgpu image build --base nvcr.io/nvidia/pytorch:25.10-py3 --tag trainer:1
    cloudgpu image build --base trainer-base@sha256:… --offline
    cloudgpu image build --base trainer-base:1 --context ./image      to build it with a tool of your own
    """
    from .build import make_context, probe

    found = probe(find_engine(engine, to_run=True), base, python)
    remark(f"{base}: Python {found.python}, {found.machine}; fetching wheels")
    if context is not None:
        context.mkdir(parents=True)  # fails if it exists: it may hold other files
        make_context(context, found)
        click.echo(context)
        return
    with tempfile.TemporaryDirectory(prefix="cloudgpu-image-") as folder:
        make_context(Path(folder), found)
        arguments = {"BASE": base, "PYTHON": python, "VERSION": __version__}
        call(
            [
                find_engine(engine, to_run=False),
                "build",
                f"--tag={tag}",
                *(f"--build-arg={name}={value}" for name, value in arguments.items()),
                *(["--network=none"] if offline else []),
                *([f"--isolation={isolation}"] if isolation else []),
                f"--file={Path(folder) / 'Containerfile'}",
                folder,
            ],
            "building the image",
        )
    click.echo(tag)


@command.command()
@click.argument("image")
@click.argument("destination", required=False)
@engine_option
def push(image: str, destination: str | None, engine: str | None) -> None:
    """Push IMAGE to its registry, or to DESTINATION. Log in with the engine first; cloudgpu sees no password.

    \b
    cloudgpu image push registry/me/trainer:1
    cloudgpu image push trainer:1 registry/me/trainer:1
    cloudgpu image push trainer:1 oci-archive:trainer.tar        a file (podman, buildah)
    """
    program = find_engine(engine, to_run=False)
    if destination is None:
        call([program, "push", image], f"pushing {image}")
    elif program == "docker":
        call([program, "tag", image, destination], f"naming {image} {destination}")
        call([program, "push", destination], f"pushing {destination}")
    else:
        call([program, "push", image, destination], f"pushing {image}")


@command.command(
    context_settings={"ignore_unknown_options": True}, short_help="Run a training program in an image on this machine."
)
@click.argument("image")
@click.option("--code", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder with the program.")
@click.option("--checkpoints", type=click.Path(file_okay=False, path_type=Path), help="Folder to save into.")
@click.option("--memory", help="Limit, e.g. 8g; beyond it the program is killed, and resumes when run again.")
@click.option("--network", default="none", show_default=True, help="As the engine calls it: none, host, bridge.")
@click.option("--gpus", is_flag=True, help="Give it the GPUs of this machine.")
@click.option("--dry-run", is_flag=True, help="Print the engine's command line; run nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@engine_option
def run(
    *,
    image: str,
    code: Path | None,
    checkpoints: Path | None,
    memory: str | None,
    network: str,
    gpus: bool,
    dry_run: bool,
    arguments: tuple[str, ...],
    engine: str | None,
) -> None:
    """Run a training program in IMAGE on this machine, resumable; the exit code is the program's.

    The program sees its code read-only, its checkpoints, and nothing else of this machine; it has no right to change
    the image. Killed or stopped, it goes on from its last checkpoint when run again.

    \b
    cloudgpu image run trainer:1 --code . --checkpoints ./checkpoints -- train.py --epochs 10
    cloudgpu image run trainer:1 --code . --gpus --dry-run -- train.py
    """
    program = find_engine(engine, to_run=True)
    if not arguments:
        raise click.UsageError("What is to run? Write it after --, e.g. `-- train.py`.")
    mounts = []
    if code is not None:
        mounts.append(f"--volume={code.resolve()}:{_CODE}:ro")
    if checkpoints is not None:
        _make_folder(checkpoints)
        mounts.append(f"--volume={checkpoints.resolve()}:{_CHECKPOINTS}")
    words = [
        program,
        "run",
        "--rm",
        *_HARDENED,
        *_own_user(program),
        f"--network={network}",
        *([f"--memory={memory}", f"--memory-swap={memory}"] if memory else []),
        *([_GPU_FLAGS[program]] if gpus else []),
        *mounts,
        f"--workdir={_CODE if code else '/home/trainer'}",
        "--env=HOME=/tmp",  # for caches; all else is read-only
        f"--env=CLOUDGPU_CHECKPOINTS={_CHECKPOINTS}",
        image,
        "run",
        "--",
        *arguments,
    ]
    if dry_run:
        import shlex

        click.echo(shlex.join(words))
        return
    exec_command(words)


def _own_user(program: str) -> list[str]:
    """Return the engine's flags to run the program as the current user, so that this user owns the checkpoints. For
    root, return no flags: the program then runs as the image's user."""
    if os.getuid() == 0:
        return []
    return ["--userns=keep-id"] if program == "podman" else [f"--user={os.getuid()}:{os.getgid()}"]


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        os.chown(folder, _USER, _USER)
