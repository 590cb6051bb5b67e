"""The inline programs, by cloud: each loads that cloud's SDK and no other's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

from ..jobspecs.fleets import FleetSpec
from .errors import InfraError
from .settings import FleetSettings, InfraSettings, fields_of

SETTINGS = "settings"
"""A second output of every stack: what its program was given, which later commands go on with."""
TERMS = "terms"
"""A third one of a cluster's stack: Terms."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a cluster's file says that is not of its machines, for commands that have no file. JSON values only."""

    price_usd_h: str | None
    """Of one machine with its disk when it was brought up, a Decimal's text; None: unknown."""
    cap_usd_h: str | None
    """limits.price; None: none."""
    on_demand: int
    """As in ClusterFile, however few machines there are now."""
    on_demand_usd_h: str | None = None
    """As price_usd_h, of those of them that are bought on demand, which cost more; None: unknown, or there are none."""

    def price_of(self, fleet: FleetSpec) -> Decimal | None:
        """US dollars per hour of all its machines; None: unknown."""
        parts = ((fleet.size - fleet.on_demand, self.price_usd_h), (fleet.on_demand, self.on_demand_usd_h))
        bought = [(machines, price) for machines, price in parts if machines]
        if any(price is None for _, price in bought):
            return None
        return sum((machines * Decimal(price) for machines, price in bought if price is not None), Decimal(0))

    def share_of(self, fleet: FleetSpec) -> str | None:
        """Of one of its machines, as price_usd_h. Nobody chooses which of them a job gets: each costs what all do on
        average."""
        if not fleet.on_demand:
            return self.price_usd_h
        price = self.price_of(fleet)
        return None if price is None else str(price / fleet.size)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Terms:
        """Lenient: what another version added is dropped. Raises TypeError if something is missing."""
        return cls(**fields_of(cls, value))


def infra_stack(cloud: str, region: str) -> str:
    """Name of the stack of a cloud and region."""
    return f"infra-{cloud}-{region}"


def cluster_stack(name: str) -> str:
    return f"cluster-{name}"


def infra_program(settings: InfraSettings) -> Callable[[], None]:
    """Raises InfraError if the cloud's SDK is not installed."""
    module = _programs(settings.cloud)
    return _exporting(lambda: module.infra_program(settings), {SETTINGS: settings.to_json()})


def fleet_program(settings: FleetSettings, terms: Terms) -> Callable[[], None]:
    """Raises InfraError if the cloud's SDK is not installed."""
    module = _programs(settings.fleet.cloud)
    more = {SETTINGS: settings.to_json(), TERMS: asdict(terms)}
    return _exporting(lambda: module.fleet_program(settings), more)


def _exporting(program: Callable[[], object], outputs: Mapping[str, Any]) -> Callable[[], None]:
    def run() -> None:
        import pulumi

        # First: Pulumi keeps what was exported until a program failed, and nothing else of what it knew before.
        for name, value in outputs.items():
            pulumi.export(name, value)
        program()

    return run


def _programs(cloud: str) -> ModuleType:
    try:
        return importlib.import_module(f".{cloud}.programs", __package__)
    except ImportError as error:
        if error.name is not None and error.name.startswith("cloudgpu"):
            raise  # a module of ours: a defect
        hint = f"pip install 'cloudgpu[infra-{cloud}]'"
        raise InfraError(f"stacks of {cloud} need its Pulumi SDK: {error}", hint) from error
