"""`cloudgpu config`, and the configuration in the commands that read job files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from cloudgpu.cli.exit_codes import Exit
from cloudgpu.cli.main import main


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's file, which does not exist; the working directory is a project."""
    path = tmp_path / "user" / "cloudgpu" / "config.toml"
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "it"  # a comment\n')
    (project / "job.yaml").write_text("name: hello\nrun: echo\nresources: {cloud: local}\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("CLOUDGPU_CONFIG", str(path))
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    return path


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str | None]]:
    capsys.readouterr()
    assert main(["config", "show", "--json"]) == Exit.OK
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}


def test_set_show_unset(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDGPU_LOCAL_SLOTS")
    for words in (
        ["limits.price", "20 USD/h"],
        ["resources.region", "us-east-1, us-central1"],
        ["job_dir.aws", "s3://bucket/jobs"],
        ["job_dir.gcp", "gs://bucket/jobs"],
        ["local_slots", "3"],
        ["database_url", "postgresql://me:secret@host/db"],
    ):
        assert main(["config", "set", *words]) == Exit.OK
    assert main(["config", "set", "--project", "limits.cost", "5 USD"]) == Exit.OK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", "2.5")
    rows = shown(capsys)
    assert rows["limits.price"] == ("20 USD/h", str(file))
    assert rows["limits.cost"] == ("5 USD", str(Path.cwd() / "pyproject.toml"))
    assert rows["resources.region"] == (["us-east-1", "us-central1"], str(file))
    assert rows["job_dir"] == ({"aws": "s3://bucket/jobs", "gcp": "gs://bucket/jobs"}, str(file))
    assert rows["resources.disk"] == ("100GB", None)
    assert rows["local_slots"] == ("3", str(file))
    assert rows["local_price"] == ("2.5", "CLOUDGPU_LOCAL_PRICE")
    assert rows["database_url"] == ("postgresql://…@host/db", str(file))
    assert "# a comment" in Path("pyproject.toml").read_text()

    assert main(["config", "show", "job_dir"]) == Exit.OK
    assert "aws: s3://bucket/jobs, gcp: gs://bucket/jobs" in capsys.readouterr().out
    assert main(["config", "unset", "limits.cost", "--project"]) == Exit.OK
    assert main(["config", "unset", "job_dir.aws"]) == main(["config", "unset", "job_dir.gcp"]) == Exit.OK
    rows = shown(capsys)
    assert rows["limits.cost"] == rows["job_dir"] == (None, None)
    assert main(["config", "unset", "job_dir.gcp"]) == Exit.OK
    assert "is not set in" in capsys.readouterr().err


def test_the_name_of_a_label_may_have_dots(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "labels.example.com/team", "vision"]) == Exit.OK
    assert shown(capsys)["labels"] == ({"example.com/team": "vision"}, str(file))
    assert main(["validate", "job.yaml"]) == Exit.OK
    assert main(["config", "unset", "labels.example.com/team"]) == Exit.OK
    assert shown(capsys)["labels"] == (None, None)


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@ss@h/db", "postgresql://u:pa/ss@h/db", "postgresql://h/db?user=u&password=p@ss&x=1"]
)
def test_no_form_of_a_password_is_shown(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("CLOUDGPU_DATABASE_URL", url)
    value, _ = shown(capsys)["database_url"]
    assert not any(part in str(value) for part in ("@ss", "/ss", "p@", "pa/"))


def test_show_one_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "checkpoint.keep"]) == Exit.OK
    assert capsys.readouterr().out == "3\n"
    assert main(["config", "show", "checkpoint.kept"]) == Exit.USAGE
    assert "checkpoint.keep" in capsys.readouterr().err
    assert main(["config", "path"]) == Exit.OK
    assert capsys.readouterr().out == f"{file}\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["limits.price", "cheap"], Exit.INVALID, "limits.price: expected an amount"),
        (["resources.region", "mars"], Exit.INVALID, "no region named 'mars'"),
        (["job_dir.mars", "s3://b/x"], Exit.INVALID, "not `mars`"),
        (["local_slots", "0"], Exit.INVALID, "local_slots: expected a whole number"),
        (["limits.prise", "1"], Exit.USAGE, "did you mean limits.price"),
        (["run", "rm"], Exit.USAGE, "there is no key `run`"),
        (["database_url", "x", "--project"], Exit.USAGE, "leave out --project"),
    ],
)
def test_a_wrong_value_is_not_written(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: Exit, message: str
) -> None:
    assert main(["config", "set", *words]) == code
    assert message in capsys.readouterr().err
    assert not file.exists()


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("# mine\n")
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    assert main(["config", "set", "checkpoint.keep", "5"]) == Exit.OK
    assert file.is_symlink() and target.read_text().startswith("# mine\n") and "keep" in target.read_text()


def test_edit_checks_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho \'limits.price = "cheap"\' > "$1.new"\nsed "/^.defaults/r $1.new" -i "$1"\n')
    editor.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "true")
    assert main(["config", "edit"]) == Exit.OK
    assert "is valid" in capsys.readouterr().err
    monkeypatch.setenv("EDITOR", str(editor))
    assert main(["config", "edit"]) == Exit.INVALID
    assert "limits.price" in capsys.readouterr().err


def test_commands_apply_it(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are environment variables of the command; defaults are noted, and are not part of a converted file."""
    monkeypatch.setenv("CLOUDGPU_LOCAL_PRICE", "")
    file.parent.mkdir(parents=True)
    file.write_text('[defaults]\nlimits.cost = "5 USD"\n[settings]\nlocal_price = 3\n')
    assert main(["plan", "job.yaml"]) == Exit.OK
    output = capsys.readouterr()
    assert "3.00" in output.out
    assert f"note: default applied: limits.cost in {file}" in output.err
    assert os.environ["CLOUDGPU_LOCAL_PRICE"] == "3"
    assert main(["convert", "job.yaml"]) == Exit.OK
    assert "cost" not in capsys.readouterr().out


def test_a_damaged_file_stops_commands_but_not_config(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("[defaults\n")
    for words in (["plan", "job.yaml"], ["status"], ["config", "show"], ["config", "set", "checkpoint.keep", "2"]):
        assert main(words) == Exit.INVALID, words
        assert str(file) in capsys.readouterr().err
    for words in (["config", "path"], ["schema"], ["status", "--help"]):
        assert main(words) == Exit.OK
