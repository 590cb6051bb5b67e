"""Accelerators: kinds of GPU and of training or inference chip, and the names people and providers give them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from . import csv_tables
from .machines import Status, accelerator_status

_FOLD = str.maketrans("", "", " _-")


class Accelerator(NamedTuple):
    """A kind of GPU, or of training or inference chip; the figures are of one device."""

    name: str
    vendor: str
    kind: Literal["gpu", "asic"]
    """`asic`: no GPU, needs software of its own (Neuron, Gaudi ...); memory alone does not ask for one."""
    architecture: str
    memory_gb: float
    bandwidth_gb_s: float | None
    compute_capability: str
    """CUDA's for NVIDIA (`8.0`), the GFX version for AMD (`gfx942`); "" if there is none."""
    fp16_tflops: float | None
    """Dense, not the doubled figure with sparsity; so is bf16_tflops."""
    bf16_tflops: float | None
    fp32_tflops: float | None
    mig_slices: int | None
    """Parts the device can be split into (NVIDIA MIG); 0: it cannot; None: unknown."""
    aliases: tuple[str, ...]

    @property
    def status(self) -> Mapping[str, Status]:
        """cloud -> the best status among the machine types that carry it there; a cloud that never did is absent."""
        return accelerator_status(self.name)


@cache
def accelerators() -> dict[str, Accelerator]:
    """By canonical name, oldest generation first."""
    aliases: dict[str, list[str]] = {}
    for alias, name in csv_tables.rows("accelerator_aliases", "alias", "accelerator"):
        aliases.setdefault(name, []).append(alias)
    texts = ("name", "vendor", "kind", "architecture", "compute_capability", "memory_gb", "mig_slices")
    figures = ("bandwidth_gb_s", "fp16_tflops", "bf16_tflops", "fp32_tflops")
    found = {}
    for name, vendor, kind, architecture, capability, memory, slices, *cells in csv_tables.rows(
        "accelerators", *texts, *figures
    ):
        found[name] = Accelerator(
            name=name,
            vendor=vendor,
            kind="gpu" if kind == "gpu" else "asic",
            architecture=architecture,
            compute_capability=capability,
            memory_gb=float(memory),
            mig_slices=csv_tables.integer(slices),
            aliases=tuple(aliases.get(name, ())),
            **dict(zip(figures, map(csv_tables.number, cells), strict=True)),
        )
    return found


def find_accelerator(text: str) -> Accelerator | None:
    """The accelerator of a canonical name or alias (a provider's or driver's name, or a short one such as `H100`).

    A bare `A100` is the one with 40 GB, as in Google's and NVIDIA's older names; AWS uses it for both sizes.
    """
    return _by_folded_name().get(fold(text))


def fold(name: str) -> str:
    """The form in which accelerator names are compared: case, blanks, `-` and `_` do not count."""
    return name.translate(_FOLD).lower()


@cache
def _by_folded_name() -> dict[str, Accelerator]:
    return {fold(text): found for found in accelerators().values() for text in (found.name, *found.aliases)}
