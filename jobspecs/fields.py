"""Types of the job file's fields: parsing of their text, and messages for invalid values.

Validators raise MistakesError, which describes mistakes for the user with their place in the value; the loader adds the
line. Each type has the JSON Schema of the values that the loader accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
)

from . import targets
from .diagnostics import Loc, MistakesError, Problem, mistake, quote, shorten
from .suggest import did_you_mean, one_of
from .unit_text import format_duration
from .units import DURATION_SCHEMA, NodeRange, node_range, parse_duration, parse_whole, shorthand, whole, whole_schema

CloudName = str
"""Name of a target in a job file; see targets.names()."""
Market = Literal["on-demand", "spot", "flex-start", "reservation"]
RoleName = Literal["chief", "worker", "parameter_server", "evaluator"]
LauncherName = Literal["auto", "none", "torchrun", "tensorflow", "horovod", "mpi"]
RecoverName = Literal["supervisor", "fleet"]
OnDamageName = Literal["stop", "restart"]

MARKETS: tuple[Market, ...] = get_args(Market)
ROLES: tuple[RoleName, ...] = get_args(RoleName)
"""Roles in rank order: the chief is always rank 0."""
LAUNCHERS: tuple[LauncherName, ...] = get_args(LauncherName)
RECOVERS: tuple[RecoverName, ...] = get_args(RecoverName)
ON_DAMAGE: tuple[OnDamageName, ...] = get_args(OnDamageName)
MAX_NODES = 1_000
MAX_RETRIES = 10_000
MAX_PRIORITY = 100
FORMS = {
    "file": "file:///FOLDER",
    "s3": "s3://BUCKET/FOLDER",
    "gs": "gs://BUCKET/FOLDER",
    "az": "az://CONTAINER@ACCOUNT/FOLDER",
}
"""Scheme -> example URL, for hints."""
JOB_DIR_SCHEMES = tuple(FORMS)

_MAX_LIST = 64
_MAX_ENV = 1_000
_MAX_WORD = 64
"""Maximum characters of a wrong word from which a hint is derived."""
# Names of markets and roles in clouds and other tools.
_FOREIGN_WORDS = {
    "preemptible": "spot",
    "low-priority": "spot",
    "standard": "on-demand",
    "dws": "flex-start",
    "reserved": "reservation",
    "capacity-block": "reservation",
    "true": "spot",
    "yes": "spot",
    "interruptible": "spot",
    "master": "chief",
    "head": "chief",
    "leader": "chief",
    "ps": "parameter_server",
    "server": "parameter_server",
    "slave": "worker",
}
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}", re.ASCII)
_SPACE = re.compile(r"\s")


def _choice(options: tuple[str, ...]) -> BeforeValidator:
    """Return a validator that accepts one of a few words."""

    def check(value: object) -> Any:  # whatever the user wrote
        if value in options:
            return value
        raise _unknown(value, options)

    return BeforeValidator(check)


def _unknown(value: object, options: tuple[str, ...]) -> MistakesError:
    """Return the error for a value that is not among the options; it lists them."""
    words = [_meant(word, options) for word in str(value)[:_MAX_WORD].split(",")]
    hint = f"did you mean {words[0]}?" if words[0] else did_you_mean(str(value), options)
    if len(words) > 1 and all(words):
        hint = f"write [{', '.join(words)}]"
    return mistake("unknown-value", f"expected {one_of(options)}", hint)


def _check_cloud(value: object) -> Any:
    if not targets.is_name(value):
        raise _unknown(value, targets.names())
    return value


def _meant(word: str, options: tuple[str, ...]) -> str:
    """Return the option that a word means, which may be another tool's word for it; "" if there is none."""
    plain = word.strip()
    word = plain.lower().replace("_", "-").replace(" ", "-")
    aliases = (name for name, one in targets.built_in().items() if word in one.aliases)
    meant = plain if plain in options else _FOREIGN_WORDS.get(word) or next(aliases, "")
    return meant if meant in options else ""


def _text(most: int, *, least: int = 0) -> tuple[Any, ...]:
    """Return the annotations of a str of `least` to `most` characters.

    The schema also allows numbers and booleans: editors validate YAML's types, but the loader reads all values as text.
    """
    kinds = {"type": ["string", "number", "boolean"], "minLength": least, "maxLength": most}
    return (StringConstraints(min_length=least, max_length=most), WithJsonSchema(kinds))


def one_or_more(value: object) -> Any:
    """Wrap a single value in a tuple: `x` is short for `[x]`."""
    return value if isinstance(value, list | tuple) else (value,)


def each_once(value: tuple[object, ...]) -> tuple[Any, ...]:
    if len(value) < 2:
        return value
    seen: dict[str, int] = {}
    twice = [
        Problem((i,), "duplicate-entry", f"{quote(entry)} is in this list twice", "delete one of them")
        for i, entry in enumerate(value)
        if seen.setdefault(str(entry), i) != i
    ]
    if twice:
        raise MistakesError(*twice)
    return value


def _bounded(value: tuple[object, ...]) -> tuple[Any, ...]:
    if not value:
        raise mistake("empty-list", "this list is empty", "write at least one entry, or delete the key")
    if len(value) > _MAX_LIST:
        raise mistake("too-long", f"this list has {len(value)} entries, more than {_MAX_LIST}")
    return value


def list_of(item: Any) -> tuple[Any, ...]:  # a type
    """Return the annotations of a non-empty list without duplicates; a single entry may be written without the list."""
    listed = Annotated[list[item], Field(min_length=1, max_length=_MAX_LIST)]
    return (
        BeforeValidator(one_or_more, json_schema_input_type=item | listed),
        AfterValidator(_bounded),
        AfterValidator(each_once),
    )


def is_name(value: str) -> bool:
    """Return whether the text is a valid name of a job or cluster; valid names are safe as part of a path."""
    return _NAME.fullmatch(value) is not None


def _check_name(value: object) -> Any:
    if not isinstance(value, str) or is_name(value):
        return value
    plain = re.sub("[^a-z0-9]+", "-", value.lower()).strip("-")[:40].strip("-") if value.isascii() else ""
    raise mistake(
        "bad-name",
        "expected a name of lower-case letters, digits and hyphens, beginning with a letter, 40 characters at most",
        f"write {plain}" if _NAME.fullmatch(plain) else "",
    )


def _check_job_dir(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not separator:
        return value
    if scheme not in JOB_DIR_SCHEMES:
        allowed = one_of([f"{known}://" for known in JOB_DIR_SCHEMES])
        raise mistake("bad-job-dir", f"expected a path or {allowed}", did_you_mean(scheme, JOB_DIR_SCHEMES))
    if not rest.strip("/"):
        raise mistake("bad-job-dir", f"{quote(value)} names no folder", f"write {scheme}://NAME/FOLDER")
    return value


def _check_image(value: str) -> str:
    if _SPACE.search(value):
        raise mistake("bad-image", "expected the name of a container image, without spaces")
    return value


def _check_env(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    if len(value) > _MAX_ENV:
        raise mistake("too-long", f"there are {len(value)} variables, more than {_MAX_ENV}")
    mistakes = [problem for name, text in value.items() if (problem := _env_problem(str(name), text)) is not None]
    if mistakes:
        raise MistakesError(*mistakes)
    return value


def _env_problem(name: str, text: object) -> Problem | None:
    if not _ENV_NAME.fullmatch(name):
        shown = name.partition("=")[0] + "=…" if "=" in name else name  # a value may be part of the name by mistake
        message = f"{quote(shown)} is no name for an environment variable"
        return Problem((name,), "bad-env-name", message, "use letters, digits and _ only", in_key=True)
    if name.startswith("CLOUDGPU_"):
        message = f"{quote(name)} is a name cloudgpu itself uses"
        return Problem((name,), "bad-env-name", message, "do not begin with CLOUDGPU_", in_key=True)
    if isinstance(text, Mapping | list | tuple):
        return Problem((name,), "wrong-type", f"expected a text as value of {quote(name)}", "put quotes around it")
    if text is None:
        return Problem((name,), "no-value", f"{quote(name)} has no value", 'write "" for an empty one')
    return None


def _check_inputs(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    if len(value) > _MAX_LIST:
        raise mistake("too-long", f"there are {len(value)} inputs, more than {_MAX_LIST}")
    problems = [
        problem
        for path, urls in value.items()
        for problem in (_path_problem(str(path), absolute=True), *_url_problems(str(path), urls))
        if problem is not None
    ]
    if problems:
        raise MistakesError(*problems)
    return value


def _url_problems(path: str, urls: object) -> list[Problem | None]:
    """Return the problems of an input's URL, or of its URLs by cloud."""
    if isinstance(urls, Mapping):
        return [_url_problem((path, str(cloud)), url) for cloud, url in urls.items()]
    return [_url_problem((path,), urls)]


def _url_problem(place: Loc, url: object) -> Problem | None:
    scheme, separator, rest = str(url).partition("://")
    if isinstance(url, str) and separator and scheme in JOB_DIR_SCHEMES and rest.strip("/"):
        return None
    allowed = one_of([f"{known}://" for known in JOB_DIR_SCHEMES])
    schemes = targets.info(str(place[-1])).schemes
    form = FORMS[schemes[0] if len(schemes) == 1 else "s3"]
    return Problem(place, "bad-input", f"expected {allowed} and a folder", f"write {shorten(str(place[-1]))}: {form}")


def check_paths(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse entries that lead out of the job's folder. `value`: objects whose text is a path."""
    problems = [
        Problem((place,), problem.code, problem.message, problem.hint)
        for place, path in enumerate(map(str, value))
        if (problem := _path_problem(path, absolute=False)) is not None
    ]
    if problems:
        raise MistakesError(*problems)
    return value


def _check_label_key(key: str) -> str:
    if _LABEL_KEY.fullmatch(key) is None:
        raise mistake(
            "bad-label",
            f"{quote(shorten(key))} is no key of a label",
            "write letters, digits, `-`, `_`, `.` and `/`, beginning with a letter or digit, 63 at most",
        )
    return key


def _path_problem(path: str, *, absolute: bool) -> Problem | None:
    """Return the problem of a path on the machine; None if it is valid.

    A relative path must be in the code's folder. `absolute`: allow paths that begin with "/".
    """
    parts = path.split("/")
    if ".." in parts or "\0" in path or not path.strip("/."):
        return Problem((path,), "bad-path", f"{quote(path)} leads out of the job's folder, or nowhere", in_key=absolute)
    if path.startswith("/") and not absolute:
        message = f"{quote(path)} is not in the job's folder"
        return Problem((path,), "bad-path", message, "write it relative to the folder of the code")
    return None


def _word_or(word: str, parse: Any, write: Any, schema: dict[str, Any]) -> tuple[Any, ...]:
    """Return the annotations of a field that takes a certain word, or a value that `parse` accepts.

    write   converts a parsed value for serialization
    schema  JSON Schema of the other values
    """

    def read(value: Any) -> Any:
        try:
            return word if value == word else parse(value)
        except ValueError as error:
            message = str(error).replace("expected", f"expected {word} or", 1)
            hint = error.problems[0].hint if isinstance(error, MistakesError) else ""
            raise mistake("bad-value", message, hint) from error

    return shorthand(read, lambda value: value if value == word else write(value), {"anyOf": [{"const": word}, schema]})


class _TargetNames:
    """JSON Schema of a target's name: an enum of the installed targets."""

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, Any]:
        return {"enum": list(targets.names()), "type": "string"}


Name = Annotated[str, BeforeValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})]
MachineTypeName = Annotated[str, *_text(64, least=1)]
AcceleratorName = Annotated[str, *_text(64, least=1)]
PlaceName = Annotated[str, *_text(64, least=1)]
ImageName = Annotated[str, *_text(512, least=1), AfterValidator(_check_image)]
FolderPath = Annotated[str, *_text(1_024, least=1)]
JobDirUrl = Annotated[str, *_text(1_024, least=1), AfterValidator(_check_job_dir)]
Word = Annotated[str, *_text(65_536)]
LabelKey = Annotated[
    str, AfterValidator(_check_label_key), WithJsonSchema({"type": "string", "pattern": f"^{_LABEL_KEY.pattern}$"})
]
LabelValue = Annotated[str, *_text(255)]
NodeCount = Annotated[int, *whole(1, MAX_NODES)]
ElasticNodes = Annotated[NodeRange, *node_range(MAX_NODES)]
KeepCount = Annotated[int, *whole(1, 1_000)]
RetryCount = Annotated[int, *whole(0, MAX_RETRIES)]
Priority = Annotated[int, *whole(0, MAX_PRIORITY)]
Cloud = Annotated[CloudName, BeforeValidator(_check_cloud), _TargetNames()]
RoleKey = Annotated[RoleName, _choice(ROLES)]
Launcher = Annotated[LauncherName, _choice(LAUNCHERS)]
Recover = Annotated[RecoverName, _choice(RECOVERS)]
OnDamage = Annotated[OnDamageName, _choice(ON_DAMAGE)]
_Market = Annotated[Market, _choice(MARKETS)]

JobDirs = Annotated[
    Annotated[JobDirUrl, Tag("(text)")] | Annotated[dict[Cloud, JobDirUrl], Field(min_length=1), Tag("(mapping)")],
    Discriminator(lambda value: "(mapping)" if isinstance(value, Mapping) else "(text)"),
]
"""One URL for all clouds, or one per cloud."""

Clouds = Annotated[tuple[Cloud, ...], *list_of(Cloud)]
Places = Annotated[tuple[PlaceName, ...], *list_of(PlaceName)]
Markets = Annotated[tuple[_Market, ...], *list_of(_Market)]
EnvVars = Annotated[dict[str, Word], Field(max_length=_MAX_ENV), BeforeValidator(_check_env)]
Inputs = Annotated[dict[str, JobDirs], Field(max_length=_MAX_LIST), BeforeValidator(_check_inputs)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=_MAX_LIST)]
Command = Annotated[
    Annotated[str, *_text(1_000_000, least=1), Tag("(text)")]
    | Annotated[tuple[Word, ...], Field(min_length=1, max_length=10_000), Tag("(list)")],
    Discriminator(lambda value: "(list)" if isinstance(value, list | tuple) else "(text)"),
]
"""Text is run by the shell; a list is executed without one."""
SaveInterval = Annotated[Literal["auto"] | int, *_word_or("auto", parse_duration, format_duration, DURATION_SCHEMA)]
"""Seconds, or "auto"."""
CapacityPatience = Annotated[
    Literal["unlimited"] | int, *_word_or("unlimited", parse_duration, format_duration, DURATION_SCHEMA)
]
"""Seconds, or "unlimited"."""
PreemptionRetries = Annotated[
    Literal["unlimited"] | int,
    *_word_or("unlimited", lambda value: parse_whole(value, 0, MAX_RETRIES), int, whole_schema(0, MAX_RETRIES)),
]
