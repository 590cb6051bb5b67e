"""`cloudgpu convert`: convert another tool's file or command line into a job file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.jobfile.gcloud import GcloudCommand, gcloud_options, take_flags
from .shared.jobfile.job_file_options import STDIN, load_spec, overrides, plan_spec, say_remarks, spec_options
from .shared.output import clean, remark, warning

if TYPE_CHECKING:
    from ..jobspecs.loading.draft import LoadedSpec
    from ..jobspecs.models import JobSpec


@click.command(cls=GcloudCommand)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--to", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of the job file.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write there, not to stdout.")
@spec_options
@gcloud_options()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    form: str,
    output: Path | None,
    **gcloud: Any,  # the flags of gcloud_flags.FLAGS
) -> Exit:
    """Print the job file that FILE stands for; on stderr, what no longer exists and today's closest valid offer.

    \b
    cloudgpu convert config.yaml > job.yaml
    cloudgpu convert config.yaml --module-name trainer.task --package-path trainer -- --epochs 10
    cloudgpu convert --scale-tier basic-gpu --region us-central1 --module-name trainer.task --package-path trainer

    FILE is a config.yaml of AI Platform Training (trainingInput), a custom job of Vertex AI (workerPoolSpecs), or a job
    file, which is printed in its shortest form; FILE - is standard input. Flags win over the file, and without a FILE
    those of `gcloud ai-platform jobs submit training` describe the job alone.
    """
    from ..jobspecs import job_file

    flags = take_flags(ctx, gcloud, has_file=file is not None)
    loaded = load_spec(file, overrides(ctx), flags, with_defaults=False)
    spec = _moved(loaded, output)
    text = job_file.to_text(spec, loaded.notes) if form == "yaml" else job_file.to_json(spec)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text, file)
    return _say_what_changed(loaded)


def _moved(loaded: LoadedSpec, output: Path | None) -> JobSpec:
    """Return the spec with its code folder relative to the folder of `output`."""
    spec = loaded.spec
    if output is None or spec.code is None or Path(spec.code).is_absolute():
        return spec
    code = os.path.relpath(loaded.base / spec.code, output.absolute().parent)
    return spec.model_copy(update={"code": code})


def _write(output: Path, text: str, file: Path | None) -> None:
    if file is not None and str(file) != STDIN and output.exists() and output.samefile(file):
        raise CommandError(f"{output} is the file to convert", hint="choose another name", exit_code=Exit.USAGE)
    output.write_text(text, encoding="utf-8")
    remark(f"wrote {clean(str(output))}")


def _say_what_changed(loaded: LoadedSpec) -> Exit:
    """Print the notes and warnings, and today's best offer."""
    say_remarks(loaded)
    if not loaded.notes:  # already a job file: `cloudgpu plan` shows where it can run
        return Exit.OK
    from .shared.jobfile.plan_view import offer_text, refusals_text

    plan = plan_spec(loaded)
    if plan.best is None:
        click.echo(refusals_text(plan), err=True)
        warning("the job file is valid, but nothing can run it")
        return Exit.IMPOSSIBLE
    remark(f"today's best offer: {offer_text(plan.best)}")
    return Exit.OK
