"""Machine options for each role on a cloud, independent of place and market."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from .. import catalog
from ..catalog import Accelerator, MachineType
from ..diagnostics import Loc
from ..models import AcceleratorRequest, JobSpec, Role
from ..plan import Refusal
from ..rules.base import exactly
from ..rules.compatibility import Request, first_refusal
from ..rules.machines import built_in, fitting, is_attached, is_sensible
from ..rules.targets import role_key

NO_GPUS = Fraction(0)


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """Machine type with a number of GPUs, for one of a role's preferences.

    Options are compared and hashed by identity, because hashing a Fraction is slow, and they are keys of many lookups.
    """

    preference: int
    """Index in the role's `accelerator` list; 0 if the role has no list."""
    gpus: Fraction
    machine: MachineType
    ask: Request
    """Request that the option meets; rules on places and markets are checked for this request."""
    places: Mapping[str, tuple[str, ...]]
    """Region -> zones in which it is offered; no zones: unknown, or chosen by the provider."""
    zones: Mapping[str, tuple[str, ...]]
    """Region -> zones in which it can run; for Vertex AI, which takes no zone, those of Compute Engine's machines."""
    attached: bool
    """True if GPUs are attached to the machine (N1), so that limits on the machine's size apply."""

    @property
    def kind(self) -> tuple[int, str | None, int, int]:
        """Preference, accelerator and GPU count: options with one kind differ only in the machine around the GPUs."""
        return (self.preference, self.machine.accelerator, self.gpus.numerator, self.gpus.denominator)


class Roles(NamedTuple):
    """Options of every role of a job on one cloud, and refusals."""

    options: list[list[Option]]
    """One list per role; an empty list means that the cloud cannot run the job."""
    refusals: list[Refusal]


def options_for(spec: JobSpec, cloud: str, today: str) -> Roles:
    """Return the options of each role on the cloud that the rules on accelerators, machine types and counts allow."""
    options: list[list[Option]] = []
    refusals: list[Refusal] = []
    for name, role in spec.effective_roles().items():
        refused: list[Refusal] = []
        options.append(_smallest(list(_role_options(role, cloud, today, refused))))
        refusals += [_within(refusal, role_key(spec, name), role) for refusal in refused]
    return Roles(options, refusals)


def _within(refusal: Refusal, where: Loc, role: Role) -> Refusal:
    """Return the refusal with its key in the role's mapping (`where`).

    For a role without an accelerator, a refusal about accelerators gets the key of the machine type.
    """
    _, field, *index = refusal.key
    if field == "accelerator" and not role.accelerator:
        field, index = "machine_type", []
    return refusal._replace(key=(*where, field, *index))


def _role_options(role: Role, cloud: str, today: str, refusals: list[Refusal]) -> Iterator[Option]:
    if not role.accelerator:
        yield from _without_request(role, cloud, today, refusals)
    for preference, request in enumerate(role.accelerator):
        if request.name is not None:
            found = catalog.find_accelerator(request.name)
            ask = Request(cloud, today, found.name if found else request.name, request.count, role.machine_type)
            yield from _options(preference, ask, refusals)
        else:
            yield from _by_memory(preference, request, Request(cloud, today, machine_type=role.machine_type), refusals)


def _without_request(role: Role, cloud: str, today: str, refusals: list[Refusal]) -> Iterator[Option]:
    """Yield machines for a role without accelerators: those without GPUs, or the named type with its built-in ones."""
    ask = Request(cloud, today, machine_type=role.machine_type)
    machine = built_in(cloud, role.machine_type) if role.machine_type else None
    if machine is not None:
        ask = ask._replace(accelerator=machine.accelerator, gpus=exactly(machine.counts[0]))
    yield from _options(0, ask, refusals)


def _options(preference: int, ask: Request, refusals: list[Refusal]) -> Iterator[Option]:
    refusal = first_refusal(ask)
    if refusal is not None:
        refusals.append(refusal._replace(key=_at(preference, refusal.key)))
        return
    for machine in fitting(ask):
        counts = [count for count in machine.counts if ask.gpus is not None and count in ask.gpus]
        for count in counts or [NO_GPUS]:
            # Attached GPUs fit machines of many sizes; unless the user names a machine type, small ones are left out.
            if ask.machine_type or not is_attached(ask.cloud, machine.name) or is_sensible(machine, count):
                yield _option(preference, count, machine, ask)


def _option(preference: int, gpus: Fraction, machine: MachineType, ask: Request) -> Option:
    places = catalog.places(machine.cloud, machine.name, machine.accelerator)
    zones = catalog.places(catalog.host_cloud(machine.cloud), machine.name, machine.accelerator)
    attached = machine.accelerator is not None and is_attached(machine.cloud, machine.name)
    return Option(preference, gpus, machine, ask, places, zones, attached)


def _by_memory(preference: int, request: AcceleratorRequest, ask: Request, refusals: list[Refusal]) -> Iterator[Option]:
    """Yield options for every GPU whose memory (or requested fraction of it) is in the range.

    A program that names no GPU is assumed to need CUDA on x86-64, as nearly all do: GPUs of other vendors and arm64
    machines must be requested by name.
    """
    found = False
    unplaced: list[Refusal] = []
    for accelerator in catalog.accelerators().values():
        if accelerator.vendor != "NVIDIA" or accelerator.kind != "gpu":
            continue
        named = ask._replace(accelerator=accelerator.name, gpus=request.count)
        if not any(_has_memory(request, accelerator, machine) for machine in fitting(named)):
            continue  # the job does not name this GPU, so its refusal would not help
        for option in _options(preference, named, unplaced):
            if _has_memory(request, accelerator, option.machine, option.gpus):
                found = True
                yield option
    if not found and unplaced:
        refusals += unplaced
    elif not found:
        where = f"no {ask.machine_type}" if ask.machine_type else "no machine"
        message = f"{where} of {ask.cloud} has {request.count} NVIDIA GPUs with {request.memory} each"
        key = _at(preference)
        refusals.append(
            Refusal("accelerator-memory", ask.cloud, f"{ask.cloud} {request}", message, _memories(ask), key=key)
        )


def _at(preference: int, key: Loc = ("resources", "accelerator")) -> Loc:
    """Return the key of an entry of the accelerator list, for the key of that list; other keys are unchanged."""
    return (*key, preference) if key[-1] == "accelerator" else key


def _has_memory(
    request: AcceleratorRequest, accelerator: Accelerator, machine: MachineType, gpus: Fraction | None = None
) -> bool:
    """Return whether the GPUs of an x86-64 machine, in a requested count, have memory within the range."""
    counts = [count for count in machine.counts if count in request.count] if gpus is None else [gpus]
    parts = {min(count, Fraction(1)) for count in counts}
    return (
        machine.arch == "x86_64"
        and request.memory is not None
        and any(accelerator.memory_gb * float(part) in request.memory for part in parts)
    )


def _memories(ask: Request) -> str:
    """Return a sentence with the memory sizes of the cloud's available NVIDIA GPUs."""
    names = {
        machine.accelerator
        for group in catalog.machine_types(ask.cloud).values()
        for machine in group
        if not machine.is_retired_on(ask.today)
    }
    sizes = {a.memory_gb for a in catalog.accelerators().values() if a.name in names and a.vendor == "NVIDIA"}
    return "GPUs there have " + ", ".join(f"{size:g}" for size in sorted(sizes)) + " GB" if sizes else ""


def _smallest(options: Sequence[Option]) -> list[Option]:
    """Return the options without those that cannot be the best: larger machines, and repeated GPUs.

    An option is dropped if another of its kind has a smaller machine, the same places and at least the same markets.
    Within a machine series the smaller machine is cheaper, so plans do not change; this saves thousands of price
    lookups. GPUs that meet several preferences (`L4`, then any GPU with 24 GB) are kept only for the first of these.
    """
    kept: list[Option] = []
    answered: dict[tuple[object, ...], int] = {}
    for option in sorted(options, key=lambda o: (o.preference, o.machine.vcpus or 0, o.machine.memory_gb or 0.0)):
        first = answered.setdefault(option.kind[1:], option.preference)
        if first == option.preference and not any(_undercuts(other, option) for other in kept):
            kept.append(option)
    return kept


def _undercuts(one: Option, other: Option) -> bool:
    a, b = one.machine, other.machine
    if one.kind != other.kind or a.offering != b.offering or not a.markets >= b.markets:
        return False
    if a.vcpus is None or b.vcpus is None or a.memory_gb is None or b.memory_gb is None:
        return False
    smaller = a.vcpus < b.vcpus or a.memory_gb < b.memory_gb
    return smaller and a.vcpus <= b.vcpus and a.memory_gb <= b.memory_gb
