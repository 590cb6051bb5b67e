"""Job file of a command and the flags that change it: each flag becomes one override of the loader.

A flag wins over the file. `--region us-east1` is `--set resources.region=us-east1`; a repeated flag makes a list, in
order of preference. FILE - is standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ...exit_codes import Exit
from ..errors import CommandError
from ..hidden_values import hide
from ..output import remark, warning
from .program_args import program_args

if TYPE_CHECKING:
    from ....jobspecs.loading.draft import LoadedSpec, Overrides
    from ....jobspecs.loading.overrides import Override
    from ....jobspecs.loading.source import Source
    from ....jobspecs.models import JobSpec
    from ....jobspecs.plan import Plan

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "cloudgpu.overrides"
STDIN = "-"
STDIN_NAME = "<stdin>"


class _Flag(NamedTuple):
    flag: str
    key: str
    """Key of the job file."""
    metavar: str
    help: str
    many: bool = False
    """True if the flag may be repeated, for a list in order of preference."""


FLAGS = (
    _Flag("--name", "name", "NAME", "Name of the job."),
    _Flag("--cloud", "resources.cloud", "CLOUD", "local, aws, gcp, vertex or azure; several in order.", many=True),
    _Flag("--region", "resources.region", "REGION", "Where to run; several in order.", many=True),
    _Flag("--zone", "resources.zone", "ZONE", "Where in the region; several in order.", many=True),
    _Flag("--accelerator", "resources.accelerator", "NAME[:COUNT]", "GPUs of a machine, or none.", many=True),
    _Flag("--machine-type", "resources.machine_type", "TYPE", "The provider's machine type."),
    _Flag("--market", "resources.market", "MARKET", "on-demand, spot, …; several in order.", many=True),
    _Flag("--nodes", "resources.nodes", "N", "Number of machines."),
    _Flag("--job-dir", "job_dir", "URL", "Where the job's folder is made."),
)


def spec_options(function: _F) -> _F:
    """Add the flags that change a job file (decorator). `overrides(ctx)` reads their values."""
    for flag in reversed(FLAGS):
        function = click.option(
            flag.flag,
            metavar=flag.metavar,
            help=flag.help,
            multiple=flag.many,
            expose_value=False,
            callback=_note(flag),
        )(function)
    function = click.option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        expose_value=False,
        callback=_note_env,
        help="Set an environment variable of the program; without VALUE, to that of this shell.",
    )(function)
    function = click.option(
        "--env-file",
        metavar="FILE",
        multiple=True,
        expose_value=False,
        callback=_note_env_file,
        help="Set the variables of a dotenv file; those whose names look secret become secrets.",
    )(function)
    function = click.option(
        "--secret",
        metavar="NAME[=SOURCE]",
        multiple=True,
        expose_value=False,
        callback=_note_secret,
        help="A variable whose value is stored nowhere: this shell's, or from SOURCE, e.g. file:PATH.",
    )(function)
    return click.option(
        "--set",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_note_set,
        help="Set any key of the job file, e.g. --set limits.cost='5 USD'.",
    )(function)


@dataclass(slots=True)
class _Given:
    """Values of FLAGS, --env and --set on one command line."""

    values: dict[str, str | list[str]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """Variable -> source."""
    env_files: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)


def _given(ctx: click.Context) -> _Given:
    return ctx.meta.setdefault(_META, _Given())  # type: ignore[no-any-return]


def _note(flag: _Flag) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...] | None) -> None:
        if isinstance(value, str):
            _given(ctx).values[flag.flag] = value
        elif value:
            _given(ctx).values[flag.flag] = value[0] if len(value) == 1 else list(value)

    return callback


def _note_env(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for value in values:
        name, equals, text = value.partition("=")
        if not name:
            raise click.BadParameter(
                "expected NAME=VALUE or NAME", ctx, parameter
            )  # without the value: it may be secret
        if not equals and name not in os.environ:
            raise click.BadParameter(f"the variable {name!r} is not set in this shell: export it first", ctx, parameter)
        _given(ctx).env[name] = text if equals else os.environ[name]


def _note_secret(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    if values:
        _given(ctx).secrets |= secret_sources(ctx, parameter, values)


def secret_sources(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return name -> source of `--secret NAME[=SOURCE]`, with absolute paths. A value given by mistake is not shown."""
    from ....control.errors import SourceError
    from ....control.secrets.sources import absolute
    from ....jobspecs.secrets import name_problem, source_problem

    found: dict[str, str] = {}
    for value in values:
        name, equals, source = value.partition("=")
        if problem := name_problem(name):
            raise click.BadParameter(problem, ctx, parameter)
        if equals and (problem := source_problem(source)):
            seen = "a command line can be seen by other programs: if this was the value, change it"
            raise click.BadParameter(f"{name}: {problem}; {seen}", ctx, parameter)
        found[name] = source if equals else f"env:{name}"
    try:
        return absolute(found, Path.cwd())
    except SourceError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def _note_env_file(ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    _given(ctx).env_files += values


def _note_set(ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    _given(ctx).settings += values


def overrides(ctx: click.Context) -> list[str | Override]:
    """Return the overrides of this command line, --set last. `-- ARGS` replaces the file's args."""
    from ....jobspecs.loading.overrides import Override

    given, args = _given(ctx), program_args(ctx)
    found: list[str | Override] = [
        Override(tuple(flag.key.split(".")), given.values[flag.flag], flag.flag)
        for flag in FLAGS
        if flag.flag in given.values
    ]
    _read_env_files(given)
    hide(given.env.values())
    found += [Override(("secrets", name), source, f"--secret {name}") for name, source in given.secrets.items()]
    found += [Override(("env", name), text, f"--env {name}") for name, text in given.env.items()]
    if args is not None:
        found.append(Override(("args",), args, "-- ARGS"))
    return [*found, *given.settings]


def _read_env_files(given: _Given) -> None:
    """Add the variables of `--env-file` that no other flag sets, and print on stderr which of them are secrets. Raises
    CommandError."""
    if not given.env_files:
        return
    from ....control.errors import SourceError
    from ....control.secrets.sources import read_env_file
    from ....jobspecs.secrets import ENV_FILE, looks_secret

    for file in given.env_files:
        path = Path(file).absolute()
        try:
            variables = read_env_file(path)
        except SourceError as error:
            raise CommandError(f"--env-file: {error}", exit_code=Exit.INVALID) from error
        free = {name: value for name, value in variables.items() if name not in given.secrets}
        secret = [name for name, value in free.items() if looks_secret(name, value)]
        given.secrets |= {name: f"{ENV_FILE}:{path}" for name in secret if name not in given.env}
        given.env |= {name: value for name, value in free.items() if name not in secret and name not in given.env}
        hide(variables.values())
        stored = [name for name in free if name not in secret]
        if secret:
            remark(f"note: {file}: secrets, stored nowhere: {', '.join(secret)}")
        if stored:
            remark(f"note: {file}: in `env`, stored with the job: {', '.join(stored)}")
    given.env_files.clear()


def load_spec(
    file: str | Path | None,
    changes: Overrides,
    gcloud: Mapping[str, str] | None = None,
    job: str | None = None,
    *,
    needs_program: bool = True,
    with_defaults: bool = True,
) -> LoadedSpec:
    """Load the job of a file in any dialect, with overrides and gcloud flags. Raises SpecError, ConfigError.

    Without a file, gcloud's flags alone describe the job, and `job` is its name. `needs_program`: see load_source().
    `with_defaults`: apply the configured defaults where neither the file nor the command line says anything.
    """
    import datetime

    today = datetime.datetime.now(datetime.UTC).date()
    source = None if file is None else read(file)
    base = None if file is None or str(file) == STDIN else Path(file).absolute().parent
    if with_defaults:
        from ....jobspecs.configuration.effective import default_overrides
        from ....jobspecs.loading.overrides import parse_overrides

        defaults = default_overrides(base or Path.cwd())
        changes = [*parse_overrides(changes), *defaults] if defaults else changes
    if source is not None and not gcloud and job is None:
        from ....jobspecs.loading.loader import load_source

        loaded = load_source(source, changes, base, today=today, needs_program=needs_program)
    else:
        from ....jobspecs.loading.loader import load_with_flags

        loaded = load_with_flags(
            source, gcloud or {}, changes, base=base, job=job, today=today, needs_program=needs_program
        )
    hide_values(loaded.spec)
    return loaded


def hide_values(spec: JobSpec) -> None:
    """Mask a job's variables, and secrets of this shell, in crash reports."""
    hide(spec.env.values())
    hide(os.environ.get(source.removeprefix("env:"), "") for source in spec.secrets.values())


def read(file: str | Path) -> Source:
    """Read a file, or standard input for `-`."""
    from ....jobspecs.loading.source import MAX_BYTES, decode, read_source

    if str(file) != STDIN:
        return read_source(file)
    stdin = getattr(sys.stdin, "buffer", None)  # None if stdin is closed
    return decode(stdin.read(MAX_BYTES + 1) if stdin else b"", STDIN_NAME)


def say_remarks(loaded: LoadedSpec) -> None:
    """Print on stderr the file's warnings and the notes on its conversion."""
    for problem in loaded.warnings:
        warning(f"{problem.place}: {problem.message}")
    for note in loaded.notes:
        remark(f"note: {note}")


def say_outside_end(plan: Plan) -> None:
    """If nothing would terminate a hung machine of the best offer, print advice on stderr."""
    from ....control.submit.external_termination import advice

    said = None if plan.best is None else advice(plan.best)
    if said:
        remark(f"note: {said}")


def say_tables() -> None:
    """Print on stderr which refreshed tables the planning used, and their dates."""
    from ....jobspecs.catalog import table_overrides

    by_day: dict[str, list[str]] = {}
    for table, written in sorted(table_overrides.used().items()):
        by_day.setdefault(written, []).append(table)
    for written, names in by_day.items():
        remark(f"note: tables refreshed {written}: {', '.join(names)}")


def plan_spec(loaded: LoadedSpec) -> Plan:
    """Plan a job file for today and, if it may run locally, for this machine."""
    from ....control.submit.planning import plan_today

    return plan_today(loaded.spec)


def refuse_unreachable(loaded: LoadedSpec) -> None:
    """Raise CommandError if no requested cloud's machines can reach the job dir or an input."""
    from ....jobspecs.rules.stores import unreachable

    found = [loaded.diagnose(problem) for problem in unreachable(loaded.spec)]
    if found:
        message = "; ".join(f"{one.place}: {one.message}" for one in found)
        raise CommandError(message, hint="; ".join(dict.fromkeys(one.hint for one in found)), exit_code=Exit.IMPOSSIBLE)


def take_stacks(loaded: LoadedSpec, plan: Plan) -> tuple[LoadedSpec, Plan]:
    """Apply the infra stacks known here. A job without job_dir gets one in a stack's bucket, with a note on stderr;
    with `recover: fleet`, places without a stack are refused."""
    from ....control.submit.default_job_dir import with_job_dir
    from ....control.submit.job_group_offers import with_groups

    plan = with_groups(loaded.spec, plan)
    found, said = with_job_dir(loaded, plan)
    if said:
        remark(f"note: {said}")
    return found, with_groups(found.spec, plan)  # the bucket belongs to one stack; machines of others cannot reach it
