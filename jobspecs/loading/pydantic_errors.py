"""Convert Pydantic's errors to problems: one per mistake, with its place in the document.

Most messages come from the validators in fields.py and units.py; this module has those for Pydantic's own checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..catalog import find_accelerator
from ..diagnostics import MAX_PROBLEMS, Loc, MistakesError, Problem, quote
from ..fields import MAX_RETRIES
from ..models import JobSpec
from ..suggest import odd_character
from ..units import parse_duration, parse_money, parse_rate, parse_whole
from .unknown_keys import meaning

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_KEY = "[key]"
"""Last step in Pydantic's location of an error that concerns a mapping's key."""
_ALTERNATIVES: dict[Loc, tuple[Loc, str]] = {
    ("run",): (("image",), "name an image whose own entrypoint is the program")
}
"""Position of a required key -> (position of the key that can be given instead, hint)."""
_QUOTES = 'put quotes around a text that contains ": " or begins with [ or {'


def shape_problems(error: ValidationError, document: Mapping[str, object]) -> list[Problem]:
    """Return the problems of an error, each mistake once.

    If several branches of a union fail at one place, the first is returned. A misspelt key counts as one mistake, not
    also as a missing key.
    """
    found: dict[tuple[Loc, bool, str], Problem] = {}
    for details in error.errors(include_url=False)[:MAX_PROBLEMS]:
        for problem in _problems(details, document)[:MAX_PROBLEMS]:
            key = (problem.loc, problem.in_key, problem.code)
            found.setdefault(key, problem)
    problems = list(found.values())
    if not any(problem.code == "missing-key" for problem in problems):
        return problems
    misspelt: set[Loc] = {meaning(problem.loc, ()).path for problem in problems if problem.code == "unknown-key"}
    misspelt |= {missing for missing, (other, _) in _ALTERNATIVES.items() if other in misspelt}
    return [problem for problem in problems if problem.code != "missing-key" or problem.loc not in misspelt]


def find(document: object, loc: Loc) -> tuple[Loc, Any]:
    """Return the steps of `loc` that exist in the document, and the value there.

    Other steps were added by Pydantic: the branch of a union, the fields of a shorthand, or the index of a single value
    that was written instead of a list.
    """
    place: Loc = ()
    for step in loc:
        if (isinstance(document, Mapping) and step in document) or (
            isinstance(document, list | tuple) and isinstance(step, int) and step < len(document)
        ):
            document = document[step]  # type: ignore[index]
            place = (*place, step)
    return place, document


def _problems(details: ErrorDetails, document: Mapping[str, object]) -> list[Problem]:
    raised = details.get("ctx", {}).get("error")
    in_key = details["loc"][-1:] == (_KEY,)
    place, value = find(document, details["loc"])
    if in_key:
        value = place[-1]
    if isinstance(raised, MistakesError):
        return [_from_validator(problem, place, value, document, in_key=in_key) for problem in raised.problems]
    if isinstance(raised, ValueError):
        return [_completed(Problem(place, "bad-value", str(raised), in_key=in_key), value)]
    explain = _EXPLAIN.get(details["type"])
    if explain is None:
        return [_completed(Problem(place, "bad-value", "expected another value"), value)]
    return [explain(place, details, document)]


def _from_validator(problem: Problem, place: Loc, value: object, document: object, *, in_key: bool) -> Problem:
    """Return a validator's problem with its place in the document instead of its place in the validated value."""
    if problem.loc:
        place, value = find(document, (*place, *problem.loc))
    moved = problem._replace(loc=place, in_key=problem.in_key or in_key)
    return _completed(moved, place[-1] if moved.in_key else value)


def _completed(problem: Problem, value: object) -> Problem:
    """Append the actual value to an "expected" message, and a hint on look-alike characters."""
    message, hint = problem.message, problem.hint
    if message.startswith("expected"):
        is_secret = problem.loc[:1] == ("env",) and isinstance(value, str)
        message += f", not {'a text' if is_secret else _shown(value)}"
    if isinstance(value, str) and not value.isascii():
        hint = "; ".join(filter(None, (hint, f"there is {odd_character(value)}")))
    return problem._replace(message=message, hint=hint)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    return quote(value) if value != "" else "an empty text"


def _missing(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
    key = str(details["loc"][-1])
    field = JobSpec.model_fields.get(key)
    example = field.examples[0] if field is not None and field.examples else "…"
    hint = f"write {key}: {example}"
    if (key,) in _ALTERNATIVES:
        hint += f", or {_ALTERNATIVES[key,][1]}"
    if place[-1:] == (key,):  # the key exists without a value
        return Problem(place, "missing-key", f"the key {quote(key)} has no value", hint)
    return Problem((*place, key), "missing-key", f"the key {quote(key)} is missing", hint)


def _unknown_key(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
    _, around = find(document, place[:-1])
    hint = meaning(place, around).hint
    return Problem(place, "unknown-key", f"there is no key {quote(place[-1])} here", hint, in_key=True)


def _expected(what: str, hint: str = "") -> Callable[[Loc, ErrorDetails, Mapping[str, Any]], Problem]:
    def explain(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
        _, value = find(document, place)
        return _completed(Problem(place, "wrong-type", f"expected {what}", hint), value)

    return explain


def _text(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
    _, value = find(document, place)
    hint = _QUOTES
    if value is None:
        hint = 'write "" for an empty text'
    elif isinstance(value, list | tuple) and isinstance(place[-1], str):
        hint = f"write one value: {place[-1]} takes no list"
    return _completed(Problem(place, "wrong-type", "expected a text", hint), value)


def _mapping(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
    _, value = find(document, place)
    hint = "write each as KEY: VALUE on its own line"
    if value is None:
        hint = "write KEY: VALUE below it, or delete the key"
    elif isinstance(value, str):
        hint = next(
            (f"write {place[-1]}: {{{key}: {value}}}" for key, takes in _MAIN_KEYS.get(place[-1:], ()) if takes(value)),
            hint,
        )
    return _completed(Problem(place, "wrong-type", "expected keys and values", hint), value)


def _takes(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def takes(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return takes


_MAIN_KEYS: Mapping[Loc, Sequence[tuple[str, Callable[[str], bool]]]] = {
    ("checkpoint",): (("every", _takes(parse_duration)),),
    ("retry",): (("failure", _takes(lambda text: parse_whole(text, 0, MAX_RETRIES))),),
    ("limits",): (("duration", _takes(parse_duration)), ("cost", _takes(parse_money)), ("price", _takes(parse_rate))),
    ("resources",): (("accelerator", lambda text: find_accelerator(text.partition(":")[0]) is not None),),
}
"""Key of a mapping -> (its key that a single value was meant for, predicate for such values)."""


def _length(what: str, bound: str) -> Callable[[Loc, ErrorDetails, Mapping[str, Any]], Problem]:
    def explain(place: Loc, details: ErrorDetails, document: Mapping[str, object]) -> Problem:  # noqa: ARG001
        context = details.get("ctx", {})
        limit = context.get("max_length", context.get("min_length", 1))
        if limit == 1:
            return Problem(place, "empty-value", "this is empty", "write a value, or delete the key")
        return Problem(place, "too-long", f"expected {bound} {limit} {what}")

    return explain


_EXPLAIN: dict[str, Callable[[Loc, ErrorDetails, Mapping[str, Any]], Problem]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "string_type": _text,
    "string_too_long": _length("characters", "at most"),
    "string_too_short": _length("characters", "at least"),
    "tuple_type": _expected("a list", "write [a, b], or each item on a line that begins with -"),
    "too_long": _length("entries", "at most"),
    "too_short": _length("entries", "at least"),
    "dict_type": _mapping,
    "model_type": _mapping,
}
