"""Generate the documentation's page of all commands and options, as `--help` prints them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from cloudgpu.cli.main import COMMANDS, MAX_COLUMNS, PROGRAM, load_command

_INTRODUCTION = """# Commands and options

What `cloudgpu COMMAND --help` prints, for every command. [The command line](cli.md) has examples, exit codes and the
keys of `--json`.
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION]
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        parts.append(f"## {section}\n")
        for name, entry in COMMANDS.items():
            if entry.section == section:
                parts.append(f"### {name}\n\n{entry.summary}\n")
                parts += [
                    f"```text\n{_short(name, text)}\n```\n" for text in _helps(load_command(name), f"{PROGRAM} {name}")
                ]
    return "\n".join(parts)


def _short(name: str, text: str) -> str:
    """Return a command's help, with a reference to `submit` in place of gcloud's flags, which four commands have."""
    before, found, _ = text.partition("Flags of `gcloud ai-platform jobs submit training`:\n")
    return (
        text
        if name == "submit" or not found
        else before + "Flags of `gcloud ai-platform jobs submit training`: as for `submit`."
    )


def _helps(command: click.Command, path: str) -> Iterator[str]:
    """Yield the help of a command, then that of each of its subcommands."""
    context = click.Context(
        command,
        info_name=path,
        max_content_width=MAX_COLUMNS,
        terminal_width=MAX_COLUMNS,
        help_option_names=["-h", "--help"],
    )
    yield command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from _helps(sub, f"{path} {name}")
