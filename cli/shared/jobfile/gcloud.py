"""Commands that also accept the flags of `gcloud ai-platform jobs submit training`.

jobspecs/dialects/gcloud_flags.py defines the flags. --region and --job-dir, which both programs have, are cloudgpu's
(job_file_options.FLAGS); for an AI Platform file they are passed on as gcloud's.
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
    """Command whose help lists gcloud's flags in a separate section."""

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
    """Return a decorator that adds gcloud's flags which cloudgpu lacks; gcloud_flags.take() collects their values.

    `own` names further flags that the command defines itself.
    """
    return click_options(skip=[*own, *(flag.flag for flag in FLAGS)])


def take_flags(ctx: click.Context, parameters: dict[str, object], *, has_file: bool) -> dict[str, str]:
    """Return gcloud's flags among a command's parameters. Raises UsageError if neither a file nor flags describe a
    job."""
    flags = take(parameters)
    if not has_file and not flags:
        raise click.UsageError("give a FILE, or the flags of gcloud ai-platform jobs submit training", ctx)
    return flags
