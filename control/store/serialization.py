"""Serialization of the store's rows, with validation when they are read. No other module knows their JSON.

JSON and decimals are text in the tables. The format is compatible both ways: this version reads the rows of earlier
ones, and they read the rows of this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeVar

from ...jobspecs.plan import CPU, Offer, RoleOffer
from ...protocol.jobdir import Generation, Progress, RecordError, Timeline
from ...protocol.records import Record
from ...provisioners.base import Allocation, NodeRequest
from ..errors import DamagedRowError
from .model import FIRST_RUN, Attempt, JobRow, Observation, Policy, Run, Source

_T = TypeVar("_T")

_DECODE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, RecordError)
"""Errors that decoding an invalid stored value can raise."""

# -- types


def _checked(value: _T) -> _T:
    """Return an object after checking its fields against their annotations. Raises TypeError."""
    for name, hint in _HINTS[type(value)].items():
        if not _fits(found := getattr(value, name), hint):
            raise TypeError(f"{name} cannot be {found!r:.80}")
    return value


_HINTS: dict[type, dict[str, Any]] = {
    kind: typing.get_type_hints(kind)
    for kind in (Allocation, Attempt, JobRow, NodeRequest, Offer, Policy, RoleOffer, Observation, Run, Source)
}
"""Class -> annotations of its fields."""


def _fits(value: object, hint: Any) -> bool:  # hint: an annotation
    """Return whether a value has the type of an annotation. Nested objects were checked when created."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, one) for one in arguments)
    if origin in (tuple, list):
        return isinstance(value, origin) and all(_fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, arguments[0]) and _fits(one, arguments[1]) for key, one in value.items()
        )
    if origin is typing.Literal:
        return value in arguments
    return hint is Any or isinstance(value, int | float if hint is float else origin or hint)


# -- JSON


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _load_list(text: str) -> list[Any]:  # JSON values
    found = json.loads(text)
    if not isinstance(found, list):
        raise TypeError(f"a list is needed, not {found!r:.80}")
    return found


_AMOUNTS = ("cost_usd", "price_usd")
"""Fields of Policy that are decimals, which JSON lacks."""
_OPTIONAL = ("reads_on", "job_dirs", "accounts")
"""Fields of Policy that are stored as null when empty."""
_RARE = ("references", "secrets", "secrets_from", "secrets_pass")
"""Fields of Policy that are left out when empty."""


def _dump_policy(policy: Policy) -> str:
    values = dataclasses.asdict(policy)
    amounts = {name: None if values[name] is None else str(values[name]) for name in _AMOUNTS}
    whole = values | amounts | {name: values[name] or None for name in _OPTIONAL}
    return _dump({name: value for name, value in whole.items() if value or name not in _RARE})


def _load_policy(text: str) -> Policy:
    values = json.loads(text)
    known = {name: values[name] for name in _HINTS[Policy] if values.get(name) is not None}
    return _checked(Policy(**known | {name: Decimal(known[name]) for name in _AMOUNTS if name in known}))


def _dump_run(run: Run) -> str:
    return _dump({**dataclasses.asdict(run), "spent_before": str(run.spent_before)})


def _load_run(text: str) -> Run:
    values = json.loads(text)
    known = {name: values[name] for name in _HINTS[Run] if values.get(name) is not None}
    return _checked(Run(**known | {"spent_before": Decimal(known["spent_before"])}))


def _load_source(text: str) -> Source:
    values = json.loads(text)
    return _checked(Source(**{name: values[name] for name in _HINTS[Source]}))


def _offer(value: Mapping[str, object]) -> Offer:
    offer = _checked(Offer.from_json(value))
    for role in offer.roles:
        _checked(role)
    return offer


def _dump_offers(offers: Sequence[Offer]) -> str:
    """Serialize offers; those that differ only in zone become one (a job may have a hundred places)."""
    ways = [list(way) for _, way in groupby(offers, key=lambda offer: offer._replace(zone=None))]
    return _dump([{**way[0].to_json(), "zone": [offer.zone for offer in way]} for way in ways])


@functools.lru_cache(maxsize=64)
def _load_offers(text: str) -> tuple[Offer, ...]:
    """Return the offers of a row. Cached because the jobs of a sweep share their offers, possibly hundreds."""
    found: list[Offer] = []
    for way in _load_list(text):
        zones = way["zone"] if isinstance(way["zone"], list) else [way["zone"]]  # earlier versions wrote one zone
        if not _fits(zones, list[str | None]):
            raise TypeError(f"zone cannot be {zones!r:.80}")
        offer = _offer({**way, "zone": None})
        found += [offer._replace(zone=zone) for zone in zones]
    if not found:
        raise ValueError("it has no offer")
    return tuple(found)


def _dump_nodes(nodes: Sequence[NodeRequest]) -> str:
    return _dump([{**dataclasses.asdict(node), "count": str(node.count)} for node in nodes])


def _load_nodes(text: str) -> tuple[NodeRequest, ...]:
    return tuple(_checked(NodeRequest(**{**node, "count": Fraction(node["count"])})) for node in _load_list(text))


_Codec = tuple[Callable[[Any], str], Callable[[str], object]]


def _record(kind: type[Record]) -> _Codec:
    return lambda record: record.to_bytes().decode(), lambda text: kind.from_value(json.loads(text))


_DECIMAL: _Codec = (str, Decimal)
_CODECS: dict[str, _Codec] = {
    "spec": (_dump, json.loads),
    "policy": (_dump_policy, _load_policy),
    "run": (_dump_run, _load_run),
    "source": (lambda source: _dump(dataclasses.asdict(source)), _load_source),
    "offers": (_dump_offers, _load_offers),
    "offer": (lambda offer: _dump(offer.to_json()), functools.lru_cache(256)(lambda text: _offer(json.loads(text)))),
    "allocation": (lambda one: _dump(one.to_json()), lambda text: _checked(Allocation.from_json(json.loads(text)))),
    "progress": _record(Progress),
    "timeline": _record(Timeline),
    "seen": (lambda seen: _dump(dataclasses.asdict(seen)), lambda text: _checked(Observation(**json.loads(text)))),
    "generations": (
        lambda records: _dump([dataclasses.asdict(one) for one in records]),
        lambda text: tuple(map(Generation.from_value, _load_list(text))),
    ),
    "nodes": (_dump_nodes, _load_nodes),
    "hints": (_dump, lambda text: tuple(_load_list(text))),
    "price": _DECIMAL,
    "cost": _DECIMAL,
    "spent": _DECIMAL,
}
_NULL: dict[str, object] = {"generations": (), "hints": (), "run": FIRST_RUN}
"""Field -> value stored as NULL; for all other fields it is None."""


def target(offer: str | None) -> str:
    """Return the cloud of an offer in stored form; "" if there is no offer or it is invalid."""
    try:
        return "" if offer is None else str(json.loads(offer)["cloud"])
    except _DECODE_ERRORS:
        return ""


def needs_of(text: str) -> tuple[str, dict[str, int]]:
    """Return the cloud and the needs of an offer, or of the first of several, in stored form; ("", {}) if it is
    invalid. Needs: accelerator -> GPUs of all its nodes, or CPU -> nodes if it has no GPU."""
    try:
        value = json.loads(text)
        offer = value[0] if isinstance(value, list) else value
        needs: dict[str, int] = {}
        for role in offer["roles"]:
            if name := role["accelerator"]:
                needs[name] = needs.get(name, 0) + int(role["nodes"]) * int(role["count"])
        return str(offer["cloud"]), needs or {CPU: sum(int(role["nodes"]) for role in offer["roles"])}
    except _DECODE_ERRORS:
        return "", {}


def priority(policy: str) -> int:
    """Return the priority of a policy in stored form; 0 if it has none or is invalid."""
    try:
        return int(json.loads(policy).get("priority", 0))
    except _DECODE_ERRORS:
        return 0


def escape(text: str) -> str:
    """Escape characters that some database refuses, so that a job can end whatever its program writes: lone
    surrogates, and NUL (PostgreSQL)."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def encode(**values: object) -> dict[str, Any]:
    """Return fields of rows in stored form."""
    return {name: _encode_one(name, value) for name, value in values.items()}


def _encode_one(name: str, value: object) -> object:
    if value is None or value == _NULL.get(name):
        return None
    if name in _CODECS:
        return _CODECS[name][0](value)
    return escape(value) if isinstance(value, str) else value


def encode_row(row: JobRow | Attempt) -> dict[str, Any]:
    return encode(**{name: getattr(row, name) for name in _HINTS[type(row)]})


def encode_changes(before: JobRow | Attempt, after: JobRow | Attempt) -> dict[str, Any]:
    """Return the fields of `after` that differ from `before`, in stored form."""
    values = {name: getattr(after, name) for name in _HINTS[type(after)]}
    return encode(**{name: value for name, value in values.items() if value != getattr(before, name)})


def _decode(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _NULL.get(name) if value is None else _CODECS[name][1](value) if name in _CODECS else value
        for name, value in columns.items()
    }


def decode_job(columns: Mapping[str, object]) -> JobRow:
    """Decode a row. Raises DamagedRowError."""
    with _named(f"job {columns.get('id')}"):
        return _checked(JobRow(**_decode(columns)))


def decode_attempt(columns: Mapping[str, object]) -> Attempt:
    """Decode a row. Raises DamagedRowError."""
    with _named(f"attempt {columns.get('number')} of job {columns.get('job_id')}"):
        return _checked(Attempt(**_decode(columns)))


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except _DECODE_ERRORS as error:
        raise DamagedRowError(f"{what} is damaged in the store: {error!r:.200}") from error
