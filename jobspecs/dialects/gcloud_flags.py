"""Table of the flags of `gcloud ai-platform jobs submit training`, and their application to a trainingInput document.

As with gcloud, a flag overrides the file, and arguments after `--` replace the file's. The place of a mistake in a flag
is ("--the-flag",), not a position in the file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..diagnostics import Loc, Problem, quote
from ..suggest import did_you_mean
from .conversion import Conversion, camel

if TYPE_CHECKING:
    import datetime

_F = TypeVar("_F", bound=Callable[..., Any])
USER_ARGS: Loc = ("-- USER_ARGS",)
JOB: Loc = ("JOB",)
_PREFIX = "gcloud_"
"""Prefix of the names of click's parameters, to avoid clashes with other options."""


def _text(value: str) -> str:
    return value


def _list(value: str) -> list[str]:
    items = value.split(",")
    if not all(item.strip() for item in items):
        raise ValueError("expected values with commas between them, as in dist/a.tar.gz,dist/b.whl")
    return [item.strip() for item in items]


def _pairs(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in value.split(","):
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"expected KEY=VALUE with commas between them, not {quote(item)}")
        if key.strip() in found:
            raise ValueError(f"{quote(key.strip())} is given twice")
        found[key.strip()] = text.strip()
    return found


def _accelerator(value: str) -> dict[str, str]:
    """Parse `count=4,type=nvidia-tesla-t4` to the form of gcloud's files: upper case and underscores."""
    pairs = _pairs(value)
    for key in pairs:
        if key not in ("count", "type"):
            raise ValueError(
                f"unknown key {quote(key)}; {did_you_mean(key, ('count', 'type')) or 'use count and type'}"
            )
    if "type" not in pairs:
        raise ValueError("expected a type, as in count=4,type=nvidia-tesla-t4")
    return {"count": pairs.get("count", "1"), "type": pairs["type"].upper().replace("-", "_")}


@dataclass(frozen=True, slots=True)
class Flag:
    """Flag of the gcloud command."""

    name: str
    metavar: str
    """Name of the value in the help; "" for a flag without a value."""
    help: str
    path: tuple[str, ...] = ()
    """Place of the flag's value in the document; () if the document has no field for it."""
    parse: Callable[[str], Any] = _text
    lost: str = ""
    """Reason why the flag has no effect; "" if it has an effect."""
    refused: bool = False
    """True: the flag is an error, because ignoring it would change the job."""
    short: str = ""
    """One-letter form, e.g. `-q`."""

    @property
    def parameter(self) -> str:
        return _PREFIX + self.name.removeprefix("--").replace("-", "_")


_INPUT = "trainingInput"


def _group(name: str, field: str, what: str) -> tuple[Flag, ...]:
    config = (_INPUT, f"{field}Config")
    return (
        Flag(f"--{name}-machine-type", "TYPE", f"Machine type of the {what}.", (_INPUT, f"{field}Type")),
        Flag(
            f"--{name}-accelerator",
            "count=N,type=TYPE",
            f"GPUs of the {what}, e.g. count=4,type=nvidia-tesla-t4.",
            (*config, "acceleratorConfig"),
            _accelerator,
        ),
        Flag(f"--{name}-image-uri", "IMAGE", f"Container image of the {what}.", (*config, "imageUri")),
    )


_DETACH = "`cloudgpu submit` follows the log, and `--detach` leaves it"
_ACCOUNT = "the account is the one of your credentials"
_REQUESTS = "no request is made by gcloud"
_OUTPUT = "what is printed is cloudgpu's; `--json` is for scripts"
_NONE = "Has no effect."
_KMS = "cloudgpu cannot encrypt with your key yet"
FLAGS: tuple[Flag, ...] = (
    Flag("--scale-tier", "TIER", "basic, basic-gpu, standard-1, premium-1 or custom.", (_INPUT, "scaleTier")),
    *_group("master", "master", "master"),
    Flag("--worker-count", "N", "Number of workers.", (_INPUT, "workerCount")),
    *_group("worker", "worker", "workers"),
    Flag("--parameter-server-count", "N", "Number of parameter servers.", (_INPUT, "parameterServerCount")),
    *_group("parameter-server", "parameterServer", "parameter servers"),
    Flag("--use-chief-in-tf-config", "BOOL", "Call the master chief in TF_CONFIG.", (_INPUT, "useChiefInTfConfig")),
    Flag("--module-name", "MODULE", "Python module to run, e.g. trainer.task.", (_INPUT, "pythonModule")),
    Flag("--package-path", "FOLDER", "Folder of the Python package; its parent is shipped."),
    Flag("--packages", "FILE,…", "Packages to install, local or gs://.", (_INPUT, "packageUris"), _list),
    Flag("--job-dir", "URL", "Where outputs go; the program gets it as --job-dir.", (_INPUT, "jobDir")),
    Flag("--region", "REGION", "Where to run.", (_INPUT, "region")),
    Flag("--runtime-version", "VERSION", "Has no effect.", (_INPUT, "runtimeVersion")),
    Flag("--python-version", "VERSION", "Has no effect.", (_INPUT, "pythonVersion")),
    Flag("--service-account", "EMAIL", "Has no effect.", (_INPUT, "serviceAccount")),
    Flag("--network", "NETWORK", "Has no effect.", (_INPUT, "network")),
    Flag("--enable-web-access", "", "Has no effect.", (_INPUT, "enableWebAccess")),
    Flag("--tpu-tf-version", "VERSION", "Has no effect: there are no TPUs.", (_INPUT, "masterConfig", "tpuTfVersion")),
    Flag("--labels", "KEY=VALUE,…", "Has no effect.", ("labels",), _pairs),
    Flag("--staging-bucket", "BUCKET", "Has no effect.", lost="code is shipped through the job dir"),
    Flag("--stream-logs", "", "Has no effect.", lost=_DETACH),
    Flag("--async", "", "Has no effect.", lost=_DETACH),
    Flag("--project", "PROJECT", "Has no effect.", lost="the project is the one your credentials name"),
    Flag("--kms-key", "KEY", f"Refused: {_KMS}.", (_INPUT, "encryptionConfig", "kmsKeyName")),
    Flag("--kms-keyring", "KEYRING", "Has no effect without --kms-key.", lost="it is part of --kms-key"),
    Flag("--kms-location", "LOCATION", "Has no effect without --kms-key.", lost="it is part of --kms-key"),
    Flag("--kms-project", "PROJECT", "Has no effect without --kms-key.", lost="it is part of --kms-key"),
    # Flags common to all gcloud commands.
    Flag("--account", "ACCOUNT", _NONE, lost=_ACCOUNT),
    Flag("--access-token-file", "FILE", _NONE, lost=_ACCOUNT),
    Flag("--billing-project", "PROJECT", _NONE, lost="the project that pays is the one of your credentials"),
    Flag("--configuration", "NAME", _NONE, lost="the settings of gcloud are not read"),
    Flag("--flags-file", "FILE", "Refused.", lost="a file of flags is not read: write its flags here", refused=True),
    Flag("--flatten", "KEY,…", _NONE, lost=_OUTPUT),
    Flag("--format", "FORMAT", _NONE, lost=_OUTPUT),
    Flag("--impersonate-service-account", "EMAIL", _NONE, lost=_ACCOUNT),
    Flag("--log-http", "", _NONE, lost=_REQUESTS),
    Flag("--quiet", "", _NONE, lost="`--yes` answers the question before a paid offer", short="-q"),
    Flag("--trace-token", "TOKEN", _NONE, lost=_REQUESTS),
    Flag("--user-output-enabled", "", _NONE, lost=_OUTPUT),
    Flag("--verbosity", "LEVEL", _NONE, lost=_OUTPUT),
)
BY_NAME = {flag.name: flag for flag in FLAGS}
"""Flags by name, as returned by `take()`; a flag without a value also has the form `--no-NAME`."""


def apply(
    document: Mapping[str, object] | None,
    flags: Mapping[str, str],
    user_args: Sequence[str] | None = None,
    *,
    job: str | None = None,
    folder: str | None = None,
    today: datetime.date | None = None,
) -> Conversion:
    """Convert a gcloud command line to a job file; `document` is its --config file (None without one).

    flags      text by flag, e.g. "--worker-count" ("true" or "false" for a flag without a value); KeyError is raised
               for an unknown flag, which the command line's parser would have refused
    user_args  the arguments that follow `--`
    job        the argument JOB
    folder     the config file's folder, to which `code:` is relative, if it differs from the working directory
    today      see Conversion
    """
    patched: dict[str, Any] = dict(document or {})
    origins: dict[Loc, Loc] = {}
    problems = []
    for name, text in flags.items():
        flag = BY_NAME[name]
        try:
            if flag.path:
                _patch(patched, flag.path, flag.parse(text), (name,), origins)
        except ValueError as error:
            problems.append(Problem((name,), "wrong-flag", f"{name}: {error}"))
    if user_args is not None:
        _patch(patched, (_INPUT, "args"), list(user_args), USER_ARGS, origins)
    if job is not None:
        _patch(patched, ("jobId",), job, JOB, origins)
    if not any(camel(str(key)) == _INPUT for key in patched):
        patched[_INPUT] = {}
    from . import ai_platform

    conversion = ai_platform.convert(patched, origins, package_path=_package_path(flags, folder), today=today)
    conversion.problems[:0] = problems
    for flag in map(BY_NAME.__getitem__, flags):
        if flag.refused:
            message, hint = f"{flag.name}: {flag.lost}", f"remove {flag.name} to go on without it"
            conversion.error((flag.name,), "no-counterpart", message, hint)
        elif flag.lost:
            conversion.note(f"{_as_given(flag, flags[flag.name])} has no effect: {flag.lost}")
    return conversion


def _as_given(flag: Flag, text: str) -> str:
    return f"--no-{flag.name.removeprefix('--')}" if not flag.metavar and text == "false" else flag.name


def _package_path(flags: Mapping[str, str], folder: str | None) -> str | None:
    path = flags.get("--package-path")
    if path is None or folder is None:
        return path
    return posixpath.relpath(path, folder)


def _patch(target: dict[str, Any], path: Sequence[str], value: object, flag: Loc, origins: dict[Loc, Loc]) -> None:
    """Set the value at a path of the document, and record the flag as its origin.

    Nested mappings are copied, so that the caller's stay unchanged; existing snake_case keys are reused.
    """
    place: Loc = ()
    for step, name in enumerate(path, start=1):
        key = next((key for key in target if camel(str(key)) == name), name)
        place = (*place, key)
        if step == len(path):
            target[key] = value
        else:
            if key not in target and step > 1:
                origins[place] = flag
            inner = target.get(key)
            target[key] = dict(inner) if isinstance(inner, Mapping) else {}
            target = target[key]
    origins[place] = flag


def click_options(*, skip: Collection[str] = ()) -> Callable[[_F], _F]:
    """Return a decorator that adds the flags to a click command; `take()` collects their values.

    `skip`: names of flags, or short forms, that the command defines itself.
    """
    import click

    def decorate(function: _F) -> _F:
        for flag in reversed([flag for flag in FLAGS if flag.name not in skip]):
            kind: dict[str, Any] = {"metavar": flag.metavar} if flag.metavar else {"is_flag": True, "default": None}
            name = flag.name if flag.metavar else f"{flag.name}/{_as_given(flag, 'false')}"
            short = [flag.short] if flag.short and flag.short not in skip else []
            function = click.option(name, *short, flag.parameter, help=flag.help, **kind)(function)
        return function

    return decorate


def take(parameters: dict[str, Any]) -> dict[str, str]:
    """Remove the flags from a click command's parameters; return them as name -> text."""
    found = {}
    for flag in _present(parameters):
        value = parameters.pop(flag.parameter)
        if value is not None:
            found[flag.name] = str(value).lower() if isinstance(value, bool) else value
    return found


def _present(parameters: Mapping[str, object]) -> Iterable[Flag]:
    return [flag for flag in FLAGS if flag.parameter in parameters]
