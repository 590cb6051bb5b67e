"""A job file on its way to a JobSpec: what is known of it, what is wrong with it, and at which line and column.

A correct file takes the short way through: positions are looked up, and suggestions made, for mistakes only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ..diagnostics import MAX_PROBLEMS, Diagnostic, Loc, Problem, SpecError, quote, shorten
from ..models import JobSpec, Role
from .yaml_reader import Document

if TYPE_CHECKING:
    from ..dialects import Conversion
    from .overrides import Override

Overrides = Mapping[str, Any] | Sequence["str | Override"]
"""What wins over the file: `{"resources.region": "us-east1"}`, or `["resources.region=us-east1"]`."""


_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class LoadedSpec(NamedTuple):
    """A valid job file."""

    spec: JobSpec
    file: str
    """As the user named it."""
    warnings: tuple[Diagnostic, ...]
    base: Path
    """What relative paths of the job file start from: its folder."""
    notes: tuple[str, ...] = ()
    """What was made of a foreign format, for the user to know."""
    draft: Draft | None = field(default=None, repr=False, compare=False)
    """Knows where everything stands in the file."""

    def diagnose(self, problem: Problem) -> Diagnostic:
        """What was found later, such as that no offer is left, at its place in the file."""
        if self.draft is None:
            return Diagnostic(self.file, 0, 0, problem.code, problem.message, problem.hint, problem.severity)
        return self.draft.locate(problem)


def load_job(document: Document, overrides: Overrides = (), base: Path | None = None) -> LoadedSpec:
    """Load a job file that was read; raises SpecError with every mistake in it."""
    draft = Draft(document, document.value, base or Path.cwd())
    draft.diagnostics += document.diagnostics
    _refuse_foreign(draft)
    return _finish(draft, overrides)


def load_conversion(
    conversion: Conversion, *, document: Document | None, overrides: Overrides = (), base: Path | None = None
) -> LoadedSpec:
    """Load what another tool's flags, and perhaps its file, stand for; raises SpecError."""
    draft = Draft(document, conversion.job, base or Path.cwd(), conversion.origins, tuple(conversion.notes))
    draft.diagnostics += document.diagnostics if document else []
    draft.add(conversion.problems)
    draft.add(_missing_files(draft.base, conversion))
    return _finish(draft, overrides)


@dataclass(slots=True)
class Draft:
    """A job file on its way: what is known of it, and what is wrong with it."""

    document: Document | None
    job: dict[str, Any]
    base: Path
    origins: Mapping[Loc, Loc] | None = None
    """Place in `job` -> place in the document; None: `job` is the document."""
    notes: tuple[str, ...] = ()
    original: Mapping[str, Any] = field(default_factory=dict)
    """`job` before the command line changed it."""
    labels: dict[Loc, str] = field(default_factory=dict)
    """Place in `job` -> where on the command line it comes from."""
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, problems: Iterable[Problem]) -> None:
        """Problems whose places are in the document (or, as ("--flag",), on the command line)."""
        self.diagnostics += map(self._at, problems)

    def add_in_job(self, problems: Iterable[Problem]) -> None:
        """Problems whose places are in `job`."""
        self.diagnostics += map(self.locate, problems)

    def locate(self, problem: Problem) -> Diagnostic:
        """A problem whose place is in `job`."""
        label = _nearest(self.labels, problem.loc) or self._maker(problem.loc)
        if label is not None:
            return Diagnostic(label, 0, 0, problem.code, problem.message, problem.hint, problem.severity)
        return self._at(problem, problem.loc if self.origins is None else _nearest(self.origins, problem.loc) or ())

    def _maker(self, loc: Loc) -> str | None:
        """Where on the command line a mapping was made which the file does not have."""
        made = (label for path, label in self.labels.items() if path[: len(loc)] == loc)
        return next(made, None) if loc and not _exists(self.original, loc) else None

    def result(self) -> list[Diagnostic]:
        """Everything found, in the order of the file."""
        found = self.diagnostics
        if self.origins is not None and self.wrong:  # what is gone is replaced once the rest is right
            found = [one for one in found if not one.code.startswith("retired-")]
        if self.origins is not None:
            # What the conversion found wrong with a value is not said again of what it became.
            found = list({(one.place, one.code): one for one in reversed(found)}.values())[::-1]
        return sorted(found, key=lambda one: (one.line == 0, one.line, one.column))[:MAX_PROBLEMS]

    @property
    def wrong(self) -> bool:
        return any(found.severity == "error" for found in self.diagnostics)

    def _at(self, problem: Problem, loc: Loc | None = None) -> Diagnostic:
        loc = problem.loc if loc is None else loc
        if self.document is None or (loc and str(loc[0]).startswith("--")):
            name = str(loc[0]) if loc else "command line"
            return Diagnostic(name, 0, 0, problem.code, problem.message, problem.hint, problem.severity)
        line, column = self.document.position(loc, of_key=problem.in_key)
        warning = problem.severity == "warning"
        return self.document.source.at(line, column, problem.code, problem.message, problem.hint, warning=warning)


def _nearest(places: Mapping[Loc, object], loc: Loc) -> Any:  # a value of the mapping
    """What is said of a place, or of the nearest place around it."""
    for length in range(len(loc), -1, -1):
        if loc[:length] in places:
            return places[loc[:length]]
    return None


def _exists(value: object, loc: Loc) -> bool:  # a value of the document
    for step in loc:
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True


def _finish(draft: Draft, overrides: Overrides) -> LoadedSpec:
    if overrides:
        _override(draft, overrides)
    spec = _validate(draft)
    _check_code(draft)
    found = draft.result() if draft.diagnostics else []
    if spec is None or draft.wrong:
        raise SpecError(found)
    name = draft.document.source.name if draft.document else "command line"
    return LoadedSpec(spec, name, tuple(found), draft.base, draft.notes, draft)


def _override(draft: Draft, overrides: Overrides) -> None:
    from .overrides import apply_overrides, parse_overrides

    try:
        parsed = parse_overrides(overrides)
        draft.original = draft.job
        draft.job = apply_overrides(draft.job, parsed)
    except SpecError as error:
        raise SpecError([*draft.result(), *error.diagnostics]) from None
    draft.labels.update((override.path, override.label) for override in parsed)


@cache
def build_models() -> None:
    """Build the validators, put off until now, without asking every installed distribution for plug-ins of Pydantic's.

    That would take longer than reading a job file, and none has a say in it. Programs' own models are not concerned.
    """
    before = os.environ.get(_NO_PLUGINS)
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        JobSpec.model_rebuild()
        Role.model_rebuild()
    finally:
        if before is None:
            del os.environ[_NO_PLUGINS]
        else:
            os.environ[_NO_PLUGINS] = before


def _validate(draft: Draft) -> JobSpec | None:
    """The spec, if its shape is right; names are checked as far as they can be read in any case."""
    from ..rules.compatibility import check_names

    build_models()
    try:
        spec = JobSpec.model_validate(draft.job)
    except ValidationError as error:
        from .more_errors import problems_of

        draft.add_in_job(problems_of(error, draft.job, check_names))
        return None
    draft.add_in_job(check_names(spec))
    return spec


def _refuse_foreign(draft: Draft) -> None:
    """Report a file of a tool that is not read; raises SpecError where nothing else in it is worth reporting."""
    if draft.job.keys() <= JobSpec.model_fields.keys() and "accelerators" not in (draft.job.get("resources") or ()):
        return
    from ..dialects.foreign_files import recognise

    found = recognise(draft.job)
    if found is not None:
        problem, alone = found
        draft.add([problem])
        if alone:
            raise SpecError(draft.result())


def _missing_files(base: Path, conversion: Conversion) -> Iterator[Problem]:
    """Yield the packages of another tool's job that are not there."""
    for path, loc in conversion.files:
        if not (base / path).exists():
            message = f"there is no {quote(path)}"
            yield Problem(loc, "missing-code", message, f"looked for {shorten(os.path.normpath(base / path), 300)}")


def _check_code(draft: Draft) -> None:
    """The folder to ship must be there, and be no more than a project."""
    code = draft.job.get("code", ".")
    if not isinstance(code, str) or not code or "\0" in code:
        return
    folder = os.path.normpath(os.path.join(draft.base, code))  # noqa: PTH118 - every load passes here
    shown = shorten(folder, 300)
    try:
        found = os.stat(folder)  # noqa: PTH116
    except OSError:
        hint = "~ is not expanded here: write the path" if code.startswith("~") else f"looked for {shown}"
        draft.add_in_job([Problem(("code",), "missing-code", "there is no such folder", hint)])
        return
    if not stat.S_ISDIR(found.st_mode):
        draft.add_in_job([Problem(("code",), "missing-code", "this is a file, not a folder", f"looked for {shown}")])
    elif (found.st_dev, found.st_ino) in _wide_folders(os.path.expanduser("~")):  # noqa: PTH111
        message = f"this would ship the whole folder {shown}"
        hint = "move the project into a folder of its own"
        draft.add_in_job([Problem(("code",), "code-too-wide", message, hint)])


@cache
def _wide_folders(home: str) -> frozenset[tuple[int, int]]:
    """Device and inode of the home folder and of everything above it: the same by whatever link one gets there."""
    wide = set()
    real = Path(os.path.realpath(home))
    for folder in (real, *real.parents):
        with contextlib.suppress(OSError):
            found = folder.stat()
            wide.add((found.st_dev, found.st_ino))
    return frozenset(wide)
