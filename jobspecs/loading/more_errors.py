"""Find mistakes hidden by other mistakes: wrong values are removed and the rest is validated again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ..diagnostics import MAX_PROBLEMS, Loc, Problem
from ..models import JobSpec
from .pydantic_errors import find, shape_problems

_ROUNDS = 4
"""Maximum number of validation rounds: without a removed value, its parent may be invalid and be removed next."""
_STAND_INS: dict[Loc, str] = {("name",): "job", ("run",): "true"}
"""Placeholders for a job's required keys."""
_WHOLE: tuple[Loc, ...] = (("resources", "cloud"),)
"""Lists that must not be checked in part: regions are looked up on all clouds of the list."""


def problems_of(
    error: ValidationError, job: Mapping[str, object], check_names: Callable[[JobSpec], list[Problem]]
) -> list[Problem]:
    """Return every mistake in a job: Pydantic's errors, mistakes that these hide, and the problems of check_names()."""
    found = shape_problems(error, job)
    if len(found) >= MAX_PROBLEMS:
        return found
    wrong = {_left_out(problem.loc) for problem in found}
    for _ in range(_ROUNDS):
        kept: dict[Loc, list[int]] = {}
        rest = _without(job, (), wrong, kept)
        for place, text in _STAND_INS.items():
            rest.setdefault(place[0], text)
        try:
            spec = JobSpec.model_validate(rest)
        except ValidationError as again:
            new = _restored(shape_problems(again, rest), rest, kept)
            # Mistakes caused by removing a nested value are dropped.
            found += [problem for problem in new if not any(loc[: len(problem.loc)] == problem.loc for loc in wrong)]
            wrong |= {_left_out(problem.loc) for problem in new}
        else:
            return found + _restored(check_names(spec), rest, kept)
    return found


def _left_out(loc: Loc) -> Loc:
    return next((whole for whole in _WHOLE if loc[: len(whole)] == whole), loc)


def _without(value: object, loc: Loc, wrong: set[Loc], kept: dict[Loc, list[int]]) -> Any:
    """Return a copy of a value without the wrong values; `kept` receives the remaining indices of each list."""
    if isinstance(value, Mapping):
        return {
            key: _without(inside, (*loc, key), wrong, kept) for key, inside in value.items() if (*loc, key) not in wrong
        }
    if isinstance(value, list | tuple):
        kept[loc] = [index for index in range(len(value)) if (*loc, index) not in wrong]
        return [_without(value[index], (*loc, index), wrong, kept) for index in kept[loc]]
    return value


def _restored(problems: Iterable[Problem], rest: object, kept: Mapping[Loc, list[int]]) -> list[Problem]:
    """Return the problems with their places in the whole document, where lists have more entries than in `rest`."""
    restored = []
    for problem in problems:
        place: Loc = ()
        for step in find(rest, problem.loc)[0]:
            place = (*place, kept[place][step] if isinstance(step, int) else step)
        restored.append(problem._replace(loc=place))
    return restored
