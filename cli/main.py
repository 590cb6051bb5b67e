"""The `cloudgpu` command: a table of commands, each imported when it runs, and one handler for all errors.

Names and one-line descriptions are data here, so that `--help` imports no command. A module `cli/<name>.py`, or
`cli/<name>/command.py`, exports its click command as `command`; its return value is the exit code (None: 0).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

import click

from .. import __version__
from .exit_codes import Exit
from .shared import errors

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "cloudgpu"
COMPLETION_VARIABLE = "_CLOUDGPU_COMPLETE"
MAX_COLUMNS = 100
_GARBAGE_THRESHOLD = 100_000
"""Threshold of the garbage collector's youngest generation; Python's default is 700."""


class Entry(NamedTuple):
    """Section and description of a command in `--help`."""

    section: str
    summary: str


_SET_UP, _DESCRIBE, _RUN, _WATCH = "Set up", "Describe a job", "Run it", "Watch it"
_STAND, _KEEP = "Keep machines and networks", "Look after what runs"

COMMANDS: dict[str, Entry] = {
    "check": Entry(_SET_UP, "Show which targets can be used from here, and what is missing."),
    "validate": Entry(_DESCRIBE, "Check job files: every mistake, where, what to write."),
    "plan": Entry(_DESCRIBE, "Show where a job can run and for how much; starts nothing."),
    "convert": Entry(_DESCRIBE, "Turn an AI Platform or Vertex AI file into a job file."),
    "schema": Entry(_DESCRIBE, "Print the JSON Schema of job files, for editors."),
    "gpus": Entry(_DESCRIBE, "Browse accelerators, machine types, regions and prices."),
    "catalog": Entry(_DESCRIBE, "Look at the tables of prices and places; ask a provider for newer."),
    "submit": Entry(_RUN, "Run a job and follow its log until it ends."),
    "resume": Entry(_RUN, "Continue an ended job from its newest checkpoint."),
    "cancel": Entry(_RUN, "Stop jobs; each may save a checkpoint first."),
    "preempt": Entry(_RUN, "Give a running job a preemption notice, as a cloud would."),
    "secrets": Entry(_RUN, "Give a job the values of its secrets again."),
    "status": Entry(_WATCH, "List jobs, or show one with its attempts, machines and report."),
    "logs": Entry(_WATCH, "Print or follow what a job's program writes."),
    "outputs": Entry(_WATCH, "List or download the files that a job has produced."),
    "events": Entry(_WATCH, "Print or follow what happened to a job."),
    "wait": Entry(_WATCH, "Wait for a job to end; the exit code is its outcome."),
    "cost": Entry(_WATCH, "Show what jobs have cost so far."),
    "goodput": Entry(_WATCH, "Show what a job's paid time went into."),
    "metrics": Entry(_WATCH, "Show what a job's program logged, each step once."),
    "infra": Entry(_STAND, "Make, show and remove what stands in a cloud before any job."),
    "cluster": Entry(_STAND, "Keep machines for jobs: bring up, scale, take down."),
    "verify-resume": Entry(_KEEP, "Check that a program, killed and resumed, ends the same, bit for bit."),
    "image": Entry(_KEEP, "Build, push and run the image in which jobs run."),
    "supervise": Entry(_KEEP, "Run the supervisor in the foreground."),
    "rm": Entry(_KEEP, "Remove ended jobs with their logs, checkpoints and outputs."),
    "prune": Entry(_KEEP, "Remove all jobs that ended long ago; shows them first."),
    "gc": Entry(_KEEP, "Find machines no job needs any more, and end them."),
    "config": Entry(_KEEP, "Show and change defaults of job files and settings of this computer."),
    "completion": Entry(_KEEP, "Print the completion script of a shell."),
}


_FOLDERS = frozenset(
    {"catalog", "cluster", "config", "goodput", "gpus", "image", "infra", "outputs", "status", "verify-resume"}
)
"""Commands that are packages: the command is in `cli/<name>/command.py`."""


_WITHOUT_SETTINGS = frozenset({"config", "completion", "schema"})
"""Commands that work with an invalid configuration file: they show and mend it, or need none."""


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    module = name.replace("-", "_") + (".command" if name in _FOLDERS else "")
    return cast("click.Command", importlib.import_module(f".{module}", __package__).command)


class LazyGroup(click.Group):
    """Group whose commands are modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from ..jobspecs.suggest import closest

            near = closest(name, list(COMMANDS))
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names from COMMANDS; click's implementation would import every command."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=COMMANDS[name].summary) for name in COMMANDS if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
                )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_COLUMNS})
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run training jobs on GPU machines: checked before they cost money, resumed after every interruption.

    \b
    cloudgpu plan job.yaml      where it can run, and for how much
    cloudgpu submit job.yaml    run it there and follow its log
    """
    if ctx.invoked_subcommand not in _WITHOUT_SETTINGS and not {"-h", "--help"} & set(ctx.obj or ()):
        _apply_settings()


def _apply_settings() -> None:
    """Set the environment variables of the user's settings. Raises ConfigError, OSError."""
    from ..jobspecs.home import config_file

    if config_file().exists():
        from ..jobspecs.configuration.effective import apply_settings
        from ..jobspecs.configuration.files import user_file

        apply_settings(os.environ, user_file())


def run() -> NoReturn:
    """Run main() as the program `cloudgpu`, with a shorter interpreter start and shutdown.

    Garbage collection during imports and the interpreter's teardown would take a fifth of the time of `validate`.
    """
    gc.set_threshold(_GARBAGE_THRESHOLD)
    code = main()
    os._exit(code)  # main() has flushed the streams, or dropped what cannot be written


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises: an error is printed as a message (see errors.py)."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        _print_any_text()
        code = _run(words)
        _flush()
    except BaseException as error:  # noqa: BLE001 - the handler for all errors
        code = errors.report(error, words)
        _drop_what_cannot_be_written()
    return int(code)


def _run(words: list[str]) -> int:
    # cli.main() is not used: it handles a closed pipe itself (exit code 1), and hides the error from the caller.
    completing = os.environ.get(COMPLETION_VARIABLE)
    if completing:
        from click.shell_completion import shell_complete

        with contextlib.suppress(Exception):  # a shell shows no errors while it completes a word
            _apply_settings()
        return shell_complete(cli, {}, PROGRAM, COMPLETION_VARIABLE, completing)
    # https://no-color.org: a non-empty value disables colour. Without a terminal, click omits colour itself.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        with cli.make_context(PROGRAM, words, color=color, obj=words) as ctx:
            code = cli.invoke(ctx)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    return code if isinstance(code, int) else Exit.OK


def _print_any_text() -> None:
    """Make stdout and stderr print characters that their encoding lacks as escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # None: the stream is closed, or replaced by a test
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush the streams while an error can still be reported; the interpreter's shutdown would flush them too late."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _drop_what_cannot_be_written() -> None:
    """Discard buffered output for a closed pipe or a full disk. Python would retry it at exit and exit with code
    120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
