"""`cloudgpu check`: which targets can be used from this computer, and the command that mends what is missing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.options import DURATION, json_option
from .shared.output import ProgressLine, Tone, clean, columns, echo_json, remark, style

if TYPE_CHECKING:
    from ..control.check import TargetReport
    from ..provisioners.checks.results import CheckResult

_STATE_TONES: dict[str, Tone] = {"ok": "good", "warning": "warn", "error": "bad", "not set up": "faint"}
_STATE_WORDS = {
    "ok": "works",
    "warning": "works, with warnings",
    "error": "does not work",
    "not set up": "is not set up",
}
_STATUS_WIDTH, _SUBJECT_WIDTH = 8, 12
_INDENT = 2


@click.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option("--region", "regions", metavar="REGION", multiple=True, help="Check quotas and rights there.")
@click.option("--job-dir", "job_dirs", metavar="URL", multiple=True, help="Check this parent of job dirs.")
@click.option(
    "--timeout", type=DURATION, default="20s", show_default=True, help="Longest time for each target, e.g. 1m."
)
@json_option
def command(
    *, targets: tuple[str, ...], regions: tuple[str, ...], job_dirs: tuple[str, ...], timeout: float, as_json: bool
) -> Exit:
    """Show which targets can be used from this computer, and the command that mends what is missing.

    \b
    cloudgpu check
    cloudgpu check aws --region us-east-1
    cloudgpu check gcp vertex --job-dir gs://my-bucket/jobs
    cloudgpu check --json

    For each target: SDK, credentials and when they expire, network, account, enabled APIs, permissions, GPU quotas, and
    the job dir. All targets are asked at the same time. Nothing is created, changed or deleted. Without --region and
    --job-dir those of `cloudgpu config` are used, else those of infra stacks; else a usual region.

    Exit code 0: every TARGET works, perhaps with warnings; without a TARGET, at least one works. Else 6.
    """
    from ..control import check
    from ..provisioners.checks.results import CheckRequest

    chosen = _targets(targets)
    _check_options(chosen, regions, job_dirs)
    request, defaults = CheckRequest(regions, job_dirs), check.configured(Path.cwd())
    waiting = list(chosen)
    with ProgressLine() as progress:

        def show(report: TargetReport) -> None:
            waiting.remove(report.target)
            progress(f"waiting for {', '.join(waiting)}" if waiting else "")

        progress(f"checking {', '.join(chosen)}")
        reports = check.check(chosen, request, timeout, show, defaults)
    if as_json:
        echo_json({"targets": [_json(report) for report in reports]})
    else:
        _print(reports, everything=bool(targets))
    works = [report.works for report in reports]
    return Exit.OK if (all(works) if targets else any(works)) else Exit.UNAVAILABLE


def _targets(asked: Sequence[str]) -> list[str]:
    """Return the targets to check. Raises CommandError for an unknown one."""
    from ..control.check import targets_to_check
    from ..jobspecs.suggest import did_you_mean

    known = targets_to_check()
    for name in asked:
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
            raise CommandError(f"there is no target {name!r}", hint=hint, exit_code=Exit.USAGE)
    return list(dict.fromkeys(asked)) or known


def _check_options(targets: Sequence[str], regions: Sequence[str], job_dirs: Sequence[str]) -> None:
    """Refuse regions and URLs that concern none of the targets. Raises CommandError."""
    from ..control.check import unknown_regions
    from ..jobspecs.catalog.machines import regions as regions_of
    from ..jobspecs.fields import FORMS
    from ..jobspecs.suggest import did_you_mean
    from ..jobspecs.targets import info

    for region in unknown_regions(targets, regions):
        known = sorted({one for target in targets if info(target).has_tables for one in regions_of(target)})
        hint = did_you_mean(region, known) or "`cloudgpu gpus` lists regions; name one target to ask its provider"
        raise CommandError(f"--region {region}: no target has it", hint=hint, exit_code=Exit.USAGE)
    schemes = {scheme for target in targets for scheme in info(target).schemes}
    for url in job_dirs:
        scheme, _, rest = url.partition("://")
        if scheme not in schemes or not rest.strip("/") or rest.startswith("/") != (scheme == "file"):
            hint = f"write {' or '.join(form for one, form in FORMS.items() if one in schemes)}"
            raise CommandError(f"--job-dir {url}: no target can use it", hint=hint, exit_code=Exit.USAGE)


def _print(reports: Sequence[TargetReport], *, everything: bool) -> None:
    """Print the reports. A target that was not asked for and is not set up gets its first error only."""
    for report in reports:
        words = style(_STATE_WORDS[report.state], _STATE_TONES[report.state])
        click.echo(f"{style(report.target, 'title')} {words}")
        brief = report.state == "not set up" and not everything
        shown = [one for one in report.results if one.status == "error"][:1] if brief else report.results
        for one in shown:
            _print_result(one)
    usable = [report.target for report in reports if report.works]
    remark(f"usable from here: {', '.join(usable) or 'nothing'}")


def _print_result(one: CheckResult) -> None:
    """Print a result at the terminal's width, with its remedy below."""
    tone: Tone = {"ok": "good", "warning": "warn", "error": "bad"}.get(one.status, "faint")  # type: ignore[assignment]
    head = " " * _INDENT + one.status.ljust(_STATUS_WIDTH) + one.subject.replace("_", " ").ljust(_SUBJECT_WIDTH)
    lines = _wrapped(one.message, len(head))
    click.echo(head.replace(one.status, style(one.status, tone), 1) + lines[0])
    for line in lines[1:]:
        click.echo(" " * len(head) + line)
    if one.fix:
        first, *rest = _wrapped(one.fix, len(head) + 5)
        click.echo(f"{' ' * len(head)}{style('fix:', 'note')} {first}")
        for line in rest:
            click.echo(" " * (len(head) + 5) + line)


def _wrapped(text: str, indent: int) -> list[str]:
    width = max(columns() - indent, 20)
    return textwrap.wrap(clean(text), width, break_long_words=False, break_on_hyphens=False) or [""]


def _json(report: TargetReport) -> dict[str, Any]:
    return {
        "target": report.target,
        "state": report.state,
        "works": report.works,
        "seconds": round(report.seconds, 2),
        "checks": [
            {"subject": one.subject, "status": one.status, "message": one.message, "fix": one.fix, "values": one.values}
            for one in report.results
        ],
    }
