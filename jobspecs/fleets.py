"""Models of clusters (machines that outlive jobs): ClusterFile for cluster.yaml, FleetSpec for a group of machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from . import fields
from .diagnostics import MistakesError, mistake
from .fields import Market
from .models import Limits, Resources
from .plan import Offer
from .targets import FLEET_CLOUDS
from .unit_text import format_duration
from .units import DURATION_SCHEMA, Duration, parse_duration, shorthand


def _check_fleet_cloud(value: str) -> str:
    if value not in FLEET_CLOUDS:
        raise ValueError(f"expected one of {', '.join(FLEET_CLOUDS)}")
    return value


FleetCloud = Annotated[str, AfterValidator(_check_fleet_cloud)]
"""One of FLEET_CLOUDS."""

NEVER = "never"
EXPIRY_S = 7 * 86_400
"""Default of a cluster file's `expires`, in seconds, so that a forgotten cluster does not cost money forever."""
LEAST_EXPIRY_S = 600
"""Minimum of `expires`, in seconds: machines take minutes to boot, and stop a minute before they expire."""


def parse_expiry(value: object) -> int | None:
    """Return the seconds of a duration; None for `never`. Raises ValueError if invalid or below LEAST_EXPIRY_S."""
    if str(value).strip() == NEVER:
        return None
    try:
        return parse_duration(value, least_s=LEAST_EXPIRY_S)
    except MistakesError as error:
        (problem,) = error.problems
        allowed = f"expected a duration such as 12h or 7d, or {NEVER}"
        raise mistake(problem.code, allowed, problem.hint) from error


def _format_expiry(seconds: int | None) -> str:
    return NEVER if seconds is None else format_duration(seconds)


Expiry = Annotated[int | None, *shorthand(parse_expiry, _format_expiry, {"anyOf": [{"const": NEVER}, DURATION_SCHEMA]})]

_NOT_IN_TEMPLATE = frozenset({"name", "size", "on_demand", "zones", "idle_s", "heal"})
"""Fields that can change without a new template, that is, without replacing machines."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)


class ClusterFile(_Model):
    """Model of a cluster.yaml, the file of `cloudgpu cluster up cluster.yaml`."""

    name: fields.Name = Field(description="Lower-case letters, digits and hyphens; begins with a letter")
    resources: Resources = Field(description="The machines, as in a job file; nodes is how many there are")
    on_demand: int = Field(
        default=0, ge=0, le=fields.MAX_NODES, description="Of market spot: number of machines that are bought on demand"
    )
    heal: bool = Field(default=True, description="A machine that is gone, or does not answer, is replaced")
    idle: Duration | None = Field(
        default=None, description="A machine that had no job for so long ends itself for good; omitted: never"
    )
    expires: Expiry = Field(
        default=EXPIRY_S,
        description="So long after `cluster up` or `cluster extend` the machines end, for good; never: they do not",
    )
    limits: Limits = Field(
        default=Limits.model_construct(), description="price: of all machines; duration: machines end after so long"
    )

    @model_validator(mode="after")
    def _mixed_is_spot(self) -> ClusterFile:
        if self.on_demand and self.resources.market != ("spot",):
            raise mistake("bad-mix", "on_demand is a part of machines of market spot", "write market: spot")
        if self.on_demand > self.resources.nodes.most:
            most = self.resources.nodes.most
            message = f"{self.on_demand} machines cannot be bought on demand: nodes is {most}"
            raise mistake("bad-mix", message, f"write on_demand: {most} at most, or more nodes")
        return self


class FleetSpec(_Model):
    """Group of identical machines in one region, as input of both infra components and launches; JSON values only."""

    name: str
    cloud: FleetCloud
    region: str
    zones: tuple[str, ...] = ()
    """Zones for machines, spelled as in offers; empty: all zones of the region that have them."""
    machine_type: str
    accelerator: str | None
    """Canonical name of the accelerator; None: no GPU."""
    gpus: str = "0"
    """GPUs per machine, as text of a Fraction: "8", "1/8"."""
    market: Market = "on-demand"
    on_demand: int = Field(default=0, ge=0)
    """Number of machines, out of `size`, to buy on demand in market spot."""
    size: int = Field(default=1, ge=0)
    disk_gb: PositiveFloat = 100.0
    peers: bool = False
    """True if the machines communicate: they are placed together and use their fast interconnect."""
    lifetime_s: PositiveInt | None = None
    """Seconds after which a machine always terminates itself; None: no limit."""
    idle_s: PositiveInt | None = None
    """Seconds without a job after which a machine leaves its fleet and terminates; None: never."""
    heal: bool = True

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> FleetSpec:
        """Return a FleetSpec from stored JSON values; unknown keys of another version are dropped.

        Raises pydantic's ValidationError.
        """
        return cls.model_validate({key: one for key, one in value.items() if key in cls.model_fields})

    @property
    def count(self) -> Fraction:
        """GPUs per machine."""
        return Fraction(self.gpus)

    @property
    def template_hash(self) -> str:
        """Hash of all fields except _NOT_IN_TEMPLATE, 16 hex digits; fleets with the same value share a template."""
        values = self.model_dump(mode="json", exclude=set(_NOT_IN_TEMPLATE))
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fleet_of(cluster: ClusterFile, offer: Offer, zones: Sequence[str] = ()) -> FleetSpec:
    """Return the fleet of a cluster file for an offer of its plan, in `zones` (not in the offer's zone).

    The offer has one role, because a cluster file has no roles.
    """
    (role,) = offer.roles
    return FleetSpec.model_validate(
        {
            "name": cluster.name,
            "cloud": offer.cloud,
            "region": offer.region,
            "zones": tuple(zones),
            "machine_type": role.machine_type,
            "accelerator": role.accelerator,
            "gpus": str(role.count),
            "market": offer.market,
            "on_demand": min(cluster.on_demand, role.nodes),
            "size": role.nodes,
            "disk_gb": offer.disk_gb,
            "peers": role.nodes > 1,
            "lifetime_s": None if cluster.limits.duration is None else int(cluster.limits.duration),
            "idle_s": None if cluster.idle is None else int(cluster.idle),
            "heal": cluster.heal,
        }
    )
