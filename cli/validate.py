"""`cloudgpu validate`: list every mistake of job files, for people and for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from .exit_codes import Exit
from .shared.jobfile.gcloud import GcloudCommand, gcloud_options, take_flags
from .shared.jobfile.job_file_options import STDIN, STDIN_NAME, load_spec, overrides, spec_options

if TYPE_CHECKING:
    from ..jobspecs.diagnostics import Diagnostic
    from ..jobspecs.loading.draft import LoadedSpec, Overrides
    from ..jobspecs.plan import LocalMachine, Refusal

Format = Literal["text", "json", "sarif"]

COMMAND_LINE = "command line"
"""Name in the results of a job that only gcloud's flags describe."""


@click.command(cls=GcloudCommand)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="What to print.",
    show_default=True,
)
@spec_options
@gcloud_options("--format")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    form: Format,
    **gcloud: Any,  # the flags of gcloud_flags.FLAGS
) -> Exit:
    """Check job files: every mistake, where it is, and what to write instead.

    FILE - is standard input. Nothing is started and no cloud is asked: names are looked up in cloudgpu's own tables.
    Flags change every FILE before it is checked; without a FILE those of `gcloud ai-platform jobs submit training`
    describe a job alone. An AI Platform file may leave its program to the command line: that is a warning.

    \b
    Exit codes: 0 valid, 3 a job file is invalid, 4 valid, but nothing can run it.
    """
    if files.count(STDIN) > 1:
        raise click.UsageError("Standard input can be read once only.")
    flags = take_flags(ctx, gcloud, has_file=bool(files))
    found: list[Diagnostic] = []
    results: list[tuple[str, Exit]] = []
    for file in files or [None]:
        diagnostics, exit_code = _check(file, overrides(ctx), flags)
        found += diagnostics
        results.append((file or COMMAND_LINE, exit_code))
        if form == "text":
            _print_text(file or COMMAND_LINE, diagnostics, exit_code)
    if form != "text":
        _print_data(form, found, results)
    return _worst(results)


_ORDER = (Exit.OK, Exit.IMPOSSIBLE, Exit.INVALID)


def _worst(results: Sequence[tuple[str, Exit]]) -> Exit:
    return max((exit_code for _, exit_code in results), key=_ORDER.index)


def _check(file: str | None, changes: Overrides, flags: Mapping[str, str]) -> tuple[list[Diagnostic], Exit]:
    from ..jobspecs.diagnostics import SpecError

    try:
        loaded = load_spec(file, changes, flags, needs_program=False)
    except SpecError as error:
        return error.diagnostics, Exit.INVALID
    from ..jobspecs.rules.stores import unreachable

    stores = unreachable(loaded.spec)
    if stores:
        return [*loaded.warnings, *map(loaded.diagnose, stores)], Exit.IMPOSSIBLE
    refusals = _refusals(loaded)
    if refusals is None:
        return list(loaded.warnings), Exit.OK
    from ..jobspecs.rules.findings import problems_of

    found = [loaded.diagnose(problem) for problem in problems_of(loaded.spec, refusals)]
    rules = {diagnostic.code for diagnostic in found}
    warnings = [warning for warning in loaded.warnings if _EXPLAINED_BY.get(warning.code) not in rules]
    return [*warnings, *found], Exit.IMPOSSIBLE


_EXPLAINED_BY = {"retired-accelerator": "accelerator-retired", "retired-machine-type": "machine-type-retired"}
"""Code of a loader's warning -> planner rule whose finding replaces the warning: it adds the date of retirement and
an alternative."""


def _refusals(loaded: LoadedSpec) -> list[Refusal] | None:
    """Return the reasons why nothing can run the job; None if something can."""
    import datetime

    from ..jobspecs.models import CLOUDS
    from ..jobspecs.planner.planner import plan
    from ..jobspecs.targets import info

    today = datetime.datetime.now(datetime.UTC).date()
    refusals: list[Refusal] = []
    # One cloud that can run it is enough. Inspecting this machine takes longest, so it comes last.
    for cloud in sorted(loaded.spec.resources.cloud or CLOUDS, key=lambda name: info(name).is_here):
        machine = _this_machine() if info(cloud).is_here else None
        found = plan(loaded.spec, machine=machine, today=today, clouds=[cloud])
        if found.offers:
            return None
        refusals += found.refusals
    return refusals


def _this_machine() -> LocalMachine:
    from ..provisioners.local.provisioner import inspect_machine

    return inspect_machine()


def _print_text(file: str, diagnostics: list[Diagnostic], exit_code: Exit) -> None:
    from ..jobspecs.diagnostics import MAX_PROBLEMS
    from ..jobspecs.loading.reports import to_text
    from .shared.output import clean, paint_diagnostic

    if diagnostics:
        click.echo(to_text(diagnostics, paint_diagnostic))
    errors = sum(found.severity == "error" for found in diagnostics)
    verdict = {
        Exit.OK: "valid",
        Exit.INVALID: f"{errors} mistake{'s' * (errors != 1)}{' or more' * (errors >= MAX_PROBLEMS)}",
        Exit.IMPOSSIBLE: "valid, but nothing can run it",
    }[exit_code]
    name = STDIN_NAME if file == STDIN else clean(file).replace("\n", "\\n")
    click.echo(f"{name}: {verdict}")


def _print_data(form: Format, found: list[Diagnostic], results: Sequence[tuple[str, Exit]]) -> None:
    import json

    from .. import __version__
    from ..jobspecs.loading.reports import to_json, to_sarif

    if form == "sarif":
        value: object = to_sarif(found, __version__)
    else:
        value = {
            **_state(_worst(results)),
            "files": [file for file, _ in results],
            "results": [{"file": file, **_state(exit_code)} for file, exit_code in results],
            "diagnostics": to_json(found),
        }
    click.echo(json.dumps(value, indent=2, ensure_ascii=True))


def _state(exit_code: Exit) -> dict[str, bool]:
    """Return the validity flags of a file, or of all files."""
    return {"valid": exit_code != Exit.INVALID, "runnable": exit_code == Exit.OK}
