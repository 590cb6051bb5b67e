"""`cloudgpu config`: show and change the defaults of job files and the settings of this computer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.options import json_option
from ..shared.output import Column, echo_json, echo_table, remark

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COLUMNS = (Column("key"), Column("value", least=12), Column("from", least=12))
_BUILT_IN = "built in"
_PROJECT = click.option("--project", is_flag=True, help="Change the project's pyproject.toml, not the user's file.")


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ...jobspecs.configuration.keys import all_keys

    return [CompletionItem(key) for key in all_keys() if key.startswith(incomplete)]


@click.group()
def command() -> None:
    """Show and change the defaults of your job files and the settings of this computer.

    \b
    cloudgpu config show
    cloudgpu config set job_dir.aws s3://my-bucket/jobs
    cloudgpu config set resources.region us-east-1,us-central1
    cloudgpu config set limits.price '20 USD/h' --project
    cloudgpu config unset limits.price
    cloudgpu config edit

    The user's file is config.toml in the user's configuration directory; a project has defaults in [tool.cloudgpu] of
    its pyproject.toml. The command line wins over the job file, that over the project's file, that over the user's.
    """


@command.command(short_help="List every key, its value and where that comes from.")
@click.argument("key", required=False, shell_complete=_complete)
@json_option
def show(*, key: str | None, as_json: bool) -> None:
    """List every key with its value and where the value comes from; or print the value of KEY alone.

    \b
    cloudgpu config show
    cloudgpu config show limits.price
    """
    from .values import effective

    rows = effective(Path.cwd())
    if key is not None:
        rows = [row for row in rows if row.key == key]
        if not rows:
            raise _unknown(key)
    if as_json:
        documents = [{"key": row.key, "value": row.value, "source": row.source or None} for row in rows]
        echo_json(documents if key is None else documents[0])
    elif key is not None:
        click.echo(rows[0].text)
    else:
        echo_table(_COLUMNS, [[row.key, row.text or "-", row.source or _BUILT_IN] for row in rows])


@command.command(name="set", short_help="Set a key in the user's file or the project's.")
@click.argument("key", shell_complete=_complete)
@click.argument("value")
@_PROJECT
def set_(*, key: str, value: str, project: bool) -> None:
    """Set KEY to VALUE, as a job file would have it; a list is written with commas. The value is checked first.

    \b
    cloudgpu config set resources.cloud aws,gcp
    cloudgpu config set checkpoint.every 10m
    cloudgpu config set local_price 1.50
    """
    from .editing import set_value

    remark(f"{key} is set in {set_value(key, value, project_folder=Path.cwd() if project else None)}")


@command.command(short_help="Remove a key from the user's file or the project's.")
@click.argument("key", shell_complete=_complete)
@_PROJECT
def unset(*, key: str, project: bool) -> None:
    """Remove KEY from the file, so that the next source of values applies."""
    from .editing import unset_value

    file, was_set = unset_value(key, project_folder=Path.cwd() if project else None)
    remark(f"{key} is removed from {file}" if was_set else f"{key} is not set in {file}")


@command.command(short_help="Open the user's file in an editor, and check it afterwards.")
def edit() -> Exit:
    """Open the user's file in $VISUAL or $EDITOR, and check it afterwards."""
    from ...jobspecs.configuration.files import shown
    from ...jobspecs.home import config_file
    from .editing import TEMPLATE, check_file, write

    path = config_file()
    if not path.exists():
        write(path, TEMPLATE)
    click.edit(filename=str(path))
    check_file(path)
    remark(f"{shown(path)} is valid")
    return Exit.OK


@command.command(short_help="Print the path of the user's file.")
def path() -> None:
    """Print the path of the user's file, which may not exist yet."""
    from ...jobspecs.home import config_file

    click.echo(str(config_file()))


def _unknown(key: str) -> CommandError:
    from ...jobspecs.configuration.keys import suggestion
    from ...jobspecs.diagnostics import quote

    return CommandError(f"there is no key {quote(key)}", hint=suggestion(key), exit_code=Exit.USAGE)
