"""Between the values of model.py and what the tables hold: JSON and decimals are text there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from ...jobspecs.plan import CPU
from ..errors import DamagedRowError
from .model import Attempt, Event, JobRow, Policy

_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Raised when a stored value that cloudgpu did not write is decoded."""


def _dump_json(value: Any) -> str:  # any JSON value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _dump_policy(policy: Policy) -> str:
    values = dataclasses.asdict(policy)
    return _dump_json(values | {name: None if values[name] is None else str(values[name]) for name in _AMOUNTS})


def _load_policy(text: str) -> Policy:
    values = json.loads(text)
    known = {field.name: values[field.name] for field in dataclasses.fields(Policy) if field.name in values}
    return Policy(**known | {name: _load_decimal(known.get(name)) for name in _AMOUNTS})


_AMOUNTS = ("cost_usd", "price_usd")
"""Of Policy: decimals, which JSON has none of."""


def _dump_offers(offers: list[dict[str, Any]]) -> str:
    """Offers that differ only by their zone are one, with all its zones: a job may have a hundred places."""
    found: list[dict[str, Any]] = []
    for offer in offers:
        if found and {**found[-1], "zone": None} == {**offer, "zone": None}:
            found[-1]["zone"].append(offer["zone"])
        else:
            found.append({**offer, "zone": [offer["zone"]]})
    return _dump_json(found)


@functools.lru_cache(maxsize=64)
def _load_offers(text: str) -> list[dict[str, Any]]:
    """Return the offers of a row, to be read only: the jobs of a sweep share theirs, which may be hundreds each."""
    return [{**offer, "zone": zone} for offer in json.loads(text) for zone in _listed(offer["zone"])]


def _listed(zone: Any) -> list[Any]:  # one zone, as an earlier version wrote it, or several
    return zone if isinstance(zone, list) else [zone]


def _load_decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


_Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_JSON: _Codec = (_dump_json, json.loads)
_DECIMAL: _Codec = (str, Decimal)
_CODECS: dict[str, _Codec] = {
    "spec": _JSON,
    "offers": (_dump_offers, _load_offers),
    "offer": _JSON,
    "allocation": _JSON,
    "progress": _JSON,
    "generations": _JSON,
    "timeline": _JSON,
    "nodes": _JSON,
    "hints": _JSON,
    "seen": _JSON,
    "policy": (_dump_policy, _load_policy),
    "price": _DECIMAL,
    "cost": _DECIMAL,
    "spent": _DECIMAL,
}


def target(offer: str | None) -> str:
    """Return the cloud of an offer as the tables hold it; "" without one, or if it cannot be read."""
    try:
        return "" if offer is None else str(json.loads(offer)["cloud"])
    except _DAMAGE:
        return ""


def wanted(text: str) -> tuple[str, dict[str, int]]:
    """Return the cloud of an offer, or of the first of several, as the tables hold them, and accelerator -> GPUs of all
    its nodes, or CPU -> nodes if it has no GPU; ("", {}) if it cannot be read."""
    try:
        value = json.loads(text)
        offer = value[0] if isinstance(value, list) else value
        needs: dict[str, int] = {}
        for role in offer["roles"]:
            if name := role["accelerator"]:
                needs[name] = needs.get(name, 0) + int(role["nodes"]) * int(role["count"])
        return str(offer["cloud"]), needs or {CPU: sum(int(role["nodes"]) for role in offer["roles"])}
    except _DAMAGE:
        return "", {}


def priority(policy: str) -> int:
    """Return the priority of a policy as the tables hold it; 0 if it has none, or cannot be read."""
    try:
        return int(json.loads(policy).get("priority", 0))
    except _DAMAGE:
        return 0


def plain(text: str) -> str:
    """Text that every database takes, for programs write what they like, and a job must end all the same: halves of
    characters (lone surrogates) are spelled out, and NUL, which PostgreSQL refuses."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as the tables hold them; None stays NULL."""
    return {name: _encode_one(name, value) for name, value in values.items()}


def _encode_one(name: str, value: Any) -> Any:  # a field's value
    if value is not None and name in _CODECS:
        return _CODECS[name][0](value)
    return plain(value) if isinstance(value, str) else value


def encode_row(row: JobRow | Attempt) -> dict[str, Any]:
    return encode({field.name: getattr(row, field.name) for field in dataclasses.fields(row)})


def _decode(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _CODECS[name][1](value) if name in _CODECS and value is not None else value
        for name, value in columns.items()
    }


def decode_job(columns: Mapping[str, Any]) -> JobRow:
    """Raises DamagedRowError."""
    with _named(f"job {columns.get('id')}"):
        row = JobRow(**_decode(columns))
        _check_objects("offers", row.offers)
        if not row.offers:
            raise ValueError("it has no offer")
        return row


def decode_attempt(columns: Mapping[str, Any]) -> Attempt:
    """Raises DamagedRowError."""
    with _named(f"attempt {columns.get('number')} of job {columns.get('job_id')}"):
        row = Attempt(**_decode(columns))
        _check_objects("offer", [row.offer])
        _check_objects("progress", [row.progress or {}])
        _check_objects("timeline", [row.timeline or {}])
        _check_objects("allocation", [row.allocation or {}])
        _check_objects("generations", row.generations or [])
        _check_objects("nodes", row.nodes or [])
        return row


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DamagedRowError(f"{what} is damaged in the store: {error!r:.200}") from error


def _check_objects(name: str, values: object) -> None:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{name} has no JSON object where one is needed")


def decode_event(columns: Mapping[str, Any]) -> Event:
    return Event(**columns)
