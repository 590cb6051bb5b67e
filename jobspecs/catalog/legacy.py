"""What AI Platform Training allowed (switched off in 2025): its job files are still read and converted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from . import csv_tables


@dataclass(frozen=True, slots=True)
class LegacyMachine:
    """What a machine type name of AI Platform's first years stands for, in Compute Engine's words."""

    name: str
    machine_type: str
    accelerator: str | None
    count: int
    evidence: Literal["documented", "analogy"]
    """`analogy`: the documentation's row was not found; read off its sister's."""


def ai_platform_counts(machine_type: str, accelerator: str) -> tuple[int, ...]:
    """GPU counts allowed on this machine type (by Compute Engine's name), ascending; empty: none."""
    return _counts().get((machine_type, accelerator), ())


@cache
def ai_platform_machine_types() -> frozenset[str]:
    """Machine types on which GPUs were allowed."""
    return frozenset(machine for machine, _ in _counts())


def ai_platform_legacy(name: str) -> LegacyMachine | None:
    """What a legacy machine type with GPUs, such as `complex_model_m_gpu`, stands for."""
    return ai_platform_legacy_names().get(name)


@cache
def ai_platform_legacy_names() -> dict[str, LegacyMachine]:
    table = csv_tables.rows("ai_platform_legacy", "name", "machine_type", "accelerator", "count", "evidence")
    return {
        name: LegacyMachine(
            name=name,
            machine_type=machine,
            accelerator=accelerator or None,
            count=int(count),
            evidence="documented" if evidence == "documented" else "analogy",
        )
        for name, machine, accelerator, count, evidence in table
    }


@cache
def ai_platform_regions(accelerator: str) -> frozenset[str]:
    """Regions that had this accelerator in 2020-21; empty: none is known."""
    table = csv_tables.rows("ai_platform_regions", "accelerator", "region")
    return frozenset(region for name, region in table if name == accelerator)


@cache
def _counts() -> dict[tuple[str, str], tuple[int, ...]]:
    table = csv_tables.rows("ai_platform_counts", "machine_type", "accelerator", "counts")
    return {(machine, accelerator): tuple(map(int, cell.split())) for machine, accelerator, cell in table}
