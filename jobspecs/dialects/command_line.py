"""Convert a file of another tool together with a command line: with gcloud's flags and cloudgpu's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, Loc, SpecError
from ..loading.overrides import Override, parse_overrides
from . import DIALECTS, Conversion, detect
from . import convert as convert_file
from .program import NO_PROGRAM

if TYPE_CHECKING:
    import datetime

    from ..loading.draft import Overrides

SHARED: dict[Loc, str] = {("resources", "region"): "--region", ("job_dir",): "--job-dir"}
"""Overrides of a job file that are also gcloud flags. For an AI Platform file they are applied before the conversion,
because the region decides which GPUs are available, and the program gets the job dir as an argument."""
_KEYS = {flag: ".".join(map(str, place)) for place, flag in SHARED.items()}


def convert(
    document: Mapping[str, object] | None,
    flags: Mapping[str, str],
    overrides: Overrides,
    *,
    base: Path | None = None,
    job: str | None = None,
    today: datetime.date | None = None,
    needs_program: bool = True,
) -> tuple[Conversion, Overrides]:
    """Convert a document of another tool; return the conversion and the overrides to apply after it.

    `needs_program`: see load_source().
    """
    if document is not None and detect(document) != "ai-platform":
        return convert_file(document, today=today), overrides
    from .gcloud_flags import apply

    given, user_args, rest = _split(flags, overrides)
    folder = None if document is None or base is None else str(base)
    conversion = apply(document, given, user_args, job=job, folder=folder, today=today)
    if not needs_program:
        conversion.demote(NO_PROGRAM)
    return conversion, rest


def as_overrides(flags: Mapping[str, str], dialect: str | None, job: str | None) -> list[Override]:
    """Return gcloud's flags as overrides of a job file. Raises SpecError for flags without a key in job files."""
    kind = DIALECTS[dialect] if dialect else "job file"
    hints = {flag: "use --set KEY=VALUE" for flag in flags if flag not in _KEYS}
    if job is not None:
        hints["--config"] = "cloudgpu submit FILE --name JOB"
    if hints:
        message = f"this flag does not go with a {kind}"
        raise SpecError([Diagnostic(flag, 0, 0, "wrong-flag", message, hint) for flag, hint in hints.items()])
    return [Override(tuple(_KEYS[flag].split(".")), text, flag) for flag, text in flags.items()]


def _split(flags: Mapping[str, str], overrides: Overrides) -> tuple[dict[str, str], list[str] | None, Overrides]:
    """Return the flags, the program's arguments, and the remaining overrides, which apply to the converted job.

    Overrides that are also gcloud flags are added to the flags.
    """
    try:
        parsed = parse_overrides(overrides)
    except SpecError:  # reported when they are applied, together with the file's mistakes
        return dict(flags), None, overrides
    found, user_args = dict(flags), None
    rest: list[str | Override] = []
    for override in parsed:
        flag, value = SHARED.get(override.path), override.value
        if override.unless:  # a default applies to the converted job
            rest.append(override)
        elif flag and isinstance(value, str):
            found[flag] = value
        elif flag == "--region" and isinstance(value, list) and value:
            found[flag] = str(value[0])  # the first region decides the conversion; all are tried
            rest.append(override)
        elif override.path == ("args",) and isinstance(value, list):
            user_args = [str(item) for item in value]
        else:
            rest.append(override)
    return found, user_args, rest
