"""Options and parameter types shared by several commands."""

from __future__ import annotations

import click


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Parameter type that parses `90s`, `30m`, `12h`, `1h30m` into seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):  # converted already
            return value
        from ...jobspecs.units import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


DURATION = DurationType()

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


class LabelType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Parameter type that parses `KEY=VALUE`."""

    name = "label"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):  # converted already
            return value
        key, equals, wanted = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r}: expected KEY=VALUE", param, ctx)
        return key, wanted


label_option = click.option(
    "--label",
    "labels",
    type=LabelType(),
    metavar="KEY=VALUE",
    multiple=True,
    help="Only jobs with this label, see `labels` in the job file; repeated: with all of them.",
)
