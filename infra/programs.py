"""Inline Pulumi programs of all clouds; each imports only its cloud's SDK."""

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
"""Name of a stack output: the program's settings, from which later commands continue."""
TERMS = "terms"
"""Name of a cluster stack's output with its Terms."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a cluster's file that do not describe machines, for commands without the file. JSON values only."""

    price_usd_h: str | None
    """US dollars per hour of one machine with its disk at creation, as a Decimal's string; None: unknown."""
    cap_usd_h: str | None
    """limits.price in US dollars per hour; None: no limit."""
    on_demand: int
    """Number of on-demand machines in the cluster's file, even if the cluster has been scaled below it."""
    on_demand_usd_h: str | None = None
    """Like price_usd_h, for the on-demand machines of a spot fleet; None: unknown, or there are none."""

    def price_of(self, fleet: FleetSpec) -> Decimal | None:
        """Return US dollars per hour of all machines; None: unknown."""
        parts = ((fleet.size - fleet.on_demand, self.price_usd_h), (fleet.on_demand, self.on_demand_usd_h))
        bought = [(machines, price) for machines, price in parts if machines]
        if any(price is None for _, price in bought):
            return None
        return sum((machines * Decimal(price) for machines, price in bought if price is not None), Decimal(0))

    def share_of(self, fleet: FleetSpec) -> str | None:
        """Return the average price of a machine, as a Decimal's string; None: unknown.

        A job cannot choose between spot and on-demand machines, so each machine is charged at the average.
        """
        if not fleet.on_demand:
            return self.price_usd_h
        price = self.price_of(fleet)
        return None if price is None else str(price / fleet.size)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Terms:
        """Deserialize, ignoring unknown fields of other versions. Raises TypeError if a field is missing."""
        return cls(**fields_of(cls, value))


def infra_stack(cloud: str, region: str) -> str:
    """Return the name of the infra stack of a cloud and region."""
    return f"infra-{cloud}-{region}"


def cluster_stack(name: str) -> str:
    return f"cluster-{name}"


def infra_program(settings: InfraSettings) -> Callable[[], None]:
    """Return the Pulumi program for shared infrastructure. Raises InfraError if the cloud's SDK is not installed."""
    module = _programs(settings.cloud)
    return _exporting(lambda: module.infra_program(settings), {SETTINGS: settings.to_json()})


def fleet_program(settings: FleetSettings, terms: Terms) -> Callable[[], None]:
    """Return the Pulumi program for a fleet. Raises InfraError if the cloud's SDK is not installed."""
    module = _programs(settings.fleet.cloud)
    more = {SETTINGS: settings.to_json(), TERMS: asdict(terms)}
    return _exporting(lambda: module.fleet_program(settings), more)


def _exporting(program: Callable[[], object], outputs: Mapping[str, Any]) -> Callable[[], None]:
    def run() -> None:
        import pulumi

        # Export before the program runs: if it fails, Pulumi keeps only the outputs exported so far.
        for name, value in outputs.items():
            pulumi.export(name, value)
        program()

    return run


def _programs(cloud: str) -> ModuleType:
    try:
        return importlib.import_module(f".{cloud}.programs", __package__)
    except ImportError as error:
        if error.name is not None and error.name.startswith("cloudgpu"):
            raise  # one of cloudgpu's modules is missing: a bug
        hint = f"pip install 'cloudgpu[infra-{cloud}]'"
        raise InfraError(f"stacks of {cloud} need its Pulumi SDK: {error}", hint) from error
