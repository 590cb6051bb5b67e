"""What a file of another tool and a command line stand for together: gcloud's flags, and overrides that act alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, Loc, SpecError
from ..loading.overrides import Override, check_seen, parse_overrides
from . import DIALECTS, Conversion, detect
from . import convert as convert_file
from .program import NO_PROGRAM

if TYPE_CHECKING:
    import datetime

    from ..loading.loader import LoadedSpec, Overrides
    from ..loading.source import Source

SHARED: dict[Loc, str] = {("resources", "region"): "--region", ("job_dir",): "--job-dir"}
"""Overrides of a job file that are flags of gcloud as well. In an AI Platform file they must act before it is
converted: the region decides which GPUs there are, and the program is told the job dir."""
_KEYS = {flag: ".".join(map(str, place)) for place, flag in SHARED.items()}


def load(
    source: Source | None,
    flags: Mapping[str, str],
    overrides: Overrides = (),
    *,
    base: Path | None = None,
    job: str | None = None,
    today: datetime.date | None = None,
    needs_program: bool = True,
) -> LoadedSpec:
    """The spec of a text of any dialect, changed by gcloud's flags and by overrides; raises SpecError.

    Without a text the flags alone describe the job. `job` is gcloud's JOB; relative paths start from `base`, or the
    working directory. An override of `args` is what follows `--` on the command line.
    `today` and `needs_program` as in load_source().
    """
    from ..loading.loader import load_conversion, load_source
    from ..loading.yaml_reader import read_yaml

    for flag, text in {**flags, "JOB": job or ""}.items():
        check_seen(text, flag)
    document = None if source is None else read_yaml(source)
    content = None if document is None else document.value
    dialect = detect(content)
    if source is not None and dialect != "ai-platform":
        return load_source(
            source, [*_as_overrides(flags, dialect, job), *parse_overrides(overrides)], base, today=today
        )
    conversion, rest = convert(content, flags, overrides, base=base, job=job, today=today, needs_program=needs_program)
    return load_conversion(conversion, document=document, overrides=rest, base=base)


def convert(
    document: Mapping[str, Any] | None,
    flags: Mapping[str, str],
    overrides: Overrides,
    *,
    base: Path | None = None,
    job: str | None = None,
    today: datetime.date | None = None,
    needs_program: bool = True,
) -> tuple[Conversion, Overrides]:
    """Convert a document of another tool to a job file; return it with the overrides that are still to be applied.

    `needs_program` as in load_source().
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


def _as_overrides(flags: Mapping[str, str], dialect: str | None, job: str | None) -> list[Override]:
    """The flags which a job file knows too; the others are refused, for they describe a trainingInput."""
    kind = DIALECTS[dialect] if dialect else "job file"
    hints = {flag: "use --set KEY=VALUE" for flag in flags if flag not in _KEYS}
    if job is not None:
        hints["--config"] = "cloudgpu submit FILE --name JOB"
    if hints:
        message = f"this flag does not go with a {kind}"
        raise SpecError([Diagnostic(flag, 0, 0, "wrong-flag", message, hint) for flag, hint in hints.items()])
    return [Override(tuple(_KEYS[flag].split(".")), text, flag) for flag, text in flags.items()]


def _split(flags: Mapping[str, str], overrides: Overrides) -> tuple[dict[str, str], list[str] | None, Overrides]:
    """Flags, arguments of the program, and the overrides which act on the converted job."""
    try:
        parsed = parse_overrides(overrides)
    except SpecError:  # reported where they are put in, together with what is wrong in the file
        return dict(flags), None, overrides
    found, user_args = dict(flags), None
    rest: list[str | Override] = []
    for override in parsed:
        flag, value = SHARED.get(override.path), override.value
        if flag and isinstance(value, str):
            found[flag] = value
        elif flag == "--region" and isinstance(value, list) and value:
            found[flag] = str(value[0])  # the first choice decides what is converted; all of them are tried
            rest.append(override)
        elif override.path == ("args",) and isinstance(value, list):
            user_args = [str(item) for item in value]
        else:
            rest.append(override)
    return found, user_args, rest
