"""Result of planning: offers in order of preference, and refusals with reasons, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from .diagnostics import Loc
from .targets import info

CPU = "cpu"
"""Pseudo accelerator of nodes without GPUs, for counting demand."""


@dataclass(frozen=True, slots=True)
class RoleOffer:
    """Machines of one role within an offer."""

    role: str
    nodes: int
    machine_type: str
    accelerator: str | None
    """Canonical name; None: no GPU."""
    count: Fraction
    """GPUs per machine; 0 without GPUs."""
    vcpus: int | None
    memory_gb: float | None
    price: Decimal | None
    """US dollars per hour of one machine with its GPUs, without disk; None: unknown. If the offer has `price_at_most`,
    this may be an upper bound too."""


class Offer(NamedTuple):
    """One way to run all roles: one place, one market, a machine type for each role."""

    cloud: str
    region: str
    zone: str | None
    """Zone; None if the provider chooses it."""
    market: str
    roles: tuple[RoleOffer, ...]
    disk_gb: float
    """Disk size per machine, in GB."""
    disk_price: Decimal | None
    """US dollars per hour of all disks; None: unknown."""
    price: Decimal | None
    """US dollars per hour of the whole job: every machine, GPU and disk; None: unknown, never 0."""
    price_date: str | None
    """Oldest date among the machines' prices, YYYY-MM-DD."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, e.g. "needs a reservation", "T4 support ends 2027-08-01"."""
    price_at_most: bool = False
    """True if `price` is an upper bound: the on-demand price in place of an unknown Spot price."""
    price_from: Decimal | None = None
    """Lower bound of the whole job's price if `price` is unknown, in which case the offer is above any limits.price."""

    @property
    def nodes(self) -> int:
        return sum(role.nodes for role in self.roles)

    @property
    def place(self) -> str:
        """Text such as `gcp us-central1-a spot`; `this machine` for the target `local`."""
        return "this machine" if info(self.cloud).is_here else f"{self.cloud} {self.zone or self.region} {self.market}"

    @property
    def label(self) -> str:
        """Place and machine types: `gcp us-central1-a spot n1-standard-8`; `this machine`."""
        types = "" if info(self.cloud).is_here else "+".join(dict.fromkeys(role.machine_type for role in self.roles))
        return f"{self.place} {types}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {
            "cloud": self.cloud,
            "region": self.region,
            "zone": self.zone,
            "market": self.market,
            "roles": [
                {
                    "role": role.role,
                    "nodes": role.nodes,
                    "machine_type": role.machine_type,
                    "accelerator": role.accelerator,
                    "count": str(role.count),
                    "vcpus": role.vcpus,
                    "memory_gb": role.memory_gb,
                    "price_usd_h": _text(role.price),
                }
                for role in self.roles
            ],
            "disk_gb": self.disk_gb,
            "disk_price_usd_h": _text(self.disk_price),
            "price_usd_h": _text(self.price),
            "price_at_most": self.price_at_most,
            "price_from_usd_h": _text(self.price_from),
            "price_date": self.price_date,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offer:
        return cls(
            cloud=value["cloud"],
            region=value["region"],
            zone=value["zone"],
            market=value["market"],
            roles=tuple(
                RoleOffer(
                    role=role["role"],
                    nodes=role["nodes"],
                    machine_type=role["machine_type"],
                    accelerator=role["accelerator"],
                    count=Fraction(role["count"]),
                    vcpus=role["vcpus"],
                    memory_gb=role["memory_gb"],
                    price=_amount(role["price_usd_h"]),
                )
                for role in value["roles"]
            ),
            disk_gb=value["disk_gb"],
            disk_price=_amount(value["disk_price_usd_h"]),
            price=_amount(value["price_usd_h"]),
            price_date=value["price_date"],
            notes=tuple(value["notes"]),
            price_at_most=value.get("price_at_most", False),  # offers stored by earlier versions lack both keys
            price_from=_amount(value.get("price_from_usd_h")),
        )


class Refusal(NamedTuple):
    """Way in which the job cannot run, with the rule that forbids it and an alternative."""

    rule: str
    """Name of the rule in jobspecs.rules, e.g. "count-on-machine-type"."""
    cloud: str | None
    subject: str
    """Refused combination, e.g. "gcp n1-standard-4 + V100:3"."""
    message: str
    """Sentence that says what is wrong."""
    allowed: str
    """Allowed alternative; "" if there is none."""
    price: Decimal | None = None
    """Price of the whole job in US dollars per hour, if known; it explains why a cheaper way was not chosen."""
    key: Loc = ()
    """Path of the key in the job file that caused the refusal."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "cloud": self.cloud,
            "subject": self.subject,
            "message": self.message,
            "allowed": self.allowed,
            "price_usd_h": _text(self.price),
        }


class Plan(NamedTuple):
    """Offers in order of preference, then of price (unknown prices last), and refusals."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...] = ()

    @property
    def best(self) -> Offer | None:
        return self.offers[0] if self.offers else None

    def to_json(self) -> dict[str, Any]:
        """Return the output of `cloudgpu plan --json`, which docs/explanation/planning.md describes.

        Later versions may add keys, but do not remove or change any.
        """
        return {
            "offers": [offer.to_json() for offer in self.offers],
            "refusals": [refusal.to_json() for refusal in self.refusals],
        }


class LocalGpu(NamedTuple):
    """GPU of this machine, with the name that its driver reports."""

    uuid: str
    name: str
    memory_gb: float


class LocalMachine(NamedTuple):
    """Hardware of this machine, which the caller inspects, since the planner is pure."""

    cpus: int
    memory_gb: float
    gpus: tuple[LocalGpu, ...] = ()
    price: Decimal = Decimal(0)
    """Cost of this machine to its owner in US dollars per hour (CLOUDGPU_LOCAL_PRICE); 0: already paid for."""


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


def _amount(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
