"""docs/reference/cli.md and the code say the same."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

import cloudgpu
from cloudgpu.cli.exit_codes import MEANINGS

cli_main = importlib.import_module("cloudgpu.cli.main")  # cloudgpu.cli's attribute `main` is the function
COMMANDS = cli_main.COMMANDS
DOCS = Path(cloudgpu.__file__).parent / "docs"
PAGE = (DOCS / "reference" / "cli.md").read_text()
WITH_EXAMPLES = [
    page for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))] if "cloudgpu " in page.read_text()
]


def test_every_command_has_its_section_in_the_order_of_the_help() -> None:
    assert re.findall(r"^### (.+)$", PAGE, re.MULTILINE) == list(COMMANDS)
    sections = list(dict.fromkeys(entry.section for entry in COMMANDS.values()))
    assert [title for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE) if title in sections] == sections


def test_exit_codes_are_the_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert [(int(code), meaning.replace("`", "")) for code, meaning in rows] == [
        (int(code), meaning.replace("`", "")) for code, meaning in MEANINGS.items()
    ]


def examples(page: Path) -> list[str]:
    """The commands in a page's blocks of code, without `cloudgpu`."""
    text = re.sub(r"^```(?:yaml|python|json).*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    indented = "\n".join(re.findall(r"^ {4}(.*)$", text, re.MULTILINE))
    return re.findall(r"^(?:\$ )?cloudgpu ([a-z].*)$", f"{fenced}\n{indented}", re.MULTILINE)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.relative_to(DOCS.parent).as_posix())
def test_examples_name_commands_and_options_that_exist(page: Path) -> None:
    for example in examples(page):
        name, *words = re.split(r" -- | \| | > | +# | && |;", example)[0].split()
        command = cli_main.load_command(name)
        if isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        used = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
        assert isinstance(command, click.Command)
        assert used <= {*known, "--help"}, example


def test_environment_variables_are_read_somewhere() -> None:
    folders = [
        DOCS.parent / name for name in ("cli", "control", "jobspecs", "protocol", "provisioners", "runtime", "storage")
    ]
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    for variable in re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE):
        assert variable in sources, variable
