"""Commands that also take the flags of `gcloud ai-platform jobs submit training`.

The table of flags and what they mean is jobspecs/dialects/gcloud_flags.py; --region and --job-dir, which both have, are
ours (specfile.FLAGS), and reach an AI Platform file as gcloud's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ....jobspecs.dialects.gcloud_flags import click_options, take
from .job_file_options import FLAGS
from .program_args import ProgramArgsCommand

_F = TypeVar("_F", bound=Callable[..., Any])
_TITLE = "Flags of `gcloud ai-platform jobs submit training`"


class GcloudCommand(ProgramArgsCommand):
    """Its help has two lists of options: who does not come from gcloud need not read the second."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": [], _TITLE: []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                foreign = (parameter.name or "").startswith("gcloud_")
                groups[_TITLE if foreign else "Options"].append(row)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def gcloud_options(*own: str) -> Callable[[_F], _F]:
    """Return a decorator that adds the flags of gcloud that are not ours; gcloud_flags.take() collects what is given.

    `own` names further flags that the command has itself.
    """
    return click_options(skip=[*own, *(flag.flag for flag in FLAGS)])


def take_flags(ctx: click.Context, parameters: dict[str, object], *, has_file: bool) -> dict[str, str]:
    """Return the flags of gcloud among a command's parameters; raises UsageError where nothing describes a job."""
    flags = take(parameters)
    if not has_file and not flags:
        raise click.UsageError("give a FILE, or the flags of gcloud ai-platform jobs submit training", ctx)
    return flags
