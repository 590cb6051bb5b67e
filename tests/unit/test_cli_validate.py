"""`cloudgpu validate` and `cloudgpu schema`: their output and exit codes."""

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
        ("{cloud: gcp, accelerator: 'L4:1024'}\nrun: x\n", "2:25: error: gcp L4:1024: "),
        ("{cloud: aws, accelerator: [L4:3, L4:16]}\nrun: x\n", "2:39: error: aws L4:3: "),
        ("{cloud: gcp, accelerator: A100, region: [us-west2]}\nrun: x\n", "2:53: error: gcp A100-40GB:1 in us-west2"),
        ("{cloud: gcp, accelerator: 'H100:1', market: on-demand}\nrun: x\n", "2:48: error: gcp H100-80GB:1, on-demand"),
        ("{cloud: azure, accelerator: A100-80GB, zone: us-east1-c}\nrun: x\n", "2:51: error: azure job: azure does"),
        ("{cloud: azure, accelerator: 'GB200:4'}\nrun: x\n", "2:27: error: azure GB200:4: the tables name no region"),
        ("{cloud: local, disk: 200GB}\nrun: x\n", "2:27: error: local job: local is one given machine"),
        ("{cloud: gcp}\nrun: x\nroles: {chief: {accelerator: 'L4:3'}}\n", "4:17: error: gcp L4:3: no machine"),
        ("{cloud: gcp}\nrun: x\npriority: 7\n", "4:1: error: gcp job: gcp has no queue that honours priority: 7"),
        ("{cloud: local}\nrun: x\nrecover: fleet\n", "4:1: error: local job: local has no groups"),
        (
            "{cloud: aws, accelerator: L4}\nrun: x\nimage: docker.io/x\n",
            "4:1: error: aws job: aws cannot run",
        ),
        (
            "{cloud: gcp}\nrun: x\nroles: {worker: {image: docker.io/x}}\n",
            "4:18: error: gcp job: gcp cannot run",
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


@pytest.mark.parametrize(
    ("resources", "code", "message"),
    [
        ("{accelerator: 'A100:3'}", "count-offered", "no machine of aws, gcp, vertex or azure has 3 A100-40GB"),
        ("{accelerator: 'L4:3'}", "count-offered", "L4:3: no machine of aws, gcp or vertex has 3 L4"),
        ("{machine_type: p2.xlarge}", "machine-type-retired", "no longer available on aws since 2025-06-15"),
        ("{machine_type: p4d.24xlarge, accelerator: 'H100:8'}", "accelerator-on-machine-type", "does not take H100"),
        (
            "{region: us-west2, accelerator: A100}",
            "offered-in-region",
            "A100-40GB:1 in us-west2: not offered in us-west2",
        ),
        ("{cloud: [aws, gcp], accelerator: L4}\nlimits: {price: 0.1 USD/h}", "price-cap", "gcp g2-standard-4 + L4:1"),
    ],
)
def test_one_diagnostic_for_one_cause(
    resources: str, code: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: job\nrun: x\ncode: null\nresources: {resources}\n")
    assert main(["validate", "--format", "json", str(file)]) == 4
    (found,) = json.loads(capsys.readouterr().out)["diagnostics"]
    assert found["code"] == code
    assert message in found["message"]


def test_clouds_that_the_job_names_are_all_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: job\nrun: x\ncode: null\nresources: {cloud: [local, gcp], accelerator: 'MI300X:3'}\n")
    assert main(["validate", "--format", "json", str(file)]) == 4
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert [one["code"] for one in found] == ["accelerator-offered", "local-machine"]


def test_json_says_of_each_file_what_it_can_be_used_for(
    good: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    impossible = tmp_path / "impossible.yaml"
    impossible.write_text(IMPOSSIBLE)
    assert main(["validate", "--format", "json", good, str(impossible), bad]) == 3
    assert json.loads(capsys.readouterr().out)["results"] == [
        {"file": good, "valid": True, "runnable": True},
        {"file": str(impossible), "valid": True, "runnable": False},
        {"file": bad, "valid": False, "runnable": False},
    ]


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
