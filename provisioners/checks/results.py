"""Results and steps of a target's checks (`cloudgpu check`).

A target's `check` (provisioners/target.py) is a function (CheckRequest) -> list[Step]. Building the steps does no work;
control/check.py runs them with a timeout. A step only reads: it creates, changes and deletes nothing anywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...jobspecs.secrets import looks_secret
from ..base import ProvisionError
from ..shared.infra_outputs import Infrastructure

Subject = Literal[
    "sdk", "credentials", "network", "account", "api", "rights", "quota", "job_dir", "machine", "clusters", "set_up"
]
"""Subject of a check. set_up: of targets that have no checks of their own."""
Status = Literal["ok", "warning", "error", "skipped"]
"""error: jobs cannot run until it is mended; warning: some jobs cannot, or it could not be read; skipped: not checked,
because of an earlier error."""
_LOGIN_IN_URL = re.compile(r"(?<=://)[^\s/@]+(?:/[^\s@]*)?@")
_SHORTEST_SECRET = 6
"""Minimum length of a variable's value that is masked: shorter ones occur in any text."""
_LONGEST = 600
"""Maximum length of a message in characters: a proxy's page of HTML is no useful message."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. Texts from a provider are shortened to one line; who prints them escapes the rest."""

    subject: Subject
    status: Status
    message: str
    fix: str = ""
    """Remedy, with the command; "": none."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for scripts, e.g. {"account": "123456789012"}."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Regions and job dirs with which to check a target."""

    regions: tuple[str, ...] = ()
    """Regions that the user named, or that have an infra stack; (): the target's default."""
    job_dirs: tuple[str, ...] = ()
    """URLs of parents of job dirs."""
    stacks: tuple[Infrastructure, ...] = ()
    """Infra stacks of the target's cloud that this computer knows."""


class Step(NamedTuple):
    """One check. Whatever it raises becomes its result."""

    subject: Subject
    run: Callable[[], Iterable[CheckResult]]
    is_gate: bool = False
    """If it finds an error, the steps after it are skipped. Steps that are no gates run at the same time."""


@contextlib.contextmanager
def parsing(doing: str) -> Iterator[None]:
    """Context manager: raise ProvisionError if a provider's answer does not have the expected form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"{doing}: an unexpected answer ({type(error).__name__}); does a proxy answer in its place?"
        raise ProvisionError("transient", message, scope="cloud") from error


def from_error(subject: Subject, error: ProvisionError, *, needed: bool = True) -> CheckResult:
    """Return the result for an error of a provider. `needed`: launches need what was asked for; otherwise the result is
    a warning that says that it was not checked."""
    text = str(error).removesuffix(f"; {error.advice}") if error.advice else str(error)
    if error.error_class == "throttled":
        return CheckResult(subject, "warning", one_line(f"not checked: {text}"), "try again in a minute")
    fix = error.advice.removesuffix("; the job goes on then")
    if not needed and not error.is_login:
        return CheckResult(subject, "warning", one_line(f"not checked: {text}"), fix)
    return CheckResult(subject, "error", one_line(text), fix)


def from_unexpected(subject: Subject, error: Exception) -> CheckResult:
    """Return the result for an exception that no check expects: other checks and targets are still reported."""
    if isinstance(error, OSError) and error.strerror:
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return CheckResult(subject, "error", one_line(f"{path}{error.strerror}"))
    message = one_line(f"unexpected {type(error).__name__}: {without_secrets(str(error))}")
    fix = "check the files and variables of the credentials; if they are right, report this as a defect"
    return CheckResult(subject, "error", message, fix)


def without_secrets(text: str) -> str:
    """Return a text without logins in URLs and without the values of variables whose names look secret."""
    values = {value for name, value in os.environ.items() if looks_secret(name) and len(value) >= _SHORTEST_SECRET}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "…").replace(repr(value)[1:-1], "…")
    return _LOGIN_IN_URL.sub("…@", text)


def one_line(text: str) -> str:
    """Return the text on one line, shortened."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
