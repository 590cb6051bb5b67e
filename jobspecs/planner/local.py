"""Plan offers on this machine, with its CPUs, and its GPUs as the driver names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import islice, product
from typing import NamedTuple

from .. import catalog
from ..catalog import Accelerator
from ..models import AcceleratorRequest, JobSpec, Role, RoleName
from ..plan import LocalGpu, LocalMachine, Offer, Refusal, RoleOffer
from ..rules.base import listing
from ..rules.compatibility import Request, refusal_by
from ..rules.machines import siblings
from ..rules.targets import role_key
from .ranking import Ranked, rank
from .search import in_order

MARKET = "on-demand"
MAX_WAYS = 16
"""Maximum number of ways offered to divide the GPUs among the roles, best first."""
_MEMORY_TOLERANCE = 0.15
"""Relative tolerance when the memory reported by a driver is compared with the table: drivers count in GiB and reserve
a part, so an 80 GB GPU is reported with 79.2 GiB or 85.0 GB."""
_SHARE = Decimal("0.000001")


class _Choice(NamedTuple):
    """GPUs of one kind for each node of a role."""

    preference: int
    accelerator: str | None
    gpus: int


Way = tuple[_Choice, ...]
"""One choice for each role."""
Left = tuple[int, ...]
"""Number of free GPUs of each kind."""


def plan_local(
    spec: JobSpec, cloud: str, order: int, machine: LocalMachine | None
) -> tuple[list[Ranked], list[Refusal]]:
    """Return offers on this machine, and refusals if it lacks the GPUs or the market, or was not inspected."""
    asks = [Request(cloud, "", market=market) for market in spec.resources.market]
    refusals = [refusal for ask in asks if (refusal := refusal_by("market-supported", ask))]
    if MARKET not in spec.resources.market:
        return [], refusals
    if machine is None:
        return [], [*refusals, Refusal("local-machine", cloud, cloud, "what this machine has is unknown", "")]
    have = Counter(accelerator_of(gpu) for gpu in machine.gpus)
    memory = {accelerator_of(gpu): _memory(gpu) for gpu in machine.gpus}
    roles = spec.effective_roles()
    choices = [list(_choices(role, have, memory)) for role in roles.values()]
    market = spec.resources.market.index(MARKET)
    offers = [
        rank(
            _offer(cloud, roles, way, machine),
            preferences=[choice.preference for choice in way],
            market=market,
            cloud=order,
            region=0,
            zone=0,
        )
        for way in islice(_ways(choices, [role.nodes for role in roles.values()], have), MAX_WAYS)
    ]
    if not offers:
        refusals.append(_lacking(spec, cloud, have))
    return offers, refusals


def _choices(role: Role, have: Counter[str], memory: dict[str, float]) -> Iterator[_Choice]:
    """Yield a choice for each preference and kind of GPU, with the smallest number of GPUs that meets the request."""
    if not role.accelerator:
        yield _Choice(0, None, 0)
    for preference, request in enumerate(role.accelerator):
        # GPUs are not split on this machine: a whole GPU does not meet the request `1/8`, but meets `1/2..2`.
        least = -(-request.count.least.numerator // request.count.least.denominator)
        if Fraction(least) not in request.count:
            continue
        for name in sorted(have):
            if _is_asked(request, name, memory[name]) and have[name] >= least * role.nodes:
                yield _Choice(preference, name, least)


def _is_asked(request: AcceleratorRequest, name: str, memory_gb: float) -> bool:
    if request.memory is not None:
        return memory_gb in request.memory
    found = catalog.find_accelerator(request.name or "")
    return name == (found.name if found else request.name)


def _ways(choices: Sequence[Sequence[_Choice]], nodes: Sequence[int], have: Counter[str]) -> Iterator[Way]:
    """Yield the ways for which the machine has enough GPUs for all nodes of all roles, in the order of offers."""
    kinds = list(have)

    def take(left: Left, choice: _Choice, role: int) -> Left | None:
        """Return the remaining GPUs of each kind; None if there are too few."""
        rest = tuple(
            count - choice.gpus * nodes[role] if kind == choice.accelerator else count
            for kind, count in zip(kinds, left, strict=True)
        )
        return None if min(rest, default=0) < 0 else rest

    @cache
    def suffices(left: Left, role: int, worst: int, reached: bool) -> bool:
        if role == len(choices):
            return reached
        return any(
            suffices(rest, role + 1, worst, reached or choice.preference == worst)
            for choice in choices[role]
            if choice.preference <= worst and (rest := take(left, choice, role)) is not None
        )

    def can_end(beginning: tuple[int, ...], worst: int) -> bool:
        lefts: set[Left] = {tuple(have.values())}
        for role, preference in enumerate(beginning):
            wanted = [choice for choice in choices[role] if choice.preference == preference]
            lefts = {rest for left in lefts for choice in wanted if (rest := take(left, choice, role)) is not None}
        return any(suffices(left, len(beginning), worst, worst in beginning) for left in lefts)

    for preferences in in_order([[choice.preference for choice in role] for role in choices], can_end):
        groups = [
            [choice for choice in role if choice.preference == preference]
            for role, preference in zip(choices, preferences, strict=True)
        ]
        yield from (way for way in product(*groups) if _fits(way, nodes, have))


def _fits(way: Way, nodes: Sequence[int], have: Counter[str]) -> bool:
    """Return whether the machine has the GPUs of a way; no GPU is used twice."""
    wanted: Counter[str] = Counter()
    for choice, count in zip(way, nodes, strict=True):
        if choice.accelerator is not None:
            wanted[choice.accelerator] += choice.gpus * count
    return wanted <= have


def _offer(cloud: str, roles: Mapping[RoleName, Role], way: Sequence[_Choice], machine: LocalMachine) -> Offer:
    nodes = sum(role.nodes for role in roles.values())
    return Offer(
        cloud=cloud,
        region=cloud,
        zone=None,
        market=MARKET,
        roles=tuple(
            RoleOffer(
                role=name,
                nodes=role.nodes,
                machine_type=cloud,
                accelerator=choice.accelerator,
                count=Fraction(choice.gpus),
                vcpus=machine.cpus,
                memory_gb=machine.memory_gb,
                price=(machine.price / nodes).quantize(_SHARE),
            )
            for (name, role), choice in zip(roles.items(), way, strict=True)
        ),
        disk_gb=0.0,
        disk_price=Decimal(0),
        price=machine.price,
        price_date=None,
    )


def _lacking(spec: JobSpec, cloud: str, have: Counter[str]) -> Refusal:
    roles = spec.effective_roles()
    first = next(name for name, role in roles.items() if role.accelerator)
    key = (*role_key(spec, first), "accelerator")
    wanted = [
        f"{role.nodes} × " * (role.nodes > 1) + listing([str(request) for request in role.accelerator])
        for role in roles.values()
        if role.accelerator
    ]
    there = ", ".join(f"{name}:{count}" for name, count in sorted(have.items())) or "no GPU"
    return Refusal(
        "local-machine",
        cloud,
        f"{cloud} {', '.join(wanted)}",
        "; ".join([f"this machine has {there}", *dict.fromkeys(_meanings(roles.values(), have))]),
        "`accelerator: none` runs on the CPU" if not have else f"what it has: {there}",
        key=key,
    )


def _meanings(roles: Iterable[Role], have: Counter[str]) -> Iterator[str]:
    """Yield a sentence with the meaning of a short name if this machine has the model with another memory size."""
    for name in (request.name for role in roles for request in role.accelerator if request.name is not None):
        found = catalog.find_accelerator(name)
        if found is not None and found.name != name and not have.keys().isdisjoint(siblings(found.name)):
            yield f"`{name}` means {found.name}"


def accelerator_of(gpu: LocalGpu) -> str:
    """Return the canonical name of a GPU, found by its driver's name (`NVIDIA A100-SXM4-80GB`) and its memory.

    If no accelerator of the tables matches, return the driver's name.
    """
    found = catalog.find_accelerator(gpu.name) or catalog.find_accelerator(gpu.name.removeprefix("NVIDIA "))
    if found is None or not _like(found, gpu):
        words = set(gpu.name.upper().replace("-", " ").split())
        near = [a for a in catalog.accelerators().values() if a.name.split("-")[0] in words and _like(a, gpu)]
        found = min(near, key=lambda a: abs(a.memory_gb - gpu.memory_gb), default=found)
    return found.name if found else gpu.name


def _like(accelerator: Accelerator, gpu: LocalGpu) -> bool:
    return abs(accelerator.memory_gb - gpu.memory_gb) <= _MEMORY_TOLERANCE * accelerator.memory_gb


def _memory(gpu: LocalGpu) -> float:
    found = catalog.accelerators().get(accelerator_of(gpu))
    return found.memory_gb if found else gpu.memory_gb
