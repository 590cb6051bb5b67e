"""Accelerators (GPUs, training and inference chips), their canonical names and aliases."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from . import csv_tables
from .machines import Status, accelerator_status

_FOLD = str.maketrans("", "", " _-")


class Accelerator(NamedTuple):
    """Kind of GPU, or of training or inference chip; the figures are per device."""

    name: str
    vendor: str
    kind: Literal["gpu", "asic"]
    """`asic`: not a GPU, needs its own software stack (Neuron, Gaudi, ...), never selected by a memory size."""
    architecture: str
    memory_gb: float
    bandwidth_gb_s: float | None
    compute_capability: str
    """CUDA compute capability for NVIDIA (`8.0`), GFX version for AMD (`gfx942`); "" if there is none."""
    fp16_tflops: float | None
    """Dense, without sparsity, as is bf16_tflops."""
    bf16_tflops: float | None
    fp32_tflops: float | None
    mig_slices: int | None
    """Maximum number of MIG partitions (NVIDIA); 0: MIG is not supported; None: unknown."""
    aliases: tuple[str, ...]

    @property
    def status(self) -> Mapping[str, Status]:
        """Best status, by cloud, of the machine types with this accelerator; clouds that never sold it are absent."""
        return accelerator_status(self.name)


@cache
def accelerators() -> dict[str, Accelerator]:
    """Return the accelerators by canonical name, oldest generation first."""
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
    """Return the accelerator with a canonical name or alias; None if the name is unknown.

    Aliases are the names used by providers and drivers, and short names such as `H100`. `A100` alone means the A100
    with 40 GB, as in Google's and NVIDIA's older names; AWS uses it for both sizes.
    """
    return _by_folded_name().get(fold(text))


def fold(name: str) -> str:
    """Normalize an accelerator name for comparison: ignore case, blanks, `-` and `_`."""
    return name.translate(_FOLD).lower()


@cache
def _by_folded_name() -> dict[str, Accelerator]:
    return {fold(text): found for found in accelerators().values() for text in (found.name, *found.aliases)}
