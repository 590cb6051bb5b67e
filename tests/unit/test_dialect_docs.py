"""docs/reference/dialects.md names every field and flag that the dialects know."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.jobspecs.dialects import ai_platform, vertex
from cloudgpu.jobspecs.dialects.gcloud_flags import BY_NAME
from cloudgpu.jobspecs.dialects.successors import SUCCESSORS

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "dialects.md").read_text(encoding="utf-8")
TABLES = {
    "ai_platform": (ai_platform.JOB, ai_platform.TRAINING_INPUT, ai_platform.SCHEDULING, ai_platform.REPLICA_CONFIG),
    "vertex": (
        vertex.JOB,
        vertex.CUSTOM_JOB_SPEC,
        vertex.WORKER_POOL,
        vertex.MACHINE,
        vertex.CONTAINER,
        vertex.PACKAGE,
    ),
}


@pytest.mark.parametrize("dialect", TABLES)
def test_every_field_is_documented(dialect: str) -> None:
    names = {name for fields in TABLES[dialect] for name in fields}
    missing = [name for name in names if f"{name}`" not in DOCS and f"{name}." not in DOCS]
    assert missing == []


def test_every_flag_is_documented() -> None:
    assert [name for name in BY_NAME if f"`{name}`" not in DOCS] == []


@pytest.mark.parametrize("gone", ["K80", "P100"])
def test_the_successors_are_documented(gone: str) -> None:
    new = ", ".join(name.removesuffix("-16GB") for name in SUCCESSORS[gone])
    assert f"| {gone} | {new} |" in DOCS
