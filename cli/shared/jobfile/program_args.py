"""`-- ARGS`: words of a command line that are the program's, not cloudgpu's."""

from __future__ import annotations

import click

_KEY = "cloudgpu.program_args"


class ProgramArgsCommand(click.Command):
    """Takes what follows `--` away before click sees it: an argument list cannot be mistaken for a second FILE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_KEY] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]..."]


def program_args(ctx: click.Context) -> list[str] | None:
    """The words after `--`; None: there is no `--`, which is not the same as no words after it."""
    found: list[str] | None = ctx.meta.get(_KEY)
    return found
