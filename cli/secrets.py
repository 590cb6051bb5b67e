"""`cloudgpu secrets`: give the supervisor values of a job's secrets."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.job_argument import find_job, job_argument
from .shared.jobfile.job_file_options import secret_sources
from .shared.options import json_option
from .shared.output import echo_json


@click.group()
def command() -> None:
    """Give a job the values of its secrets again, when `status` says that it waits for them.

    \b
    cloudgpu secrets provide digits

    `submit` gives the values to the supervisor, which keeps them in its memory only. One that was started later, after
    a reboot for example, reads files again and asks for what came from variables; docs/guides/secrets.md has the rest.
    """


@command.command(short_help="Read a job's secrets here, and give them to the supervisor.")
@job_argument()
@click.option(
    "--secret",
    "secrets",
    metavar="NAME=SOURCE",
    multiple=True,
    help="Read this one from SOURCE: env:, file:, env-file:.",
)
@click.option("--env-file", type=click.Path(path_type=Path), help="Read those of the job's that a dotenv file has.")
@json_option
@click.pass_context
def provide(ctx: click.Context, /, *, job: str, secrets: tuple[str, ...], env_file: Path | None, as_json: bool) -> None:
    """Read the secrets of JOB from where `submit` read them, and give them to the supervisor.

    Secrets of a secret manager are not among them: the machines read these themselves.

    \b
    WANDB_API_KEY=… cloudgpu secrets provide digits
    cloudgpu secrets provide digits --secret HF_TOKEN=file:~/.cache/huggingface/token
    cloudgpu secrets provide digits --env-file .env
    """
    parameter = next(one for one in ctx.command.params if one.name == "secrets")
    found = find_job(job)
    changed = secret_sources(ctx, parameter, secrets) if secrets else {}
    if env_file is not None:
        changed = {**_in_file(env_file, found.row.policy.secrets.keys()), **changed}
    names = found.provide_secrets(changed)
    if as_json:
        echo_json({"id": found.id, "secrets": names})
    else:
        click.echo(f"{found.id}: given to the supervisor: {', '.join(names)}")


def _in_file(path: Path, names: Collection[str]) -> dict[str, str]:
    """Return name -> source of the secrets that a dotenv file has. Raises CommandError."""
    from ..control.errors import SourceError
    from ..control.secrets.sources import read_env_file

    try:
        variables = read_env_file(path.absolute())
    except SourceError as error:
        raise CommandError(f"--env-file: {error}", exit_code=Exit.INVALID) from error
    found = {name: f"env-file:{path.absolute()}" for name in variables if name in names}
    if not found:
        raise CommandError(f"--env-file: {path} has none of the job's secrets", exit_code=Exit.INVALID)
    return found
