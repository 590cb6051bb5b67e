"""Records of clusters on this computer, which `submit --cluster NAME` looks up.

`cloudgpu cluster up` writes them, control and provisioners read them without Pulumi. There is one file for each cluster
in the state directory, with mode 0600; nothing in it is secret.
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
    """Record of one cluster, as of the last update of its stack. The group knows the current number of machines."""

    name: str
    stack: str
    """Name of the Pulumi stack."""
    backend: str
    """URL of the Pulumi backend."""
    owner: str
    """Value of Owner.name with which the cluster's machines are tagged."""
    account: str
    """Value of infra.settings.InfraSettings.account."""
    fleet: FleetSpec
    infrastructure: Infrastructure
    """Infra stack whose network and role the cluster uses."""
    group: str
    """aws: name of the Auto Scaling group. gcp: self link of the instance group. azure: id of the scale set."""
    fleet_dir: str
    """URL of the fleet folder, in which the machines find their orders."""
    price_usd_h: str | None = None
    """Price of one machine with its disk (an average if there are two markets), as the text of a Decimal; None:
    unknown."""
    expires: float | None = None
    """Epoch seconds at which the machines terminate themselves; None: never."""

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
        """Deserialize a cluster, ignoring unknown keys of other versions. Raises TypeError, KeyError or ValueError."""
        known = {key: one for key, one in value.items() if key in cls.__dataclass_fields__}
        fleet = FleetSpec.from_json(known["fleet"])
        return cls(**{**known, "fleet": fleet, "infrastructure": Infrastructure.from_json(known["infrastructure"])})


def path_of(name: str) -> Path:
    return home() / "infra" / "clusters" / f"{name}.json"


def load(name: str) -> Cluster | None:
    """Return the record of a cluster; None: there is none. Raises ValueError, naming the file, if it cannot be read."""
    path = path_of(name)
    try:
        return Cluster.from_json(json.loads(path.read_text(encoding="utf-8"))["cluster"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error}): `cloudgpu cluster status {name}` writes it anew") from error


def load_all() -> list[Cluster]:
    """Return all records, sorted by name. Raises ValueError as load() does."""
    found = [load(path.stem) for path in sorted((home() / "infra" / "clusters").glob("*.json"))]
    return [one for one in found if one is not None]


def save(cluster: Cluster) -> None:
    """Store the record of a cluster. Raises OSError."""
    path = path_of(cluster.name)
    private(path.parent)
    text = json.dumps({"format": _FORMAT, "cluster": cluster.to_json()}, indent=2)
    durable.write(path, text.encode(), mode=0o600)


def forget(name: str, backend: str | None = None) -> None:
    """Delete the record of a cluster. `backend`: only if its stack is in this backend, or the record cannot be read."""
    with contextlib.suppress(ValueError):
        if backend is not None and (one := load(name)) is not None and one.backend != backend:
            return
    with contextlib.suppress(FileNotFoundError):
        path_of(name).unlink()
