"""`cloudgpu outputs`: list a job's outputs, or download them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.job.job_argument import find_job, job_argument
from ..shared.options import json_option
from ..shared.output import Column, echo_json, echo_table, remark, warning
from ..shared.text import ago, amount, iso, plural

if TYPE_CHECKING:
    from ...control.jobs import Job
    from ...protocol.outputs import Output
    from ..shared.job.job_at_url import JobAtUrl

_FILES = (
    Column("path", least=16),
    Column("size", right=True),
    Column("attempt", right=True, spare=1),
    Column("written", right=True, spare=2),
)


@click.command()
@job_argument()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Download.")
@click.option("--force", is_flag=True, help="With --to: replace files that are there and differ.")
@json_option
def command(job: str, paths: tuple[str, ...], folder: Path | None, force: bool, as_json: bool) -> None:
    """List JOB's outputs, those of an unfinished job so far; with --to, download them.

    \b
    cloudgpu outputs digits
    cloudgpu outputs digits --to results
    cloudgpu outputs digits model.pt plots '*.json' --to results

    PATH is a file, a folder, or a pattern in quotes; without one, everything. A download that was interrupted goes on
    when the command is given again. Files that are there already are not fetched again.

    JOB may be the URL of a job's folder, s3://bucket/jobs/digits-a1b2c3d4: then all that is needed is access to it.
    """
    if force and folder is None:
        raise click.UsageError("--force needs --to FOLDER")
    found = _find(job)
    if found.is_removed:
        raise CommandError(f"the files of {found.id} were removed", exit_code=Exit.UNAVAILABLE)
    outputs = found.outputs()
    for key in outputs.refused:
        warning(f"left out, because its name leads out of the folder: {key}")
    chosen = _choose(outputs.found, paths, found)
    if folder is None:
        _list(found, chosen, job if "://" in job else found.id, as_json=as_json)
        return
    from .download import download, download_json, download_text

    done = download(found.open_dir(), chosen, folder, force=force)
    if as_json:
        echo_json(download_json(found.id, folder, done))
    else:
        click.echo(download_text(folder, done))


def _find(job: str) -> Job | JobAtUrl:
    if "://" not in job:
        return find_job(job, newest=True)
    from ..shared.job.job_at_url import JobAtUrl

    found = JobAtUrl(job)
    if found.moved_to:
        remark(f"the job went on in another cloud: cloudgpu outputs {found.moved_to}")
    return found


def _choose(found: Sequence[Output], paths: Sequence[str], job: Job | JobAtUrl) -> list[Output]:
    """Return the outputs that one of the paths names; all without paths. Raises CommandError for a path without any."""
    if not paths:
        return list(found)
    chosen: dict[str, Output] = {}
    for path in paths:
        named = [output for output in found if _is_named(output.path, path)]
        if not named:
            from ...jobspecs.suggest import closest

            near = closest(path, [output.path for output in found])
            hint = f"did you mean {' or '.join(near)}?" if near else f"what there is: cloudgpu outputs {job.id}"
            raise CommandError(f"{job.id} has no output {path!r}", hint=hint, exit_code=Exit.USAGE)
        chosen |= {output.path: output for output in named}
    return sorted(chosen.values(), key=lambda output: output.path)


def _is_named(output: str, path: str) -> bool:
    """Return whether a PATH names an output: the file, a folder above it, or a pattern."""
    plain = path.removeprefix("./").rstrip("/")
    return output == plain or output.startswith(f"{plain}/") or fnmatch.fnmatchcase(output, plain)


def _list(job: Job | JobAtUrl, chosen: Sequence[Output], ref: str, *, as_json: bool) -> None:
    """Print the chosen outputs. `ref`: how to name the job in another command."""
    missing = job.missing_outputs()
    if as_json:
        echo_json({**_json(job, chosen), "missing": missing})
        return
    for name in missing:
        warning(f"a declared output is missing: {name}")
    if not chosen:
        so_far = "" if job.done else " yet"
        remark(f"{job.id} has no outputs{so_far}: name files in `outputs:` of the job file, or call write_output()")
        return
    echo_table(_FILES, [_row(output) for output in chosen])
    size = sum(output.entry.size for output in chosen)
    remark(f"{plural(len(chosen), 'file')}, {amount(size)}, in {job.job_dir}/outputs")
    remark(f"download them:  cloudgpu outputs {ref} --to FOLDER")


def _row(output: Output) -> list[str]:
    attempt = "-" if output.attempt is None else str(output.attempt)
    return [output.path, amount(output.entry.size), attempt, ago(output.entry.modified)]


def _json(job: Job | JobAtUrl, chosen: Sequence[Output]) -> dict[str, Any]:
    files = [
        {
            "path": output.path,
            "size": output.entry.size,
            "modified": iso(output.entry.modified),
            "attempt": output.attempt,
        }
        for output in chosen
    ]
    return {"job": job.id, "url": f"{job.job_dir}/outputs", "files": files}
