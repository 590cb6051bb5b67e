"""Validate a job file into a JobSpec and collect its mistakes with line and column.

Correct files take a fast path: positions and suggestions are computed for mistakes only.
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
from ..secrets import likely_secrets
from .yaml_reader import Document

if TYPE_CHECKING:
    from ..dialects import Conversion
    from .overrides import Override

Overrides = Mapping[str, Any] | Sequence["str | Override"]
"""Values that override the file's: `{"resources.region": "us-east1"}`, or `["resources.region=us-east1"]`."""


_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class LoadedSpec(NamedTuple):
    """Valid job file."""

    spec: JobSpec
    file: str
    """Name as given by the user."""
    warnings: tuple[Diagnostic, ...]
    base: Path
    """Folder of the job file, the base of its relative paths."""
    notes: tuple[str, ...] = ()
    """Changes made in converting a foreign format, for the user."""
    draft: Draft | None = field(default=None, repr=False, compare=False)
    """Maps problems to positions in the file."""

    def diagnose(self, problem: Problem) -> Diagnostic:
        """Return the diagnostic, with its position in the file, of a problem that was found after loading."""
        if self.draft is None:
            return Diagnostic(self.file, 0, 0, problem.code, problem.message, problem.hint, problem.severity)
        return self.draft.locate(problem)


def load_job(document: Document, overrides: Overrides = (), base: Path | None = None) -> LoadedSpec:
    """Load a job file that was read already. Raises SpecError with every mistake in it."""
    draft = Draft(document, document.value, base or Path.cwd())
    draft.diagnostics += document.diagnostics
    _refuse_foreign(draft)
    return _finish(draft, overrides)


def load_conversion(
    conversion: Conversion, *, document: Document | None, overrides: Overrides = (), base: Path | None = None
) -> LoadedSpec:
    """Load the result of converting another tool's flags or file. Raises SpecError."""
    draft = Draft(document, conversion.job, base or Path.cwd(), conversion.origins, tuple(conversion.notes))
    draft.diagnostics += document.diagnostics if document else []
    draft.add(conversion.problems)
    draft.add(_missing_files(draft.base, conversion))
    return _finish(draft, overrides)


@dataclass(slots=True)
class Draft:
    """Job file in progress, with the mistakes found so far."""

    document: Document | None
    job: dict[str, Any]
    base: Path
    origins: Mapping[Loc, Loc] | None = None
    """Place in `job` -> place in the document; None: `job` is the document."""
    notes: tuple[str, ...] = ()
    original: Mapping[str, Any] = field(default_factory=dict)
    """`job` before the overrides were applied."""
    labels: dict[Loc, str] = field(default_factory=dict)
    """Place in `job` -> the command line argument that set it."""
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems whose places are in the document (or, as ("--flag",), on the command line)."""
        self.diagnostics += map(self._at, problems)

    def add_in_job(self, problems: Iterable[Problem]) -> None:
        """Add problems whose places are in `job`."""
        self.diagnostics += map(self.locate, problems)

    def locate(self, problem: Problem) -> Diagnostic:
        """Return the diagnostic of a problem whose place is in `job`."""
        label = _nearest(self.labels, problem.loc) or self._creating_argument(problem.loc)
        if label is not None:
            return Diagnostic(label, 0, 0, problem.code, problem.message, problem.hint, problem.severity)
        return self._at(problem, problem.loc if self.origins is None else _nearest(self.origins, problem.loc) or ())

    def _creating_argument(self, loc: Loc) -> str | None:
        """Return the command line argument that created a mapping; None if the mapping is in the file."""
        made = (label for path, label in self.labels.items() if path[: len(loc)] == loc)
        return next(made, None) if loc and not _exists(self.original, loc) else None

    def result(self) -> list[Diagnostic]:
        """Return all diagnostics in the order of the file, at most MAX_PROBLEMS."""
        found = self.diagnostics
        if self.origins is not None and self.wrong:  # retired hardware is replaced only when the file is valid
            found = [one for one in found if not one.code.startswith("retired-")]
        if self.origins is not None:
            # A mistake reported by the conversion is not reported again for the converted value.
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
    """Return the entry of a place, or of the nearest enclosing place; None if there is none."""
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
    from .overrides import apply_defaults, apply_overrides, parse_overrides

    try:
        parsed = parse_overrides(overrides)
        draft.original = draft.job
        given = [override for override in parsed if not override.unless]
        draft.job = apply_overrides(draft.job, given)
        draft.job, defaults = apply_defaults(draft.job, [override for override in parsed if override.unless])
    except SpecError as error:
        raise SpecError([*draft.result(), *error.diagnostics]) from None
    draft.labels.update((override.path, override.label) for override in (*given, *defaults))
    draft.notes += tuple(f"default applied: {default.label}" for default in defaults)


@cache
def build_models() -> None:
    """Build the deferred validators of the models, without Pydantic's search for plug-ins in all installed packages.

    The search takes longer than loading a job file. Models of other packages are not affected.
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
    """Return the spec, None if it is invalid. In both cases, report unknown names of machines and places."""
    from ..rules.compatibility import check_names

    build_models()
    try:
        spec = JobSpec.model_validate(draft.job)
    except ValidationError as error:
        from .more_errors import problems_of

        draft.add_in_job(problems_of(error, draft.job, check_names))
        return None
    draft.add_in_job(check_names(spec))
    if spec.env:
        draft.add_in_job(likely_secrets(spec.env))
    return spec


def _refuse_foreign(draft: Draft) -> None:
    """Report a file of an unsupported tool. Raises SpecError if nothing else in it is worth reporting."""
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
    """Yield a problem for each file that a converted job needs (such as its packages) and that does not exist."""
    for path, loc in conversion.files:
        if not (base / path).exists():
            message = f"there is no {quote(path)}"
            yield Problem(loc, "missing-code", message, f"looked for {shorten(os.path.normpath(base / path), 300)}")


def _check_code(draft: Draft) -> None:
    """Report a `code` folder that does not exist, or that is the home folder or a parent of it."""
    code = draft.job.get("code", ".")
    if not isinstance(code, str) or not code or "\0" in code:
        return
    folder = os.path.normpath(os.path.join(draft.base, code))  # noqa: PTH118 - on the path of every load
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
    """Return device and inode of the home folder and its parents, which are the same through symbolic links."""
    wide = set()
    real = Path(os.path.realpath(home))
    for folder in (real, *real.parents):
        with contextlib.suppress(OSError):
            found = folder.stat()
            wide.add((found.st_dev, found.st_ino))
    return frozenset(wide)
