"""The entry point of the command line: lazy commands, one handler for every error, exit codes."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import cloudgpu
from cloudgpu.cli.exit_codes import MEANINGS, Exit
from cloudgpu.cli.shared import errors

cli_main = importlib.import_module("cloudgpu.cli.main")  # cloudgpu.cli's attribute `main` is the function
ROOT = Path(cloudgpu.__file__).parent


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cloudgpu", *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **env},
    )


def test_help_lists_every_command_and_imports_none() -> None:
    program = (
        "import sys; from cloudgpu.cli import main; code = main(['--help'])\n"
        "print(code, *[name for name in sys.modules if name.startswith('cloudgpu.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    for name in cli_main.COMMANDS:
        assert f"\n  {name} " in done.stdout
    *_, loaded = done.stdout.splitlines()
    code, *modules = loaded.split()
    assert code == "0"
    assert sorted(modules) == [
        f"cloudgpu.cli{name}" for name in ("", ".exit_codes", ".main", ".shared", ".shared.errors")
    ]
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("name", cli_main.COMMANDS)
def test_every_command_is_a_module_with_help(name: str) -> None:
    command = cli_main.load_command(name)
    assert isinstance(command, click.Command)
    assert command.help, "a command explains itself"
    assert cli_main.COMMANDS[name].summary.endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts} says what it does"


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"cloudgpu {cloudgpu.__version__}\n")


@pytest.mark.parametrize("name", cli_main.COMMANDS)
def test_the_line_of_a_subcommand_is_a_whole_sentence(name: str) -> None:
    command = cli_main.load_command(name)
    for one, sub in getattr(command, "commands", {}).items():
        line = sub.get_short_help_str(60)
        assert line.endswith(".") and not line.endswith("..."), f"{name} {one}: {line}"
        assert len(line) <= 60


def test_no_command_shows_the_help() -> None:
    done = run()
    assert done.returncode == Exit.USAGE
    assert "Describe a job" in done.stdout + done.stderr


def test_unknown_command_suggests_the_nearest() -> None:
    done = run("submitt")
    assert done.returncode == Exit.USAGE
    assert "Did you mean submit?" in done.stderr


def test_unknown_option_is_a_usage_error() -> None:
    done = run("wait", "--bogus", "x")
    assert done.returncode == Exit.USAGE
    assert done.stderr.splitlines() == [
        "Usage: cloudgpu wait [OPTIONS] JOB",
        "error: No such option '--bogus'.",
        "hint: cloudgpu wait --help",
    ]


def test_python_m_and_the_script_are_the_same() -> None:
    script = Path(sys.executable).with_name("cloudgpu")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout == run("--help").stdout


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)


def _fail(error: BaseException) -> Exit:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        return errors.report(raised, ["submit", "job.yaml", "--env", "TOKEN=s3cret", "--", "--password", "s3cret"])


def _error(name: str, *args: object) -> BaseException:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(f"cloudgpu.{module}"), kind)(*args)
    assert isinstance(error, BaseException)
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED, ""),
        (click.Abort(), Exit.INTERRUPTED, ""),
        (click.UsageError("wrong word"), Exit.USAGE, "wrong word"),
        (errors.CommandError("it rains", hint="wait", exit_code=Exit.IMPOSSIBLE), Exit.IMPOSSIBLE, "hint: wait"),
        (_error("control.errors.StoreError", "no store"), Exit.UNAVAILABLE, "no store"),
        (_error("control.errors.NoSuchJobError", "no job x"), Exit.USAGE, "no job x"),
        (_error("control.errors.SubmitError", "nothing fits"), Exit.IMPOSSIBLE, "nothing fits"),
        (_error("protocol.jobdir.MissingError", "no object"), Exit.UNAVAILABLE, "no object"),
        (_error("provisioners.base.ProvisionError", "quota", "none left"), Exit.UNAVAILABLE, "none left"),
        (_error("provisioners.base.ProvisionError", "invalid", "no such type"), Exit.IMPOSSIBLE, "no such type"),
        (PermissionError(13, "Permission denied", "/x/y"), Exit.UNAVAILABLE, "/x/y: Permission denied"),
        (OSError(28, "No space left on device"), Exit.UNAVAILABLE, "free some space"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_become_messages(
    error: BaseException, code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _fail(error) is code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_the_table_of_errors_names_classes_that_exist() -> None:
    for name in errors._HANDLERS:
        module, _, kind = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), kind), BaseException)


def test_spec_errors_name_file_line_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    from cloudgpu.jobspecs.diagnostics import Diagnostic, SpecError

    found = [
        Diagnostic("job.yaml", 3, 7, "unknown-key", "no key 'nodess'", "did you mean nodes?"),
        Diagnostic("job.yaml", 4, 1, "missing", "run is missing \x1b[31m"),
    ]
    assert _fail(SpecError(found)) is Exit.INVALID
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "job.yaml:3:7: error: no key 'nodess' [unknown-key]",
        "    hint: did you mean nodes?",
        "job.yaml:4:1: error: run is missing \\x1b[31m [missing]",
    ]


def test_a_defect_is_one_message_and_a_file_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    assert _fail(ZeroDivisionError("division by zero")) is Exit.CRASH
    printed = capsys.readouterr().err
    (report,) = (tmp_path / "home" / "crashes").iterdir()
    assert str(report) in printed
    assert "Traceback" not in printed
    text = report.read_text()
    assert "ZeroDivisionError" in text
    assert "TOKEN=…" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("home", ["file/home", "~nobody-of-that-name/home"])
def test_a_defect_is_told_even_where_the_state_dir_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOUDGPU_HOME", home)
    assert _fail(ValueError("x")) is Exit.CRASH
    assert "crash-" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "variables", "code"),
    [
        (["status", "\udcff"], {}, Exit.USAGE),
        (["cancel", "x\udcff"], {}, Exit.USAGE),
        (["status"], {"CLOUDGPU_HOME": "~nobody-of-that-name/home"}, Exit.UNAVAILABLE),
        (["status"], {"CLOUDGPU_DATABASE_URL": "postgresql://host:port/name"}, Exit.UNAVAILABLE),
    ],
)
def test_odd_input_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], variables: dict[str, str], code: Exit
) -> None:
    """A byte that is not text arrives from the shell as a lone surrogate."""
    monkeypatch.chdir(tmp_path)
    for name, value in ({"CLOUDGPU_HOME": "home"} | variables).items():
        monkeypatch.setenv(name, value)
    assert cli_main.main(words) == code


def test_a_closed_pipe_is_no_error() -> None:
    words = f"{sys.executable} -m cloudgpu --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


def test_a_full_disk_under_stdout_is_told() -> None:
    words = f"{sys.executable} -m cloudgpu --help > /dev/full"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == Exit.UNAVAILABLE
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_closed_standard_streams() -> None:
    for redirection in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        words = f"{sys.executable} -m cloudgpu --help {redirection}"
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=180, check=False)
        assert (done.returncode, done.stderr) == (0, ""), redirection


def test_a_terminal_without_the_characters_shows_escapes() -> None:
    done = run("数", PYTHONIOENCODING="latin-1")
    assert done.returncode == Exit.USAGE
    assert "\\u6570" in done.stderr


def test_completion_scripts() -> None:
    for shell, word in (("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")):
        done = run("completion", shell)
        assert done.returncode == 0
        assert word in done.stdout
        assert "_CLOUDGPU_COMPLETE" in done.stdout


def test_completing_a_command_imports_none() -> None:
    done = run(_CLOUDGPU_COMPLETE="bash_complete", COMP_WORDS="cloudgpu su", COMP_CWORD="1")
    assert done.stdout.split() == ["plain,submit", "plain,supervise"]


def test_public_api_table_matches_the_imports_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    typed = {
        alias.asname or alias.name: (f".{node.module}", alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == cloudgpu._HOMES
    assert set(cloudgpu.__all__) == {*cloudgpu._HOMES, "__version__"}
    assert dir(cloudgpu) == sorted(cloudgpu.__all__)


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        _ = cloudgpu.bogus
