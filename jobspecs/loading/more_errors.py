"""Looking on after a mistake: what a wrong value hides is checked as if that value had been left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ..diagnostics import MAX_PROBLEMS, Loc, Problem
from ..models import JobSpec
from .pydantic_errors import find, shape_problems

_ROUNDS = 4
"""Leaving out a wrong value may leave a wrong whole; what is nested deeper than this is given up."""
_STAND_INS: dict[Loc, str] = {("name",): "job", ("run",): "true"}
"""For what a job cannot be without."""
_WHOLE: tuple[Loc, ...] = (("resources", "cloud"),)
"""A list which makes sense as a whole only: regions are looked up on the clouds it names."""


def problems_of(
    error: ValidationError, job: Mapping[str, object], check_names: Callable[[JobSpec], list[Problem]]
) -> list[Problem]:
    """Every mistake in the shape of a job, those that others hide, and in the names that can be read."""
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
            # A value is not wrong because something inside it was left out.
            found += [problem for problem in new if not any(loc[: len(problem.loc)] == problem.loc for loc in wrong)]
            wrong |= {_left_out(problem.loc) for problem in new}
        else:
            return found + _restored(check_names(spec), rest, kept)
    return found


def _left_out(loc: Loc) -> Loc:
    return next((whole for whole in _WHOLE if loc[: len(whole)] == whole), loc)


def _without(value: object, loc: Loc, wrong: set[Loc], kept: dict[Loc, list[int]]) -> Any:
    """A copy of a value without the wrong ones in it; `kept` tells which entries of each list are left."""
    if isinstance(value, Mapping):
        return {
            key: _without(inside, (*loc, key), wrong, kept) for key, inside in value.items() if (*loc, key) not in wrong
        }
    if isinstance(value, list | tuple):
        kept[loc] = [index for index in range(len(value)) if (*loc, index) not in wrong]
        return [_without(value[index], (*loc, index), wrong, kept) for index in kept[loc]]
    return value


def _restored(problems: Iterable[Problem], rest: object, kept: Mapping[Loc, list[int]]) -> list[Problem]:
    """The same problems, their places being those of the whole document."""
    restored = []
    for problem in problems:
        place: Loc = ()
        for step in find(rest, problem.loc)[0]:
            place = (*place, kept[place][step] if isinstance(step, int) else step)
        restored.append(problem._replace(loc=place))
    return restored
