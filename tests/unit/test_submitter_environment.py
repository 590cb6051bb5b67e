"""Environment variables of the submitter's shell that a job on this machine gets."""

from __future__ import annotations

import re
from pathlib import Path

from cloudgpu.control.submit import submitter_environment
from cloudgpu.control.submit.submitter_environment import NAMES, PREFIXES, SET_BY_THE_MACHINE, choose


def test_secrets_are_left_out_and_named() -> None:
    environ = {
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "CUDA_HOME": "/opt/cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "WANDB_API_KEY": "k",
        "TF_API_TOKEN": "t",
        "HTTPS_PROXY": "http://me:pass@proxy:3128",
        "http_proxy": "http://proxy:3128",
        "PIP_EXTRA_INDEX_URL": "https://a.example/simple https://token@b.example/simple",
        "CLOUDGPU_HOME": "/x",
        "EDITOR": "vi",
    }
    chosen, secret = choose(environ)
    assert chosen == {
        "CUDA_HOME": "/opt/cuda",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "http_proxy": "http://proxy:3128",
    }
    assert secret == ["HTTPS_PROXY", "PIP_EXTRA_INDEX_URL", "TF_API_TOKEN"]


def test_the_docs_show_the_list() -> None:
    page = (Path(submitter_environment.__file__).parents[2] / "docs/guides/local.md").read_text()
    table = page.partition("## The environment")[2].partition("Secrets are not stored")[0]
    shown = set(re.findall(r"`([A-Za-z_]+…?)`", table.partition("|---|")[2]))
    expected = NAMES | {f"{prefix}…" for prefix in PREFIXES} | SET_BY_THE_MACHINE | {"PATH"}
    assert shown == expected
