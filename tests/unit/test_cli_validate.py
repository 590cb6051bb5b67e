"""`cloudgpu validate` and `cloudgpu schema`: what they print, and how they end."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from cloudgpu.cli import main

GOOD = "name: job\nresources: {accelerator: none, cloud: local}\nrun: python train.py\ncode: null\n"
BAD = "name: job\nresorces: {}\nresources: {region: us-esat-1, nodes: two}\nrun: python train.py\ncode: null\n"
IMPOSSIBLE = "name: job\nresources: {cloud: gcp, accelerator: 'L4:1024'}\nrun: x\ncode: null\n"


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return str(path)


def test_a_valid_file(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", good]) == 0
    assert capsys.readouterr().out == f"{good}: valid\n"


def test_every_mistake_is_printed(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", bad]) == 3
    out = capsys.readouterr().out
    assert f"{bad}:2:1: error: there is no key `resorces` here [unknown-key]\n" in out
    assert f"{bad}:3:21: error: " in out
    assert f"{bad}:3:39: error: expected a whole number from 1 to 1000, not `two` [bad-value]\n" in out
    assert out.endswith(f"{bad}: 3 mistakes\n")


def test_the_worst_file_decides(good: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impossible = tmp_path / "impossible.yaml"
    impossible.write_text(IMPOSSIBLE)
    assert main(["validate", good, str(impossible)]) == 4
    assert f"{impossible}: valid, but nothing can run it\n" in capsys.readouterr().out
    assert main(["validate", bad, str(impossible), good]) == 3


@pytest.mark.parametrize(
    ("refused", "place"),
    [
        ("{cloud: gcp, accelerator: 'L4:1024'}\nrun: x\n", "2:1: error: gcp L4:1024: "),
        ("{cloud: local}\nrun: x\nrecover: fleet\n", "4:1: error: local job: local has no groups"),
        (
            "{cloud: aws, accelerator: L4}\nrun: x\nimage: docker.io/x\n",
            "4:1: error: aws job: aws cannot run",
        ),
        (
            "{cloud: gcp}\nrun: x\nroles: {worker: {image: docker.io/x}}\n",
            "2:1: error: gcp job: gcp cannot run",
        ),
        ("{cloud: aws, accelerator: L4}\nrun: x\nlimits: {price: 0.01 USD/h}\n", "4:10: error: aws"),
    ],
)
def test_what_nothing_can_run_is_told_at_its_key(
    refused: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: job\nresources: {refused}code: null\n")
    assert main(["validate", str(file)]) == 4
    assert f"{file}:{place}" in capsys.readouterr().out


def test_json(good: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--format", "json", good, bad]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["valid"], report["runnable"], report["files"]) == (False, False, [good, bad])
    assert [(found["line"], found["column"]) for found in report["diagnostics"]] == [(2, 1), (3, 21), (3, 39)]


def test_sarif(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--format", "sarif", bad]) == 3
    assert len(json.loads(capsys.readouterr().out)["runs"][0]["results"]) == 3


def test_overrides(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", good, "--set", "resources.nodes=2"]) == 0
    assert main(["validate", good, "--set", "resources.nodes=two", "--set", "nonsense"]) == 3
    assert "--set nonsense: error: expected KEY=VALUE" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main(["validate", "-"]) == 3
    assert "<stdin>:2:1: error" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--format", "xml", "f"], ["-", "-"]])
def test_usage(arguments: list[str]) -> None:
    assert main(["validate", *arguments]) == 2


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path), str(tmp_path / "missing"), "/dev/zero"]) == 3
    out = capsys.readouterr().out
    assert "this is a folder" in out
    assert "there is no such file" in out
    assert "this is not a regular file" in out


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["name"]
    assert [set(one["required"]) for one in schema["anyOf"]] == [{"run"}, {"image"}, {"roles"}]
