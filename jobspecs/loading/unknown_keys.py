"""Hints for unknown keys of a job file: the intended key and its place."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache
from typing import NamedTuple, get_args

from pydantic import BaseModel

from ..diagnostics import Loc
from ..models import JobSpec
from ..suggest import closest, looks_like, odd_character, one_of

# Names of keys in other tools, in the form of `_plain()` -> key of the job file.
_OTHER_NAMES = {
    "acceleratorcount": "resources.accelerator: NAME:COUNT",
    "acceleratortype": "resources.accelerator",
    "backend": "resources.cloud",
    "backends": "resources.cloud",
    "budget": "limits.cost",
    "command": "run",
    "commands": "run",
    "container": "image",
    "containerimage": "image",
    "cpus": "resources.machine_type",
    "disksize": "resources.disk",
    "docker": "image",
    "entrypoint": "run",
    "environment": "env",
    "envs": "env",
    "gpu": "resources.accelerator",
    "gpus": "resources.accelerator",
    "imageid": "image",
    "infra": "resources.cloud",
    "instancetype": "resources.machine_type",
    "instances": "resources.nodes",
    "jobname": "name",
    "maxduration": "limits.duration",
    "maxhourlycost": "limits.price",
    "maxprice": "limits.price",
    "numnodes": "resources.nodes",
    "project": "name",
    "provider": "resources.cloud",
    "regions": "resources.region",
    "replicas": "resources.nodes",
    "script": "run",
    "secret": "secrets",
    "secretenv": "secrets",
    "secretenvs": "secrets",
    "spot": "resources.market: spot",
    "spotpolicy": "resources.market: spot",
    "timeout": "limits.duration",
    "usespot": "resources.market: spot",
    "vmsize": "resources.machine_type",
    "workdir": "code",
    "workingdir": "code",
    "zones": "resources.zone",
}


class Meaning(NamedTuple):
    """Likely meaning of an unknown key."""

    hint: str
    """Sentence for the user."""
    path: tuple[str, ...] = ()
    """Path of the intended key; () if that is not certain."""


def meaning(loc: Loc, present: Container[str]) -> Meaning:
    """Return the likely meaning of the unknown key at the end of `loc`.

    present  keys that are in the same mapping, and are therefore not suggested
    """
    key, parent = str(loc[-1]), _pattern(loc[:-1])
    known = list(_model_at(loc[:-1]).model_fields)
    near = closest(key, [name for name in known if name not in present])
    likely = (*parent, near[0]) if near else ()
    if near and not key.isascii() and looks_like(key).strip() == near[0]:
        return Meaning(f"write `{near[0]}`; there is {odd_character(key)}", likely)
    homes = [home for home in _places_by_key().get(looks_like(key), ()) if home[:-1] != parent]
    if homes:
        return Meaning(f"write it as {one_of(['.'.join(home) for home in homes])}")
    other = _OTHER_NAMES.get(_plain(key))
    if near and (other is None or _plain(near[0]) == _plain(key)):
        return Meaning(f"did you mean {one_of(near)}?", likely)
    if other is not None:
        return Meaning(f"write it as {other}", tuple(other.split(".")))
    elsewhere = closest(key, _places_by_key())
    if elsewhere:
        return Meaning(f"did you mean {one_of(['.'.join(_places_by_key()[name][0]) for name in elsewhere])}?")
    return Meaning(f"known here: {', '.join(known)}")


def _plain(key: str) -> str:
    return "".join(char for char in key.lower() if char not in "-_ ")


def _model_at(loc: Loc) -> type[BaseModel]:
    """Return the model of the mapping at a place; role names and list indices in between are skipped."""
    model: type[BaseModel] = JobSpec
    for step in loc:
        field = model.model_fields.get(str(step))
        if field is not None:
            model = next(_models_in(field.annotation), model)
    return model


def _pattern(loc: Loc) -> tuple[str, ...]:
    """Return a place in the form of `_places_by_key()`: ROLE instead of a role's name, no indices."""
    names = [str(step) for step in loc if not isinstance(step, int)]
    return tuple("ROLE" if names[0] == "roles" and place == 1 else name for place, name in enumerate(names))


@cache
def _places_by_key() -> dict[str, list[tuple[str, ...]]]:
    """Return every key of the job file with the places where it is allowed."""
    homes: dict[str, list[tuple[str, ...]]] = {}
    for path in _paths(JobSpec, ()):
        homes.setdefault(path[-1], []).append(path)
    return homes


def _paths(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        yield path
        for inner in _models_in(field.annotation):
            yield from _paths(inner, (*path, "ROLE") if name == "roles" else path)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:  # any type
    """Yield the models within a type such as `tuple[Model, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
