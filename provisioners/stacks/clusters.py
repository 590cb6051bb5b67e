"""Clusters that are up: machines that wait for jobs, as `submit --cluster NAME` finds them.

`cloudgpu cluster up` writes them, control and provisioners read them; Pulumi is not needed to. One file for each in the
state directory, 0600; nothing in it is secret.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.home import home, private
from ...storage import durable
from ..shared.infra_outputs import Infrastructure

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster, as it was when its stack was last brought up: how many machines there are now, its group knows."""

    name: str
    stack: str
    """Name of the Pulumi stack."""
    backend: str
    """URL of where the stack is kept."""
    owner: str
    """As in Owner.name: who its machines are tagged with."""
    account: str
    """As in infra.settings.InfraSettings."""
    fleet: FleetSpec
    infrastructure: Infrastructure
    """What it stands in."""
    group: str
    """aws: name of the Auto Scaling group. gcp: self link of the instance group. azure: id of the scale set."""
    fleet_dir: str
    """URL where its machines look for what to do."""
    price_usd_h: str | None = None
    """Of one machine with its disk, of machines of two markets on average; a Decimal's text; None: unknown."""
    expires: float | None = None
    """Epoch seconds at which its machines end for good; None: never."""

    @property
    def cloud(self) -> str:
        return self.fleet.cloud

    @property
    def region(self) -> str:
        return self.fleet.region

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stack": self.stack,
            "backend": self.backend,
            "owner": self.owner,
            "account": self.account,
            "fleet": self.fleet.model_dump(mode="json"),
            "infrastructure": self.infrastructure.to_json(),
            "group": self.group,
            "fleet_dir": self.fleet_dir,
            "price_usd_h": self.price_usd_h,
            "expires": self.expires,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cluster:
        """Lenient: what another version added is dropped. Raises TypeError, KeyError or ValueError for what is none."""
        known = {key: one for key, one in value.items() if key in cls.__dataclass_fields__}
        fleet = FleetSpec.from_json(known["fleet"])
        return cls(**{**known, "fleet": fleet, "infrastructure": Infrastructure.from_json(known["infrastructure"])})


def path_of(name: str) -> Path:
    return home() / "infra" / "clusters" / f"{name}.json"


def load(name: str) -> Cluster | None:
    """None: no such cluster is known here. Raises ValueError for a file that cannot be read, naming it."""
    path = path_of(name)
    try:
        return Cluster.from_json(json.loads(path.read_text(encoding="utf-8"))["cluster"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error}): `cloudgpu cluster status {name}` writes it anew") from error


def known() -> list[Cluster]:
    """All that are known here, by name. Raises ValueError as load()."""
    found = [load(path.stem) for path in sorted((home() / "infra" / "clusters").glob("*.json"))]
    return [one for one in found if one is not None]


def save(cluster: Cluster) -> None:
    """Raises OSError."""
    path = path_of(cluster.name)
    private(path.parent)
    text = json.dumps({"format": _FORMAT, "cluster": cluster.to_json()}, indent=2)
    durable.write(path, text.encode(), mode=0o600)


def forget(name: str, backend: str | None = None) -> None:
    """`backend`: only if its stack is kept there; what cannot be read is kept nowhere."""
    with contextlib.suppress(ValueError):
        if backend is not None and (one := load(name)) is not None and one.backend != backend:
            return
    with contextlib.suppress(FileNotFoundError):
        path_of(name).unlink()
