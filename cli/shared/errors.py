"""Report any error of a command as one message on stderr and an exit code, never a traceback.

The table of handlers names exception classes as text, so that reporting an error imports no other module.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..exit_codes import Exit

if TYPE_CHECKING:
    from ...infra.errors import InfraError
    from ...jobspecs.configuration.files import ConfigError
    from ...jobspecs.diagnostics import SpecError
    from ...provisioners import ProvisionError


class CommandError(Exception):
    """Error that ends a command: message, hint for the user, and exit code."""

    def __init__(self, message: str, *, hint: str = "", exit_code: Exit) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


def report(error: BaseException, words: Sequence[str]) -> Exit:
    """Print the message for an error that ended the command line `words`; return the exit code."""
    try:
        return _report(error, words)
    except OSError:  # stderr itself cannot be written to
        return Exit.UNAVAILABLE


def _report(error: BaseException, words: Sequence[str]) -> Exit:
    if isinstance(error, SystemExit):
        return Exit(error.code) if error.code in set(Exit) else Exit.FAILED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo(err=True)  # ends the line on which the terminal shows ^C
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of `cloudgpu … | head` closed the pipe
        return Exit.OK
    for parent in type(error).__mro__:
        handle = _HANDLERS.get(f"{parent.__module__}.{parent.__qualname__}")
        if handle is not None:
            return handle(error)
    return _crash(error, words)


def _say(message: str, hint: str = "") -> None:
    from .output import clean, style

    click.echo(f"{style('error', 'bad', err=True)}: {clean(message)}", err=True)
    if hint:
        click.echo(f"{style('hint', 'note', err=True)}: {clean(hint)}", err=True)


def _text_handler(exit_code: Exit, hint: str = "") -> Callable[[BaseException], Exit]:
    """Return a handler that prints the error's own text."""

    def handle(error: BaseException) -> Exit:
        _say(str(error), hint)
        return exit_code

    return handle


def _command_error(error: CommandError) -> Exit:
    _say(str(error), error.hint)
    return error.exit_code


def _infra_error(exit_code: Exit) -> Callable[[InfraError], Exit]:
    def handle(error: InfraError) -> Exit:
        _say(str(error), error.hint)
        return exit_code

    return handle


def _usage_error(error: click.ClickException) -> Exit:
    """Print the usage line as click does, then the message in the form of all other errors."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return Exit.USAGE
    ctx = getattr(error, "ctx", None)
    if ctx is not None:
        click.echo(ctx.get_usage(), err=True)
    _say(error.format_message(), f"{ctx.command_path} --help" if ctx is not None else "")
    return Exit.USAGE


def _config_error(error: ConfigError) -> Exit:
    _say(str(error), error.hint)
    return Exit.INVALID


def _spec_error(error: SpecError) -> Exit:
    from ...jobspecs.loading.reports import to_text
    from .output import paint_diagnostic

    click.echo(to_text(error.diagnostics, partial(paint_diagnostic, err=True)), err=True)
    return Exit.INVALID


_PROVISION_HINTS = {
    "auth": "check the credentials of the target, then run the command again",
    "throttled": "try again in a minute",
    "transient": "try again in a minute",
}


def _provision_error(error: ProvisionError) -> Exit:
    impossible = error.error_class in {"invalid", "not_offered"}
    _say(str(error), _PROVISION_HINTS.get(error.error_class, ""))
    return Exit.IMPOSSIBLE if impossible else Exit.UNAVAILABLE


def _os_error(error: OSError) -> Exit:
    place = f"{error.filename}: " if error.filename else ""
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = "free some space, then run the command again" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    _say(f"{place}{reason}", hint)
    return Exit.UNAVAILABLE


_HANDLERS: dict[str, Callable[[Any], Exit]] = {
    f"{__name__}.CommandError": _command_error,
    "click.exceptions.ClickException": _usage_error,
    "cloudgpu.jobspecs.diagnostics.SpecError": _spec_error,
    "cloudgpu.jobspecs.configuration.files.ConfigError": _config_error,
    "cloudgpu.jobspecs.catalog.table_overrides.TableError": _text_handler(Exit.UNAVAILABLE),
    "cloudgpu.control.errors.NoSuchJobError": _text_handler(Exit.USAGE),
    "cloudgpu.control.errors.NotRunningError": _text_handler(Exit.USAGE),
    "cloudgpu.control.errors.SubmitError": _text_handler(Exit.IMPOSSIBLE),
    "cloudgpu.control.errors.ControlError": _text_handler(Exit.UNAVAILABLE),
    "cloudgpu.infra.errors.BadRequestError": _infra_error(Exit.USAGE),
    "cloudgpu.infra.errors.RefusedError": _infra_error(Exit.IMPOSSIBLE),
    "cloudgpu.infra.errors.CancelledError": _infra_error(Exit.INTERRUPTED),
    "cloudgpu.infra.errors.InfraError": _infra_error(Exit.UNAVAILABLE),
    "cloudgpu.provisioners.base.ProvisionError": _provision_error,
    "cloudgpu.storage.errors.JobDirError": _text_handler(Exit.UNAVAILABLE),
    "builtins.OSError": _os_error,
}


def _crash(error: BaseException, words: Sequence[str]) -> Exit:
    from .crash import write_report

    place = write_report(error, words)
    _say(
        f"cloudgpu has a defect: {type(error).__name__}: {error}",
        f"the details are in {place}: please report it with that file" if place else "no details could be written",
    )
    return Exit.CRASH
