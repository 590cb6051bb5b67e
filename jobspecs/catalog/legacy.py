"""Machine types, counts and regions of AI Platform Training (shut down in 2025), for converting its job files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from . import csv_tables


@dataclass(frozen=True, slots=True)
class LegacyMachine:
    """Compute Engine equivalent of a legacy machine type name of AI Platform."""

    name: str
    machine_type: str
    accelerator: str | None
    count: int
    evidence: Literal["documented", "analogy"]
    """`analogy`: not found in the documentation, but inferred from a similar machine type's row."""


def ai_platform_counts(machine_type: str, accelerator: str) -> tuple[int, ...]:
    """Return the GPU counts allowed on this Compute Engine machine type, ascending; empty if none are."""
    return _counts().get((machine_type, accelerator), ())


@cache
def ai_platform_machine_types() -> frozenset[str]:
    """Return the machine types on which GPUs were allowed."""
    return frozenset(machine for machine, _ in _counts())


def ai_platform_legacy(name: str) -> LegacyMachine | None:
    """Return the equivalent of a legacy machine type with GPUs, such as `complex_model_m_gpu`; None if unknown."""
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
    """Return the regions that had this accelerator in 2020-21; empty if none is known."""
    table = csv_tables.rows("ai_platform_regions", "accelerator", "region")
    return frozenset(region for name, region in table if name == accelerator)


@cache
def _counts() -> dict[tuple[str, str], tuple[int, ...]]:
    table = csv_tables.rows("ai_platform_counts", "machine_type", "accelerator", "counts")
    return {(machine, accelerator): tuple(map(int, cell.split())) for machine, accelerator, cell in table}
