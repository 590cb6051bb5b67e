"""Settings of the inline Pulumi programs, and outputs of a fleet's stack. JSON values only; no SDK imports.

Programs and components do not read the environment; all settings are here, except credentials, which the provider
plugin finds in the same way as the cloud's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from ..jobspecs.fleets import FleetCloud, FleetSpec
from ..provisioners.shared.infra_outputs import Infrastructure
from .errors import InfraError

OUTPUT = "cloudgpu"
"""Name of the stack output with Infrastructure's or FleetOutputs' JSON."""
_Value = TypeVar("_Value")


def read_output(outputs: Mapping[str, Any], name: str, from_json: Callable[[Mapping[str, Any]], _Value]) -> _Value:
    """Parse one output of a stack. Raises InfraError, for example if an incompatible version wrote it."""
    try:
        return from_json(outputs[name])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hint = "`up` writes it anew; if a newer cloudgpu wrote it, update this one"
        raise InfraError(f"the stack's output {name!r} cannot be read: {error}", hint) from error


def fields_of(kind: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass's fields, ignoring unknown keys of other versions."""
    return {one.name: value[one.name] for one in fields(kind) if one.name in value}


@dataclass(frozen=True, slots=True)
class InfraSettings:
    """Settings of `infra_program`: network, role, bucket and reaper of one cloud and region."""

    cloud: FleetCloud
    region: str
    stack: str
    """Name of the Pulumi stack, e.g. `infra-aws-us-east-1`, also used as a prefix of resource names."""
    owner: str
    """Owner.name, the value of the owner tag."""
    account: str = ""
    """Project id (gcp), subscription id (azure) or account id (aws)."""
    bucket: str | None = None
    """Name of the bucket to create or keep (azure: `ACCOUNT/CONTAINER`, to adopt one `GROUP/ACCOUNT/CONTAINER`); None:
    the program chooses it."""
    adopt: bool = False
    """Use `bucket`, an existing one not managed by the stack: it is never created, changed or deleted."""
    protect: bool = True
    """Protect the bucket and its parts from `infra down`. If false (confirmed twice by the user), it may be deleted
    with all its contents (force_destroy)."""
    expires: float | None = None
    """Epoch seconds after which any cleanup may delete billable resources; None: never."""
    boundary: str = ""
    """aws: ARN of the permissions boundary of every role in the stack; "": none."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Secrets that the machines may read: reference (granted_by()) -> aws: the same; gcp:
    `projects/P/secrets/S`; azure: resource id."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InfraSettings:
        """Deserialize, ignoring unknown fields of other versions. Raises TypeError if a field is missing."""
        return cls(**fields_of(cls, value))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of `fleet_program`: the template and the group of one fleet."""

    stack: str
    """Name of the Pulumi stack, e.g. `cluster-big`."""
    owner: str
    fleet: FleetSpec
    infrastructure: Infrastructure
    """Outputs of the infra stack of the same cloud and region."""
    user_data: str
    """Boot script as plain text; the components encode it."""
    image: str
    """aws: AMI id. gcp: self link or `projects/P/global/images/…`. azure: URN `publisher:offer:sku:version`."""
    fleet_dir: str
    """URL of the fleet folder below `infrastructure.job_dir`, in which the machines find their orders."""
    account: str = ""
    """Account of the machines; see InfraSettings.account."""
    expires: float | None = None
    """Epoch seconds after which any cleanup, such as the infra stack's reaper, may delete the machines; None: never.
    Stored on the group or its resource group."""
    reservation: str | None = None
    """With market reservation: the capacity reservation's id in the fleet's only zone (aws), or
    `projects/P/reservations/R` if it must be targeted by name (gcp)."""
    capacity_block: bool = False
    """aws: the reservation is a Capacity Block for ML."""

    def to_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "owner": self.owner,
            "fleet": self.fleet.model_dump(mode="json"),
            "infrastructure": self.infrastructure.to_json(),
            "user_data": self.user_data,
            "image": self.image,
            "fleet_dir": self.fleet_dir,
            "account": self.account,
            "expires": self.expires,
            "reservation": self.reservation,
            "capacity_block": self.capacity_block,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FleetSettings:
        """Deserialize, ignoring unknown fields of other versions.

        Raises KeyError or TypeError if a field is missing, pydantic's ValidationError for an invalid fleet.
        """
        fleet = FleetSpec.from_json(value["fleet"])
        infrastructure = Infrastructure.from_json(value["infrastructure"])
        return cls(**{**fields_of(cls, value), "fleet": fleet, "infrastructure": infrastructure})


@dataclass(frozen=True, slots=True)
class FleetOutputs:
    """Outputs of a fleet's stack."""

    name: str
    cloud: str
    region: str
    template_hash: str
    """FleetSpec.template_hash of the fleet that the template was built from."""
    template: str
    """aws: launch template id. gcp: unique self link of the instance template. azure: "" (part of the scale set)."""
    template_version: str
    """aws: version number of the launch template. Other clouds: ""."""
    group: str
    """aws: name of the Auto Scaling group. gcp: self link of the managed instance group. azure: resource id of the
    scale set."""
    size: int
    """Requested number of machines at the last `up`."""
    fleet_dir: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FleetOutputs:
        """Deserialize, ignoring unknown fields of other versions; Pulumi's floats become ints.

        Raises TypeError if a field is missing.
        """
        known = fields_of(cls, value)
        return cls(**{**known, "size": int(known["size"])} if "size" in known else known)
