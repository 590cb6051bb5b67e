"""Rules of AI Platform Training for clusters: allowed scale tiers, machine types, counts, accelerators, regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..diagnostics import Loc, quote
from ..rules.accelerator_hints import meant_accelerators
from ..suggest import closest, one_of
from .conversion import Conversion, Reader
from .replica_groups import Group, Machine

PREFIXES = {
    "master": "chief",
    "worker": "worker",
    "parameterServer": "parameter_server",
    "evaluator": "evaluator",
}
"""Prefix of the service's field names for a replica group -> role, in rank order."""


class Size(NamedTuple):
    nodes: int
    machine: Machine


_CPU = (None, 0)
SCALE_TIERS: dict[str, dict[str, Size]] = {
    # Source: the service's page "Specify machine types or scale tiers".
    "BASIC": {"master": Size(1, Machine("n1-standard-4", *_CPU))},
    "STANDARD_1": {
        "master": Size(1, Machine("n1-highcpu-8", *_CPU)),
        "worker": Size(4, Machine("n1-highcpu-8", *_CPU)),
        "parameterServer": Size(3, Machine("n1-standard-4", *_CPU)),
    },
    "PREMIUM_1": {
        "master": Size(1, Machine("n1-highcpu-16", *_CPU)),
        "worker": Size(19, Machine("n1-highcpu-16", *_CPU)),
        "parameterServer": Size(11, Machine("n1-highmem-8", *_CPU)),
    },
    "BASIC_GPU": {"master": Size(1, Machine("n1-standard-8", "K80", 1))},
    "BASIC_TPU": {},
    "CUSTOM": {},
}
LEGACY_CPU_TYPES = {
    # Legacy machine types without a GPU as Compute Engine types. They are not documented: sizes are inferred from their
    # GPU variants (tables/ai_platform_legacy.csv).
    "standard": "n1-standard-4",
    "large_model": "n1-highmem-8",
    "complex_model_s": "n1-highcpu-8",
    "complex_model_m": "n1-highcpu-16",
    "complex_model_l": "n1-highcpu-32",
}
ACCELERATOR_TYPES = {
    "NVIDIA_TESLA_K80": "K80",
    "NVIDIA_TESLA_P4": "P4",
    "NVIDIA_TESLA_P100": "P100",
    "NVIDIA_TESLA_T4": "T4",
    "NVIDIA_TESLA_V100": "V100-16GB",
    "NVIDIA_TESLA_A100": "A100-40GB",
}
"""The service's name of each of its accelerators -> canonical name."""
TPU_TYPES = ("cloud_tpu", "standard_tpu")
_TPU_HINT = (
    "the closest GPU is an A100, if the program runs on GPUs: scaleTier: CUSTOM, masterType: a2-highgpu-1g, "
    "masterConfig: {acceleratorConfig: {type: NVIDIA_TESLA_A100, count: 1}}"
)


def read_tier(conversion: Conversion, source: Reader) -> str | None:
    """Return the scale tier; None if its machines cannot be determined.

    Reports unknown tiers, and fields that are only allowed for CUSTOM.
    """
    written = source.text("scaleTier")
    tier = (written or "BASIC").upper().replace("-", "_")
    loc = source.loc("scaleTier")
    if tier not in SCALE_TIERS:
        near = closest(tier, SCALE_TIERS)
        hint = f"did you mean {one_of(near)}?" if near else f"one of {', '.join(SCALE_TIERS)}"
        conversion.error(loc, "unknown-scale-tier", f"unknown scale tier {quote(written)}", hint)
        return None
    if tier == "BASIC_TPU":
        conversion.error(loc, "no-tpu", "BASIC_TPU: there are no TPUs in cloudgpu", _TPU_HINT)
        return None
    if tier != "CUSTOM":
        _only_custom(conversion, source, tier, written)
    elif "masterType" not in source:
        conversion.error(
            loc,
            "missing-machine-type",
            "scaleTier CUSTOM needs a masterType",
            "add for example masterType: n1-standard-8",
        )
        return None
    return tier


def _only_custom(conversion: Conversion, source: Reader, tier: str, written: str | None) -> None:
    said = f"scaleTier {tier}" if written else "no scaleTier, which means BASIC,"
    for prefix in PREFIXES:
        config = source.child(f"{prefix}Config")
        for reader, name in ((source, f"{prefix}Type"), (source, f"{prefix}Count"), (config, "acceleratorConfig")):
            if name in reader:
                message = f"{said} sets the machines itself: {name} is only for CUSTOM"
                conversion.error(reader.loc(name), "only-custom-tier", message, "write scaleTier: CUSTOM")


def read_size(conversion: Conversion, source: Reader, prefix: str, tier: str) -> Size | None:
    """Return the replica count and machine of a group; None if the group is absent or a mistake was reported."""
    if tier != "CUSTOM":
        return SCALE_TIERS[tier].get(prefix)
    nodes = 1 if prefix == "master" else source.integer(f"{prefix}Count")
    if nodes is None and f"{prefix}Count" in source:
        return None
    if not nodes:
        for name in (f"{prefix}Type", f"{prefix}Config"):
            if name in source:
                message = f"{name} has no effect: {prefix}Count is 0"
                conversion.warn(source.loc(name), "no-replicas", message, f"add {prefix}Count, or remove {name}")
        return None
    machine = _machine(conversion, source, prefix)
    return None if machine is None else Size(nodes, machine)


def _machine(conversion: Conversion, source: Reader, prefix: str) -> Machine | None:
    name = f"{prefix}Type"
    machine_type = source.text(name)
    loc = source.loc(name)
    if machine_type is None:
        message = f"{prefix}Count needs a {name}"
        conversion.error(source.loc(f"{prefix}Count"), "missing-machine-type", message, f"add {name}: n1-standard-8")
        return None
    if machine_type in TPU_TYPES:
        conversion.error(loc, "no-tpu", f"{machine_type}: there are no TPUs in cloudgpu", _TPU_HINT)
        return None
    _check_category(conversion, source, prefix, machine_type)
    if not is_legacy(machine_type):
        return _compute_engine(conversion, source, prefix, machine_type)
    config = source.child(f"{prefix}Config")
    if "acceleratorConfig" in config:
        message = f"acceleratorConfig is only for Compute Engine machine types, and {machine_type} is a legacy one"
        hint = f"write {name}: {_legacy(machine_type).machine_type}"
        conversion.error(config.loc("acceleratorConfig"), "accelerator-on-legacy-type", message, hint)
    machine = _legacy(machine_type)
    conversion.note(f"machine type {machine_type} no longer exists; it was {_described(machine)}")
    return machine


def is_legacy(machine_type: str) -> bool:
    from .. import catalog

    return machine_type in LEGACY_CPU_TYPES or catalog.ai_platform_legacy(machine_type) is not None


def _legacy(machine_type: str) -> Machine:
    from .. import catalog

    row = catalog.ai_platform_legacy(machine_type)
    if row is None:
        return Machine(LEGACY_CPU_TYPES[machine_type], *_CPU)
    return Machine(row.machine_type, row.accelerator, row.count)


def _described(machine: Machine) -> str:
    return f"{machine.machine_type}" + (f" with {machine.accelerator}:{machine.count}" if machine.accelerator else "")


def _check_category(conversion: Conversion, source: Reader, prefix: str, machine_type: str) -> None:
    """Report a group whose kind of machine type (legacy or Compute Engine) differs from the master's."""
    master = source.text("masterType") or machine_type
    if prefix != "master" and is_legacy(master) != is_legacy(machine_type):
        legacy, other = (master, machine_type) if is_legacy(master) else (machine_type, master)
        message = f"legacy machine type {quote(legacy)} and Compute Engine machine type {quote(other)} cannot be mixed"
        hint = "use Compute Engine machine types for all"
        conversion.error(source.loc(f"{prefix}Type"), "mixed-machine-types", message, hint)


def _compute_engine(conversion: Conversion, source: Reader, prefix: str, machine_type: str) -> Machine:
    """Return the machine for a Compute Engine machine type and its acceleratorConfig; report what was not allowed."""
    from .. import catalog

    known = catalog.ai_platform_machine_types()
    if machine_type not in known and machine_type not in catalog.machine_types("gcp"):
        near = closest(machine_type, [*sorted(known), *LEGACY_CPU_TYPES, *catalog.ai_platform_legacy_names()])
        hint = f"did you mean {one_of(near)}?" if near else "for example n1-standard-8"
        message = f"unknown machine type {quote(machine_type)}"
        conversion.error(source.loc(f"{prefix}Type"), "unknown-machine-type", message, hint)
        return Machine(machine_type, *_CPU)
    config = source.child(f"{prefix}Config")
    if "acceleratorConfig" in config:
        return _accelerated(conversion, config.child("acceleratorConfig"), machine_type)
    built_in = _cells(machine_type).get("A100-40GB", ())
    if built_in:  # A2 machines have built-in GPUs
        return Machine(machine_type, "A100-40GB", built_in[0])
    return Machine(machine_type, *_CPU)


def _accelerated(conversion: Conversion, config: Reader, machine_type: str) -> Machine:
    """Return the machine for a machine type and an acceleratorConfig.

    Reports a combination of machine type, accelerator and count that the service did not allow. Without a valid
    accelerator, the machine has no GPUs.
    """
    from .. import catalog

    written, count = config.text("type"), config.integer("count", least=1)
    for name, value, example in (("type", written, "NVIDIA_TESLA_T4"), ("count", count, "1")):
        if value is None:
            conversion.error(
                config.loc(name),
                "incomplete-accelerator",
                f"acceleratorConfig needs a {name}",
                f"add {name}: {example}",
            )
    if written is None or count is None:
        return Machine(machine_type, *_CPU)
    if written.upper().startswith("TPU"):
        conversion.error(config.loc("type"), "no-tpu", f"{quote(written)}: there are no TPUs in cloudgpu", _TPU_HINT)
        return Machine(machine_type, *_CPU)
    found = catalog.find_accelerator(written)
    if found is None:
        meant = set(meant_accelerators(written))
        near = (
            []
            if meant and meant.isdisjoint(ACCELERATOR_TYPES.values())
            else closest(written.upper().replace("-", "_"), ACCELERATOR_TYPES)
        )
        hint = f"did you mean {one_of(near)}?" if near else f"one of {', '.join(ACCELERATOR_TYPES)}"
        conversion.error(config.loc("type"), "unknown-accelerator", f"unknown accelerator {quote(written)}", hint)
        return Machine(machine_type, *_CPU)
    counts = catalog.ai_platform_counts(machine_type, found.name)
    if count not in counts:
        what = (
            f"{count} × {found.name} does not go with {machine_type}"
            if counts
            else f"{machine_type} takes no {found.name}"
        )
        loc = config.loc("count" if counts else "type")
        conversion.error(loc, "count-on-machine-type", what, _allowed(machine_type, found.name, count))
    return Machine(machine_type, found.name, count)


def _cells(machine_type: str) -> dict[str, tuple[int, ...]]:
    """Return the counts that the service allowed on a machine type, by accelerator."""
    from .. import catalog

    cells = {name: catalog.ai_platform_counts(machine_type, name) for name in ACCELERATOR_TYPES.values()}
    return {name: counts for name, counts in cells.items() if counts}


def _allowed(machine_type: str, accelerator: str, count: int) -> str:
    """Return a hint: the accelerators and counts allowed on this machine type, and the types that allow this count."""
    from .. import catalog

    parts = []
    cells = _cells(machine_type)
    if cells:
        here = {accelerator: cells[accelerator]} if accelerator in cells else cells
        listed = "; ".join(f"{name}: {', '.join(map(str, counts))}" for name, counts in here.items())
        parts.append(f"{machine_type} takes {listed}")
    others = [
        other
        for other in sorted(catalog.ai_platform_machine_types(), key=_by_size)
        if count in catalog.ai_platform_counts(other, accelerator)
    ]
    if others:
        parts.append(f"{count} × {accelerator} goes with {', '.join(others)}")
    return ". ".join(parts) or f"accelerators of the service: {', '.join(ACCELERATOR_TYPES)}"


def _by_size(machine_type: str) -> tuple[str, int]:
    family, _, size = machine_type.rpartition("-")
    return family, int("".join(filter(str.isdigit, size)))


def check_region(conversion: Conversion, accelerator: str, region: str, loc: Loc) -> None:
    """Report a region in which the service did not have the accelerator; its regions with A100s are unknown."""
    from .. import catalog

    where = catalog.ai_platform_regions(accelerator)
    if where and region in _regions() and region not in where:
        message = f"{accelerator} was not in {region}"
        conversion.error(loc, "accelerator-region", message, f"{accelerator} was in {', '.join(sorted(where))}")


def check_region_name(conversion: Conversion, region: str, loc: Loc) -> None:
    known = _regions()
    if region not in known:
        near = closest(region, known)
        hint = f"did you mean {one_of(near)}?" if near else "for example us-central1"
        conversion.error(loc, "unknown-region", f"unknown region {quote(region)}", hint)


def note_what_is_not_checked(
    conversion: Conversion, source: Reader, groups: Sequence[Group], region: str | None
) -> None:
    """Add a note for each of three things that are not checked.

    They are newer machine types, newer regions, and whether one zone had all kinds of GPUs of the job.
    """
    from .. import catalog

    named = [source.text(f"{prefix}Type") for prefix in PREFIXES]
    newer = {name for name in named if name in catalog.machine_types("gcp") and not is_legacy(name)}
    newer -= catalog.ai_platform_machine_types()
    if newer:
        conversion.note(f"AI Platform Training had no {one_of(sorted(newer))}: taken as Compute Engine's machine type")
    if region is not None and region in catalog.regions("gcp") - _own_regions():
        conversion.note(f"AI Platform Training is not known to have had GPUs in {region}: taken as today's region")
    if len({group.machine.accelerator for group in groups} - {None}) > 1:
        conversion.note(
            "AI Platform Training wanted all kinds of GPU of a job in one zone; its zones are not known any more, "
            "the plan looks at today's"
        )


def _own_regions() -> frozenset[str]:
    """Return the regions where the service is known to have had GPUs."""
    from .. import catalog

    return frozenset().union(*map(catalog.ai_platform_regions, ACCELERATOR_TYPES.values()))


def _regions() -> frozenset[str]:
    """Return the service's regions and the current regions of Google Cloud."""
    from .. import catalog

    return catalog.regions("gcp") | _own_regions()
