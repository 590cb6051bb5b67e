"""`-- ARGS`: words of a command line that belong to the program, not to cloudgpu."""

from __future__ import annotations

import click

_KEY = "cloudgpu.program_args"


class ProgramArgsCommand(click.Command):
    """Command that removes the words after `--` before click parses them, so that none is taken for a second FILE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_KEY] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]..."]


def program_args(ctx: click.Context) -> list[str] | None:
    """Return the words after `--`; None without `--`, [] for no words after it."""
    found: list[str] | None = ctx.meta.get(_KEY)
    return found
