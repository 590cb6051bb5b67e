"""Sources of a job's secrets, as a job file names them. Pure: no value is read, and none is ever part of a message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from .diagnostics import MistakesError, Problem, mistake, quote
from .secret_references import parse, schemes
from .suggest import one_of

ENV, FILE, ENV_FILE = "env", "file", "env-file"
SUBMITTER_KINDS = (ENV, FILE, ENV_FILE)
"""Kinds of sources that only the submitter's computer can read; the machines read all others themselves."""
MAX_SECRETS = 100
LEAST_CHARACTERS = 4
"""Minimum length of a value: a shorter one cannot be masked in logs."""
MOST_BYTES = 64 << 10
"""Maximum size of a value. Linux allows 128 KiB for one variable."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = ("CLOUDGPU_", "OMPI_", "PMIX_", "PRTE_")
"""Prefixes of variables that cloudgpu sets, or that mpirun writes into command lines."""
_LOOKS_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?:API|ACCESS|PRIVATE|ACCOUNT|STORAGE|SIGNING)_?KEY"
    r"|(?:^|_)(?:KEY|PAT|PWD|PASS|AUTH|DSN)$"
)
_NOT_SECRET = re.compile(
    r"TOKENIZERS?_|MAX_TOKENS|NUM_TOKENS|TOKEN_(?:LENGTH|COUNT|LIMIT)|(?<!API_)(?<!AUTH_)(?<!ACCESS_)TOKENS$|_FILE$|_PATH$"
)
_HAS_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def looks_secret(name: str, value: str = "") -> bool:
    """Return whether a variable of this name, or with this value, probably holds a secret."""
    name = name.upper()
    by_name = _LOOKS_SECRET.search(name) is not None and _NOT_SECRET.search(name) is None
    return by_name or _HAS_PASSWORD.search(value) is not None


def is_reference(source: str) -> bool:
    """Return whether the machines read this source themselves, from a secret manager."""
    return "://" in source


def from_submitter(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets, name -> source, whose values only the submitter's computer can read."""
    return {name: source for name, source in secrets.items() if not is_reference(source)}


def clashes(secrets: Iterable[str], env: Iterable[str]) -> list[Problem]:
    """Return a problem for each name that is both a secret and a variable of `env`."""
    both = set(env)
    return [
        Problem(("secrets", name), "twice", f"{quote(name)} is both in `secrets` and in `env`", "delete it from `env`")
        for name in secrets
        if name in both
    ]


def likely_secrets(env: Mapping[str, str]) -> list[Problem]:
    """Return a warning for each variable of `env` whose name says that its value is a secret."""
    hint = "write secrets: [{}] instead, and export it before `submit`"
    return [
        Problem(
            ("env", name),
            "secret-in-env",
            f"{quote(name)} looks like a secret, and values of `env` are stored in the job's folder",
            hint.format(name),
            in_key=True,
            severity="warning",
        )
        for name, value in env.items()
        if value and looks_secret(name)
    ]


def _read(value: object) -> Any:
    """Return name -> source. A list has names, whose values come from variables of the submitter's shell."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        return _from_names(value)
    if not isinstance(value, Mapping):
        raise mistake("wrong-type", "expected names of variables", "write secrets: [WANDB_API_KEY]")
    _check_count(len(value))
    found = {str(name): f"{ENV}:{name}" if source is None else source for name, source in value.items()}
    problems = [one for name, source in found.items() if (one := _problem(name, source)) is not None]
    if problems:
        raise MistakesError(*problems)
    return found


def _from_names(names: list[object] | tuple[object, ...]) -> dict[str, str]:
    _check_count(len(names))
    problems, found = [], {}
    for place, name in enumerate(names):
        if isinstance(name, Mapping):
            message = "expected the name of a variable here"
            problem: Problem | None = Problem((place,), "wrong-type", message, "write secrets: {NAME: SOURCE}")
        else:
            problem = _name_problem(str(name), (place,), in_key=False)
            if problem is None and str(name) in found:
                problem = Problem((place,), "duplicate-entry", f"{quote(name)} is in this list twice", "delete one")
        if problem is not None:
            problems.append(problem)
        found[str(name)] = f"{ENV}:{name}"
    if problems:
        raise MistakesError(*problems)
    return found


def _check_count(count: int) -> None:
    if count > MAX_SECRETS:
        raise mistake("too-long", f"there are {count} secrets, more than {MAX_SECRETS}")


def name_problem(name: str) -> str:
    """Return what is wrong with the name of a secret; "": nothing. A value given by mistake is not repeated."""
    problem = _name_problem(name, (), in_key=False)
    return "" if problem is None else f"{problem.message}: {problem.hint}"


def _name_problem(name: str, place: tuple[str | int, ...], *, in_key: bool) -> Problem | None:
    if not _NAME.fullmatch(name):
        shown = quote(name.partition("=")[0] + "=…") if "=" in name else "this"  # it may be the value by mistake
        message = f"{shown} is no name for an environment variable"
        return Problem(place, "bad-env-name", message, "use letters, digits and _ only", in_key=in_key)
    if name.startswith(_RESERVED):
        prefix = next(one for one in _RESERVED if name.startswith(one))
        message = f"{quote(name)} is a name that cloudgpu or mpirun uses"
        return Problem(place, "bad-env-name", message, f"do not begin with {prefix}", in_key=in_key)
    return None


def _problem(name: str, source: object) -> Problem | None:
    return _name_problem(name, (name,), in_key=True) or _source_problem(name, source)


def _source_problem(name: str, source: object) -> Problem | None:
    if isinstance(source, str) and (message := source_problem(source)):
        if is_reference(source):
            return Problem((name,), "bad-secret", message, "docs/guides/secret-managers.md explains each form")
        return Problem((name,), "bad-secret", message, f"write {ENV}:{name}, and export {name} before `submit`")
    if not isinstance(source, str):
        return Problem((name,), "wrong-type", "expected where the value comes from", f"write {_forms()}")
    return None


def _forms() -> str:
    return one_of(["env:NAME", "file:PATH", "env-file:PATH", *(f"{name}://…" for name in schemes())])


def source_problem(source: str) -> str:
    """Return what is wrong with a source; "": nothing. The text is not repeated, for it may be the value itself."""
    if is_reference(source):
        try:
            parse(source)
        except ValueError as error:
            return str(error)
        return ""
    kind, colon, rest = source.partition(":")
    if not colon or kind not in SUBMITTER_KINDS:
        return f"expected where the value comes from, never the value itself: {_forms()}"
    if not rest.strip() or "\0" in rest or len(rest) > 4_096:
        return f"expected {kind}:{'NAME' if kind == ENV else 'PATH'}"
    if kind == ENV and not _NAME.fullmatch(rest):
        return "expected the name of an environment variable after env:"
    return ""


_SOURCE_SCHEMA = {
    "type": "string",
    "pattern": f"^({'|'.join(SUBMITTER_KINDS)}):.+$|^[a-z]+-[a-z]+://\\S+$",
    "maxLength": 4_200,
}
_NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}

Secrets = Annotated[
    dict[str, str],
    BeforeValidator(_read),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": _NAME_SCHEMA, "maxItems": MAX_SECRETS, "uniqueItems": True},
                {
                    "type": "object",
                    "propertyNames": _NAME_SCHEMA,
                    "additionalProperties": {"anyOf": [_SOURCE_SCHEMA, {"type": "null"}]},
                    "maxProperties": MAX_SECRETS,
                },
                _NAME_SCHEMA,
            ]
        }
    ),
]
"""Name of the variable -> source of its value."""
