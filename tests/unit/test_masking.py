"""Masking: values of environment variables appear in no diagnostic, whatever their form in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudgpu.cli import main
from cloudgpu.cli.shared import crash
from cloudgpu.cli.shared.hidden_values import hide

SECRET = "s3cr3t"
FILES = {
    "flow on one line": 'name: x\nenv: {WANDB_API_KEY: s3cr3t-abc, "BAD NAME": x}\nrun: y\n',
    "a list as value": "name: x\nenv:\n  KEY: [s3cr3t]\nrun: y\n",
    "no valid YAML": 'name: x\nenv:\n  TOKEN: s3cr3t "b" c: d\nrun: y\n',
    "a value within the name": "name: x\nenv:\n  KEY=s3cr3t: b\nrun: y\n",
    "a duplicate": "name: x\nenv:\n  KEY: s3cr3t\n  KEY: s3cr3t\nrun: y\n",
    "a list of pairs": "name: x\nrun: y\nenv:\n- KEY=s3cr3t\n- KEY=s3cr3t\n",
    "a text": "env: s3cr3t\nname: x\nrun: y\n",
    "quotes that are never closed": 'name: x\nenv:\n  KEY: "s3cr3t\nrun: y s3cr3t\n',
    "flow on several lines": "name: x\nenvs: {A: 's3cr3t\n  s3cr3t', C: [s3cr3t,\n s3cr3t],\n   } }\nrun: y\n",
    "another tool's word": "name: x\nrun: y\nsecrets: {A: s3cr3t}\n",
    "a misspelt key": "name: x\nrun: y\nenviroment: {A: s3cr3t}\nevn: {A: s3cr3t}\n",
    "a misspelt key of a role": "run: y\nroles: {worker: {nodes: 1, environ: {A: s3cr3t}}}\n",
    "the whole file in one line": "{name: X Y, env: {A: s3cr3t}, run: [1]}\n",
    "a block of text": "name: x\nenv:\n  A: |\n    s3cr3t\n   s3cr3t\n  B: {s3cr3t: 1}\nrun: y\n",
    "a tab": "name: x\nenv:\n\tA: s3cr3t\nrun: y\n",
    "an unknown tag": "name: x\nenv:\n  A: !s3 s3cr3t\nrun: y\n",
}


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
@pytest.mark.parametrize("name", FILES)
def test_no_value_is_shown(name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FILES[name])
    assert main(["validate", str(file), "--format", form]) == 3
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    if form == "sarif":
        regions = [
            place["physicalLocation"]["region"]
            for found in json.loads(output.out)["runs"][0]["results"]
            for place in found["locations"]
        ]
        assert not [one for one in regions if "…" in one.get("snippet", {}).get("text", "")]


def test_other_lines_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nenv:\n  A: s3cr3t\n# why\nresources: {acelerator: T4}\nrun: python a.py\n")
    assert main(["validate", str(file)]) == 3
    output = capsys.readouterr().out
    assert "5 | resources: {acelerator: T4}" in output and "environment" not in output


@pytest.mark.parametrize(
    "words", [["--set", "env.KEY.x=1"], ["--set", "env.KEY=[s3cr3t"], ["--set", "env=s3cr3t"], ["--env", "=s3cr3t"]]
)
def test_a_setting_repeats_no_value(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nenv: {KEY: s3cr3t}\nrun: y\n")
    assert main(["plan", str(file), *words]) in (2, 3)
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err


def test_a_crash_report_hides_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    hide(["s3cr3t-value", "x"])
    path = crash.write_report(ValueError("bad: s3cr3t-value at x"), ["submit", "--env", "A=s3cr3t-value"])
    assert path is not None
    text = path.read_text()
    assert SECRET not in text and "bad: … at x" in text
