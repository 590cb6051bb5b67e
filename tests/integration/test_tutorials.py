"""The tutorials show what they promise when their commands are pasted, line by line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a clone is: with the example, and with `cloudgpu` and `python` on PATH."""
    shutil.copytree(ROOT / "examples" / "digits", tmp_path / "examples" / "digits")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cloudgpu").write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudgpu "$@"\n')
    (programs / "cloudgpu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    return tmp_path


def run(script: str, folder: Path, **variables: str) -> str:
    """Run the lines of a block in one shell; return stdout and stderr together."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def assert_shows(printed: str, promised: str) -> None:
    """Each promised line is printed, in that order; `…` stands for any text."""
    lines = iter(printed.splitlines())
    for line in promised.splitlines():
        pattern = re.escape(line).replace("…", ".*")
        assert any(re.fullmatch(pattern, found) for found in lines), f"{line!r} is not in\n{printed}"


def test_getting_started_shows_what_it_promises(folder: Path) -> None:
    printed = ""
    kinds = []
    for kind, text in BLOCK.findall((TUTORIALS / "getting-started.md").read_text()):
        kinds.append(kind)
        if kind == "yaml":
            (folder / text.split("\n")[0].removeprefix("# ")).write_text(text)
        elif kind == "bash":
            printed = run(text, folder)
        elif kind == "text" and "unknown-key" in text:
            (folder / "hello.yaml").write_text((folder / "hello.yaml").read_text().replace("accelerator", "acelerator"))
            mistake = subprocess.run(
                ["cloudgpu", "validate", "hello.yaml"], cwd=folder, capture_output=True, text=True, check=False
            )
            assert_shows(mistake.stdout, text)
            (folder / "hello.yaml").write_text((folder / "hello.yaml").read_text().replace("acelerator", "accelerator"))
        elif kind == "text":
            assert_shows(printed, text)
    assert kinds.count("bash") >= 6 and kinds.count("text") >= 6


@pytest.mark.parametrize(
    ("cloud", "job_dir"),
    [("aws", "s3://my-bucket/jobs"), ("gcp", "gs://my-bucket/jobs"), ("azure", "az://jobs@myaccount/runs")],
)
def test_the_first_cloud_job_can_be_planned(cloud: str, job_dir: str, folder: Path) -> None:
    page = (TUTORIALS / "first-cloud-job.md").read_text()
    [plans] = [text for kind, text in BLOCK.findall(page) if kind == "bash"]
    [command] = [line for line in plans.splitlines() if f"--cloud {cloud} " in line]
    assert f"export JOB_DIR={job_dir} " in page
    printed = run(command, folder, JOB_DIR=job_dir)
    assert re.search(rf"^ *1  {cloud} ", printed, re.MULTILINE)


def test_the_first_cloud_job_shows_the_file_it_submits() -> None:
    page = (TUTORIALS / "first-cloud-job.md").read_text()
    [shown] = [text for kind, text in BLOCK.findall(page) if kind == "yaml"]
    assert shown == (ROOT / "examples" / "digits" / "cloud.yaml").read_text().partition("\n")[2]
