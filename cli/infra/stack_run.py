"""Shared parts of `infra` and `cluster`: options, the Pulumi engine, and a stack opened exclusively with progress
output."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...jobspecs.targets import FLEET_CLOUDS
from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.output import ProgressLine, can_ask, echo_json, remark, warning
from .stack_view import step_text

if TYPE_CHECKING:
    from ...infra.engine.automation import Stack
    from ...infra.engine.events import Step
    from ...infra.preflight import Report
    from ...provisioners.shared.infra_outputs import Infrastructure
    from ...provisioners.stacks.clusters import Cluster

_F = TypeVar("_F", bound=Callable[..., Any])


def stack_options(function: _F) -> _F:
    """Add the options of every command that runs the engine (decorator)."""
    function = click.option(
        "--install-pulumi", is_flag=True, help="Where there is no `pulumi`, download one into the state directory."
    )(function)
    return click.option(
        "--backend",
        metavar="URL",
        help="Where stacks are: file://, s3://, gs:// or azblob://; else where it is known to be, "
        "CLOUDGPU_INFRA_BACKEND, or here.",
    )(function)


@contextlib.contextmanager
def open_stack(name: str, backend: str | None, *, install: bool) -> Iterator[Stack]:
    """Open the stack exclusively for this command and show its steps on stderr (context manager). Raises InfraError."""
    _need_sdk()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs every connection that an engine closes
    from ...infra.engine.automation import ProgressCallbacks, opened
    from ...infra.engine.backend import backend_of

    where = backend_of(backend, os.environ)
    with ProgressLine() as progress:
        engine = _engine(progress, install=install)

        def step(one: Step) -> None:
            text = step_text(one)
            if one.state == "begun":
                progress(text)
            else:
                progress.clear()
                remark(text)

        def say(text: str) -> None:
            progress.clear()
            remark(text)

        with opened(name, where, engine, ProgressCallbacks(step, say, progress)) as stack:
            yield stack


def _need_sdk() -> None:
    if importlib.util.find_spec("pulumi") is None:
        hint = " or ".join(f"pip install 'cloudgpu[infra-{cloud}]'" for cloud in FLEET_CLOUDS)
        raise CommandError("stacks need Pulumi's SDK", hint=hint, exit_code=Exit.UNAVAILABLE)


def _engine(progress: ProgressLine, *, install: bool) -> Any:  # infra.engine.Engine, imported late
    from ...infra.engine import executable as engine

    found = engine.find()
    if found is not None:
        return found
    if not install:
        if not can_ask():
            raise engine.missing_engine_error()
        question = "stacks need Pulumi's engine, some 100 MB: download it from get.pulumi.com into the state directory?"
        if not click.confirm(question, default=False, err=True):
            raise engine.missing_engine_error()
    progress("installing Pulumi")
    return engine.install()


def known_backend(load: Callable[[], Cluster | Infrastructure | None]) -> str | None:
    """Return the recorded backend of a stack; None if there is no record. If the record is unreadable, print a
    warning and return None: `status` rewrites it."""
    try:
        known = load()
    except ValueError as error:
        warning(str(error))
        return None
    return known.backend or None if known else None


@contextlib.contextmanager
def readable_records() -> Iterator[None]:
    """Raise InfraError instead of ValueError for an unreadable stack record; the message names the file (context
    manager)."""
    from ...infra.errors import InfraError

    try:
        yield
    except ValueError as error:
        raise InfraError(str(error)) from error


def check_account(stack: str, cloud: str, region: str, account: str) -> None:
    """Check that the credentials belong to the stack's account. Refreshing with another account's credentials would
    drop billed resources from the stack. Raises RefusedError, ProvisionError."""
    from ...infra.errors import RefusedError
    from ...provisioners.stacks.fleet_queries import account_of

    if account and (own := account_of(cloud, region)) != account:
        message = f"{stack} is of the account {account}, and these are the credentials of {own}"
        raise RefusedError(message, "use the credentials of that account, or another --backend for this one")


def require_consent(
    report: Report, result: Mapping[str, object], *, as_json: bool, yes: bool, question: str, default: bool = True
) -> None:
    """Require that no check refuses the operation, and that the user confirms it: with --yes, or at the terminal.

    Raises RefusedError for a refused report; with `as_json` it is printed together with `result` first. `default`:
    the answer of the Enter key.
    """
    from ...infra.errors import RefusedError

    if report.refusals:
        if as_json:
            echo_json({**result, **report.to_json()})
        first = report.refusals[0]
        raise RefusedError("; ".join(finding.message for finding in report.refusals), first.hint)
    if yes or not report.changes_anything:
        return
    if not can_ask():
        raise CommandError("nothing was done: there is no terminal to ask at", hint="add --yes", exit_code=Exit.USAGE)
    click.confirm(question, default=default, err=True, abort=True)
