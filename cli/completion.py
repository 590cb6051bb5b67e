"""`cloudgpu completion`: tab completion of commands, options, files and jobs."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  echo 'eval "$(cloudgpu completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(cloudgpu completion zsh)"' >> ~/.zshrc
    fish:  cloudgpu completion fish > ~/.config/fish/completions/cloudgpu.fish
    """
    from click.shell_completion import get_completion_class

    from .main import COMPLETION_VARIABLE, PROGRAM, cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(kind(cli, {}, PROGRAM, COMPLETION_VARIABLE).source())
