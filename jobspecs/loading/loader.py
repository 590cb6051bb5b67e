"""Load job files into JobSpecs; every mistake of a file is reported at once, with line and column.

text --yaml_reader--> mapping of texts --(dialects)--> --(overrides)--> JobSpec --> names, folders
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..models import JobSpec
from .draft import LoadedSpec, Overrides, load_conversion, load_job
from .source import Source, decode, read_source
from .yaml_reader import Document, read_yaml

if TYPE_CHECKING:
    import datetime


def load_file(
    path: str | os.PathLike[str], overrides: Overrides = (), *, today: datetime.date | None = None
) -> LoadedSpec:
    """Load a job file. Raises SpecError with every mistake in it. `today`: see load_source()."""
    return load_source(read_source(path), overrides, Path(path).absolute().parent, today=today)


def load_bytes(data: bytes, name: str, overrides: Overrides = (), base: Path | None = None) -> LoadedSpec:
    """Load a job file from bytes, such as those of standard input. Raises SpecError."""
    return load_source(decode(data, name), overrides, base)


def load_text(text: str, name: str = "<string>", overrides: Overrides = (), base: Path | None = None) -> LoadedSpec:
    """Load the text of a job file; relative paths start from `base`, or the working directory. Raises SpecError."""
    return load_source(Source(name, text), overrides, base)


def load_source(
    source: Source,
    overrides: Overrides = (),
    base: Path | None = None,
    *,
    today: datetime.date | None = None,
    needs_program: bool = True,
) -> LoadedSpec:
    """Load a text that was read already; see load_text(). Raises SpecError.

    today          GPUs in another tool's file that are no longer available on this day are replaced; None: those that
                   the tables list as retired
    needs_program  False: an AI Platform file without a program loads with a warning, because gcloud takes the program
                   from the command line; `run` is then a placeholder that fails
    """
    return _load_document(read_yaml(source), overrides, base, today=today, needs_program=needs_program)


def load_with_flags(
    source: Source | None,
    flags: Mapping[str, str],
    overrides: Overrides = (),
    *,
    base: Path | None = None,
    job: str | None = None,
    today: datetime.date | None = None,
    needs_program: bool = True,
) -> LoadedSpec:
    """Load a text of any dialect, changed by gcloud's flags and by overrides. Raises SpecError.

    source   the text; None: the flags alone describe the job
    base     folder of relative paths; default: the working directory
    job      gcloud's argument JOB
    today, needs_program   see load_source()

    An override of `args` holds the arguments after `--` on the command line.
    """
    from ..dialects import detect
    from ..dialects.command_line import as_overrides, convert
    from .overrides import check_visible, parse_overrides

    for flag, text in {**flags, "JOB": job or ""}.items():
        check_visible(text, flag)
    document = None if source is None else read_yaml(source)
    content = None if document is None else document.value
    dialect = detect(content)
    if document is not None and dialect != "ai-platform":
        changed = [*as_overrides(flags, dialect, job), *parse_overrides(overrides)]
        return _load_document(document, changed, base, today=today)
    conversion, rest = convert(content, flags, overrides, base=base, job=job, today=today, needs_program=needs_program)
    return load_conversion(conversion, document=document, overrides=rest, base=base)


def _load_document(
    document: Document,
    overrides: Overrides,
    base: Path | None,
    *,
    today: datetime.date | None,
    needs_program: bool = True,
) -> LoadedSpec:
    if not document.value.keys() <= JobSpec.model_fields.keys():
        from ..dialects import detect

        if detect(document.value) is not None:
            from ..dialects.command_line import convert

            conversion, rest = convert(document.value, {}, overrides, today=today, needs_program=needs_program)
            return load_conversion(conversion, document=document, overrides=rest, base=base)
    return load_job(document, overrides, base)
