"""Job files to JobSpecs: every mistake of a file in one run, each at its line and column."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .diagnostics import Diagnostic, Problem, SpecError
from .models import JobSpec
from .source import Source, read_source
from .yaml_reader import Document, read_yaml


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A valid job file."""

    spec: JobSpec
    file: str
    """As the user named it."""
    warnings: tuple[Diagnostic, ...]
    base: Path
    """What relative paths of the job file start from: its folder."""
    notes: tuple[str, ...] = ()
    """What was made of a foreign format, for the user to know."""


def load_file(path: str | os.PathLike[str], overrides: Mapping[str, Any] | Sequence[str] = ()) -> LoadedSpec:
    """Load a job file; raises SpecError with every mistake in it."""
    return _load(read_source(path), overrides, Path(path).resolve().parent)


def load_text(
    text: str, name: str = "<string>", overrides: Mapping[str, Any] | Sequence[str] = (), base: Path | None = None
) -> LoadedSpec:
    """Load the text of a job file; relative paths start from `base`, or the working directory. Raises SpecError."""
    return _load(Source(name, text), overrides, base or Path.cwd())


def _load(source: Source, overrides: Mapping[str, Any] | Sequence[str], base: Path) -> LoadedSpec:
    document = read_yaml(source)
    diagnostics = document.diagnostics
    try:
        spec = JobSpec.model_validate(document.value)
    except ValidationError as error:
        problems = [Problem(e["loc"], e["type"], e["msg"]) for e in error.errors(include_url=False)]
        raise SpecError([*diagnostics, *(_located(document, problem) for problem in problems)]) from None
    if diagnostics:
        raise SpecError(diagnostics)
    return LoadedSpec(spec, source.name, (), base)


def _located(document: Document, problem: Problem) -> Diagnostic:
    line, column = document.position(problem.loc, of_key=problem.in_key)
    return document.source.at(line, column, problem.code, problem.message, problem.hint)
