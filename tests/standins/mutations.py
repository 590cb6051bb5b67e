"""Mutations of a job dir's objects: corrupt content that others may write, by accident or on purpose."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 10**400, 0.5, 1e308, -6e10, float("nan"), float("inf")),
    *("", "0", "NaN", "\0", "\ud800", "\x1b[2J\x1b]52;c;eA==\x07", "ü☃\u202e", "../../etc/passwd", "x" * 70_000),
    *([], {}, [[]], [None], {"": ""}, [{"a": [1]}], {"node": 5}, [["x"] * 9]),
]
ODD_BYTES = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf{}", b"null", b"[]", b"5", b'"x"', b"{", b"9" * 5_000, b"NaN", b"1e999"),
    *(b"[" * 50_000, b'{"a":' * 50_000, "{}".encode("utf-16"), b"{}" + b" " * (5 << 20), b"\x1f\x8b\x08\0\0\0\0\0"),
]
ODD_NAMES = ["x", "worker-0", "worker-0.", "worker-0.x", "worker-0.1.1", "worker-0.0", "worker-0.99999999999", ".1"]
ODD_NAMES += ["worker-0.\u0663", "w\u00fcrker-0.1", "worker-0.1/x", "beat.json", "order.json", "a b", "-rf", "0", "[x]"]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return an object's bytes with a random change."""
    if rng.random() < 0.25:
        return _mutated_bytes(rng, data)
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value = _mutated_value(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def put(rng: random.Random, path: Path, data: bytes) -> None:
    """Write corrupt content to a path: usually a mutated object, sometimes a directory, dangling link or huge file."""
    chance = rng.random()
    if chance < 0.02:
        (path / "inside").mkdir(parents=True)
    elif chance < 0.03:
        path.symlink_to(path.parent / "nowhere")
    elif chance < 0.035:
        with path.open("wb") as file:
            file.truncate(400 << 20)
    else:
        path.write_bytes(mutate(rng, data))


def _mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    changed = (
        lambda: data[:place],
        lambda: data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :],
        lambda: data[:place] + rng.choice((b"\0", b"\xff", b",", b"}", b"1e999")) + data[place:],
        lambda: rng.choice(ODD_BYTES),
    )
    return rng.choice(changed)()


def _mutated_value(rng: random.Random, value: Any) -> Any:
    """Return the value with one nested value replaced, removed or added."""
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return _odd(rng)
    inside, key = rng.choice(places)
    edits: tuple[Callable[[], Any], ...] = (
        lambda: inside.__setitem__(key, _odd(rng)),
        lambda: inside.__setitem__(key, _odd(rng)),
        lambda: inside.__setitem__(key, rng.choice(places)[0]) if not isinstance(inside[key], dict | list) else None,
        lambda: inside.pop(key),
        lambda: inside.__setitem__("newer", _odd(rng)) if isinstance(inside, dict) else inside.append(_odd(rng)),
    )
    rng.choice(edits)()
    try:
        json.dumps(value)
    except (ValueError, RecursionError):  # it now contains itself
        return _odd(rng)
    return value


def _odd(rng: random.Random) -> Any:
    """Return a value that is invalid in most places."""
    if rng.random() < 0.05:
        deep: Any = 1
        for _ in range(rng.choice((20, 40, 200))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return copy.deepcopy(rng.choice(ODD_VALUES))


def _places(value: Any) -> Any:
    """Yield each nested list or object with each of its keys."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])
