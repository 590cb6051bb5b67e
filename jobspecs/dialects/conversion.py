"""Read job descriptions of other tools: each field is converted, or reported because it has no counterpart.

A dialect has a table of the known fields of each mapping (`Fields`); a field that is not in the table is a mistake.
Fields may be written in camelCase or snake_case, because the services accept both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..diagnostics import MAX_PROBLEMS, Loc, Problem, quote
from ..suggest import closest, one_of

if TYPE_CHECKING:
    import datetime


class NoCounterpart(NamedTuple):
    """Field without a counterpart in the job file."""

    why: str
    """Reason, as a sentence for the user."""
    refuse: bool = False
    """True: the file is refused, because without the field results or access rights would change."""


Fields = Mapping[str, NoCounterpart | None]
"""Field in camelCase -> None if it is converted, else NoCounterpart."""


@dataclass
class Conversion:
    """Result of converting another tool's document; `job` is unusable if a problem is an error."""

    job: dict[str, Any] = field(default_factory=dict)
    """Job file as a mapping, like one parsed from YAML."""
    problems: list[Problem] = field(default_factory=list)
    """Problems. Their `loc` is a place in the source document, or ("--region",) for a flag of the command line."""
    notes: list[str] = field(default_factory=list)
    """Changes made by the conversion, one sentence each."""
    origins: dict[Loc, Loc] = field(default_factory=dict)
    """Place in `job` -> place in the source; a place without entry inherits its parent's."""
    files: list[tuple[str, Loc]] = field(default_factory=list)
    """Local files and folders that must exist, relative to the job file's folder, with the place that names them."""
    today: datetime.date | None = None
    """Hardware that is no longer available on this day is replaced; None: hardware that the tables list as retired."""

    @property
    def refused(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    def put(self, place: Loc, value: object, origin: Loc) -> None:  # any value of a job file
        """Set a value of the job file and record its origin."""
        mapping: dict[Any, Any] = self.job
        for name in place[:-1]:
            mapping = mapping.setdefault(name, {})
        mapping[place[-1]] = value
        self.origins[place] = origin

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def error(self, loc: Loc, code: str, message: str, hint: str = "", *, in_key: bool = False) -> None:
        self._add(Problem(loc, code, message, hint, in_key=in_key))

    def warn(self, loc: Loc, code: str, message: str, hint: str = "") -> None:
        self._add(Problem(loc, code, message, hint, severity="warning"))

    @property
    def full(self) -> bool:
        """True if the maximum number of problems was reached."""
        return len(self.problems) >= MAX_PROBLEMS and self.refused

    def demote(self, code: str) -> None:
        """Turn the errors with this code into warnings."""
        self.problems[:] = [
            problem._replace(severity="warning") if problem.code == code else problem for problem in self.problems
        ]

    def _add(self, problem: Problem) -> None:
        """Add a problem unless it was added before, since a field may be read more than once."""
        if not self.full and problem not in self.problems:
            self.problems.append(problem)


class Reader:
    """Typed access to one mapping of the source document.

    A value of the wrong type is reported once, and counts as absent.
    """

    def __init__(
        self, value: Mapping[Any, Any], loc: Loc, conversion: Conversion, flags: Mapping[Loc, Loc] | None = None
    ) -> None:
        self._value = value
        self._loc = loc
        self._flags = flags or {}
        """Place in the document -> ("--flag",) that set it."""
        self._conversion = conversion
        self._keys: dict[str, Any] = {}
        for key in value:
            name = camel(str(key))
            if name in self._keys:
                message = f"{quote(key)} and {quote(self._keys[name])} are the same field"
                conversion.error((*loc, key), "duplicate-key", message, "keep one of them", in_key=True)
            self._keys.setdefault(name, key)

    def __contains__(self, name: str) -> bool:
        return self._raw(name) is not None

    @property
    def empty(self) -> bool:
        return not self._value

    def loc(self, name: str | None = None) -> Loc:
        """Return the place of a field, or of this mapping, in the document or on the command line."""
        place = self._loc if name is None else (*self._loc, self._keys.get(name, name))
        if name is not None and name not in self._keys and place not in self._flags:
            place = self._loc  # the field is missing: use the mapping's place
        for length in range(len(place), 0, -1):
            if place[:length] in self._flags:
                return self._flags[place[:length]]
        return place

    def check(self, fields: Fields) -> None:
        """Report the fields that are not in the table, and those without a counterpart."""
        for key, value in self._value.items():
            if self._conversion.full:
                return
            name = camel(str(key))
            if name not in fields:
                near = closest(name, fields)
                hint = f"did you mean {one_of(near)}?" if near else f"known here: {', '.join(sorted(fields))}"
                self._report(key, "unknown-field", f"unknown field {quote(key)}", hint)
            elif (lost := fields[name]) is not None and value not in (None, "", [], {}, "false", False):
                self._lose(key, lost)

    def _lose(self, key: object, lost: NoCounterpart) -> None:
        names = [str(part) for part in self.loc(camel(str(key))) if not isinstance(part, int)]
        path = ".".join(names)
        if lost.refuse:
            self._report(key, "no-counterpart", f"{path}: {lost.why}", f"remove {names[-1]} to go on without it")
        else:
            self._conversion.note(f"{path} is left out: {lost.why}")

    def text(self, name: str) -> str | None:
        value = self._raw(name)
        if isinstance(value, Mapping | list | tuple):
            self._wrong(name, "one value, not a " + ("mapping" if isinstance(value, Mapping) else "list"))
            return None
        return None if value is None else _scalar(value)

    def integer(self, name: str, least: int = 0) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= least):
            self._wrong(name, f"a whole number from {least}, not {quote(text)}")
            return None
        return int(text)

    def boolean(self, name: str) -> bool | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in ("true", "false"):
            self._wrong(name, f"true or false, not {quote(text)}")
            return None
        return text.lower() == "true"

    def seconds(self, name: str) -> int | None:
        """Return the value of a protobuf duration, e.g. `7200s` or `3.5s`, in whole seconds, rounded up."""
        text = self.text(name)
        if text is None:
            return None
        try:
            amount = float(text.removesuffix("s")) if text.endswith("s") else math.nan
        except ValueError:
            amount = math.nan
        if not 0 < amount <= 366 * 86_400:
            self._wrong(name, f"seconds such as 7200s, at most 366 days, not {quote(text)}")
            return None
        return math.ceil(amount)

    def texts(self, name: str) -> list[str]:
        """Return a list of values; a single value is a mistake, as in the services."""
        value = self._raw(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple) or any(isinstance(item, Mapping | list | tuple) for item in value):
            self._wrong(name, "a list of values, as in [--epochs, 10]")
            return []
        return ["" if item is None else _scalar(item) for item in value]

    def child(self, name: str) -> Reader:
        """Return a reader of the nested mapping; an empty one if it is absent."""
        value = self._raw(name)
        if value is not None and not isinstance(value, Mapping):
            self._wrong(name, "a mapping")
            value = None
        return self._sub(value or {}, (*self._loc, self._keys.get(name, name)))

    def children(self, name: str) -> list[Reader]:
        """Return readers of a list of mappings; an empty entry is an empty mapping."""
        value = self._raw(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple) or not all(item is None or isinstance(item, Mapping) for item in value):
            self._wrong(name, "a list of mappings")
            return []
        return [self._sub(item or {}, (*self._loc, self._keys[name], index)) for index, item in enumerate(value)]

    def _sub(self, value: Mapping[object, object], loc: Loc) -> Reader:
        return Reader(value, loc, self._conversion, self._flags)

    def _raw(self, name: str) -> Any:  # whatever the user wrote
        return self._value.get(self._keys.get(name, name))

    def _wrong(self, name: str, expected: str) -> None:
        self._conversion.error(self.loc(name), "wrong-value", f"{name}: expected {expected}")

    def _report(self, key: object, code: str, message: str, hint: str = "") -> None:
        self._conversion.error(self.loc(camel(str(key))), code, message, hint, in_key=True)


def camel(name: str) -> str:
    """Convert `worker_pool_specs` to `workerPoolSpecs`; camelCase is unchanged."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest) if rest and head else name


def job_name(text: str | None, fallback: str) -> str:
    """Return the nearest valid job name: `My_job_7` becomes `my-job-7`."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in (text or "").lower())
    return plain.lstrip("-0123456789")[:40].rstrip("-") or fallback


def _scalar(value: object) -> str:
    """Return a scalar as text. Scalars from the loader are text; those made in Python may be numbers or booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value)
