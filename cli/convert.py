"""`cloudgpu convert`: the job file that another tool's file, or command line, stands for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..jobspecs.dialects.gcloud_flags import click_options, take
from .errors import CommandError
from .exits import Exit
from .output import clean, remark, warning
from .program_args import ProgramArgsCommand, program_args

if TYPE_CHECKING:
    from ..jobspecs.loader import LoadedSpec
    from ..jobspecs.models import JobSpec


@click.command(cls=ProgramArgsCommand)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--to", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of the job file.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write there, not to stdout.")
@click.option("--name", help="Name of the job, gcloud's JOB.")
@click_options()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    form: str,
    output: Path | None,
    name: str | None,
    **flags: Any,  # noqa: ANN401 - click's values
) -> Exit:
    """Print the job file that FILE stands for; on stderr, what no longer exists and today's closest valid offer.

    \b
    cloudgpu convert config.yaml > job.yaml
    cloudgpu convert config.yaml --module-name trainer.task --package-path trainer -- --epochs 10
    cloudgpu convert --scale-tier basic-gpu --region us-central1 --module-name trainer.task --package-path trainer

    FILE is a config.yaml of AI Platform Training (trainingInput), a custom job of Vertex AI (workerPoolSpecs), or a job
    file, which is printed in its shortest form. The flags are those of `gcloud ai-platform jobs submit training`; they
    win over the file, and without a FILE they describe the job alone.
    """
    from ..jobspecs import job_file

    given = take(flags)
    if file is None and not given:
        raise click.UsageError("give a FILE, or the flags of gcloud ai-platform jobs submit training", ctx)
    loaded = _load(file, given, program_args(ctx), name)
    spec = _moved(loaded, output)
    text = job_file.to_text(spec, loaded.notes) if form == "yaml" else job_file.to_json(spec)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text, file)
    return _say_what_changed(loaded)


def _load(file: Path | None, flags: dict[str, str], args: list[str] | None, name: str | None) -> LoadedSpec:
    from ..jobspecs.dialects.command_line import load
    from ..jobspecs.overrides import Override

    overrides = [] if args is None else [Override(("args",), args, "-- ARGS")]
    if name is not None:
        overrides.append(Override(("name",), name, "--name"))
    return load(file, flags, overrides)


def _moved(loaded: LoadedSpec, output: Path | None) -> JobSpec:
    """The spec with its code folder named from where the job file will lie."""
    spec = loaded.spec
    if output is None or spec.code is None or Path(spec.code).is_absolute():
        return spec
    code = os.path.relpath(loaded.base / spec.code, output.absolute().parent)
    return spec.model_copy(update={"code": code})


def _write(output: Path, text: str, file: Path | None) -> None:
    if file is not None and output.exists() and output.samefile(file):
        raise CommandError(f"{output} is the file to convert", hint="choose another name", exit_code=Exit.USAGE)
    output.write_text(text, encoding="utf-8")
    remark(f"wrote {clean(str(output))}")


def _say_what_changed(loaded: LoadedSpec) -> Exit:
    """Notes, warnings, and where the job could run today."""
    for problem in loaded.warnings:
        warning(f"{problem.place}: {problem.message}")
    for note in loaded.notes:
        remark(f"note: {note}")
    if not loaded.notes:  # it was a job file already: `cloudgpu plan` shows where it can run
        return Exit.OK
    from .plan_view import refusals_text
    from .specfile import plan_spec
    from .submit import describe_offer

    plan = plan_spec(loaded)
    if plan.best is None:
        remark(refusals_text(plan))
        warning("the job file is valid, but nothing can run it")
        return Exit.IMPOSSIBLE
    remark(f"today's best offer: {describe_offer(plan.best)}")
    return Exit.OK
