"""The job file of a command, and the flags that change it: every flag becomes one override of the loader.

A flag wins over the file. `--region us-east1` is `--set resources.region=us-east1`; a flag given twice makes a list, in
order of preference. Values go to the loader as quoted YAML, so that no text of the user's gains a meaning on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..jobspecs.loader import LoadedSpec
    from ..jobspecs.plan import Plan

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "cloudgpu.overrides"


@dataclass(frozen=True, slots=True)
class _Flag:
    flag: str
    key: str
    """Of the job file."""
    metavar: str
    help: str
    many: bool = False
    """May be given several times: a list in order of preference."""


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
    """Decorator: the flags that change a job file. What is given is read by `overrides(ctx)`, in the order given."""
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
        metavar="NAME=VALUE",
        multiple=True,
        expose_value=False,
        callback=_note_env,
        help="Set an environment variable of the program.",
    )(function)
    return click.option(
        "--set",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_note_set,
        help="Set any key of the job file, e.g. --set limits.cost='5 USD'.",
    )(function)


def _noted(ctx: click.Context) -> dict[str, list[str]]:
    return ctx.meta.setdefault(_META, {"flags": [], "set": []})  # type: ignore[no-any-return]


def _note(flag: _Flag) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...] | None) -> None:
        if value is None or value == ():
            return
        plain = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        _noted(ctx)["flags"].append(f"{flag.key}={_quoted(plain)}")

    return callback


def _note_env(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE", ctx, parameter)
        _noted(ctx)["flags"].append(f"env.{name}={_quoted(text)}")


def _note_set(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for value in values:
        key, equals, _ = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE", ctx, parameter)
        _noted(ctx)["set"].append(value)


def _quoted(value: str | Sequence[str]) -> str:
    """JSON's quoted text is YAML's quoted text: the loader reads exactly these characters."""
    return json.dumps(value, ensure_ascii=False)


def overrides(ctx: click.Context, program_args: Sequence[str] | None = None) -> list[str]:
    """What the flags of this command line change: `key=value` each, --set last; `-- ARGS` replace those of the file."""
    noted = _noted(ctx)
    args = [] if program_args is None else [f"args={_quoted(list(program_args))}"]
    return [*noted["flags"], *args, *noted["set"]]


def plan_spec(loaded: LoadedSpec) -> Plan:
    """The plan of a job file on this day and, as far as it may run locally, this machine."""
    import datetime

    from ..jobspecs.planner import plan

    clouds = loaded.spec.resources.cloud
    machine = None
    if clouds is None or "local" in clouds:
        from ..provisioners.local import inspect_machine

        machine = inspect_machine()
    return plan(loaded.spec, machine=machine, today=datetime.datetime.now(datetime.UTC).date())
