"""Loading what a command line and its file stand for together, where the words may be those of the gcloud command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, Loc, SpecError
from ..overrides import Override, parse_overrides
from . import DIALECTS, detect
from .gcloud_flags import apply

if TYPE_CHECKING:
    from ..loader import LoadedSpec

SHARED: dict[Loc, str] = {("resources", "region"): "--region", ("job_dir",): "--job-dir"}
"""Overrides of a job file that are flags of gcloud as well. In an AI Platform file they must act before it is
converted: the region decides which GPUs there are, and the program is told the job dir."""
_KEYS = {flag: ".".join(map(str, place)) for place, flag in SHARED.items()}


def load(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, str],
    overrides: Mapping[str, object] | Sequence[str | Override] = (),
    *,
    job: str | None = None,
) -> LoadedSpec:
    """The spec of a file of any dialect, changed by gcloud's flags and by overrides; raises SpecError.

    Without a file the flags alone describe the job. An override of `args` is what follows `--` on the command line.
    """
    from ..loader import load_conversion, load_file
    from ..source import read_source
    from ..yaml_reader import read_yaml

    document = None if path is None else read_yaml(read_source(path))
    dialect = "ai-platform" if document is None else detect(document.value)
    parsed = parse_overrides(overrides)
    if path is not None and dialect != "ai-platform":
        return load_file(path, [*_as_overrides(flags, dialect), *parsed])
    flags, user_args, rest = _split(flags, parsed)
    folder = None if path is None else os.fspath(Path(path).parent)
    conversion = apply(document.value if document else None, flags, user_args, job=job, folder=folder)
    base = Path.cwd() if path is None else Path(path).absolute().parent
    found = document.diagnostics if document else []
    try:
        loaded = load_conversion(conversion, document=document, overrides=rest, base=base)
    except SpecError as error:
        raise SpecError([*found, *error.diagnostics]) from None
    if found:  # keys written twice and the like: the file was read on, but it cannot be trusted
        raise SpecError(found)
    return loaded


def _as_overrides(flags: Mapping[str, str], dialect: str | None) -> list[Override]:
    """The flags which a job file knows too; the others are refused, for they describe a trainingInput."""
    kind = DIALECTS[dialect] if dialect else "job file"
    wrong = [
        Diagnostic(flag, 0, 0, "wrong-flag", f"this flag does not go with a {kind}", "use --set KEY=VALUE")
        for flag in flags
        if flag not in _KEYS
    ]
    if wrong:
        raise SpecError(wrong)
    return [Override(tuple(_KEYS[flag].split(".")), text, flag) for flag, text in flags.items()]


def _split(
    flags: Mapping[str, str], overrides: Sequence[Override]
) -> tuple[dict[str, str], list[str] | None, list[Override]]:
    """Flags, arguments of the program, and the overrides which act on the converted job."""
    found, user_args, rest = dict(flags), None, []
    for override in overrides:
        if override.path in SHARED and isinstance(override.value, str):
            found[SHARED[override.path]] = override.value
        elif override.path == ("args",) and isinstance(override.value, list):
            user_args = [str(value) for value in override.value]
        else:
            rest.append(override)
    return found, user_args, rest
