"""What the inline programs of a cloud are given, and what a fleet's stack exports. JSON values only; no SDK.

Programs and components read no environment: whatever they need is here. Credentials are not: the provider plugin takes
them from where the cloud's own tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ..jobspecs.fleets import FleetCloud, FleetSpec
from ..provisioners.shared.infra_outputs import Infrastructure
from .errors import InfraError

OUTPUT = "cloudgpu"
"""The output of both programs: Infrastructure's or FleetOutputs' JSON."""
_Value = TypeVar("_Value")


def read_output(outputs: Mapping[str, Any], name: str, from_json: Callable[[Mapping[str, Any]], _Value]) -> _Value:
    """One output of a stack, which somebody else's version may have written. Raises InfraError."""
    try:
        return from_json(outputs[name])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hint = "`up` writes it anew; if a newer cloudgpu wrote it, update this one"
        raise InfraError(f"the stack's output {name!r} cannot be read: {error}", hint) from error


def fields_of(kind: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """What of it is a field of this dataclass: what another version added is dropped."""
    return {one.name: value[one.name] for one in fields(kind) if one.name in value}


@dataclass(frozen=True, slots=True)
class InfraSettings:
    """Of `infra_program`: network, role, bucket and reaper of one cloud and region."""

    cloud: FleetCloud
    region: str
    stack: str
    """Name of the Pulumi stack, e.g. `infra-aws-us-east-1`: for the outputs; names in the cloud may begin with it."""
    owner: str
    """As in Owner.name: who everything is tagged with."""
    account: str = ""
    """gcp: the project's id. azure: the subscription's id. aws: the account's id."""
    bucket: str | None = None
    """A bucket to make, or to go on with, by this name (azure: `ACCOUNT/CONTAINER`; of one to adopt with its resource
    group, `GROUP/ACCOUNT/CONTAINER`); None: the program names it."""
    adopt: bool = False
    """`bucket` exists and is somebody else's: it is used, never made, changed or deleted."""
    protect: bool = True
    """The bucket, and all that belongs to it, is protected: `infra down` leaves it in its stack. False: it may be
    deleted with everything in it (force_destroy), for the user said so twice."""
    expires: float | None = None
    """Epoch seconds after which anybody may remove what bills; None: never."""
    boundary: str = ""
    """aws: ARN of the permissions boundary of every role that the stack makes; "": none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InfraSettings:
        """Lenient: what another version added is dropped. Raises TypeError if something is missing."""
        return cls(**fields_of(cls, value))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Of `fleet_program`: the template and the group of one fleet."""

    stack: str
    """Name of the Pulumi stack, e.g. `cluster-big`."""
    owner: str
    fleet: FleetSpec
    infrastructure: Infrastructure
    """What it stands in: the outputs of the infra stack of the same cloud and region."""
    user_data: str
    """What machines boot with, as text; components take it as it is."""
    image: str
    """aws: AMI id. gcp: self link or `projects/P/global/images/…`. azure: URN `publisher:offer:sku:version`."""
    fleet_dir: str
    """URL below `infrastructure.job_dir` where its machines look for what to do."""
    account: str = ""
    """As in InfraSettings."""
    expires: float | None = None
    """Epoch seconds after which anybody may end the machines, as the group or its resource group says, and the infra
    stack's reaper does; None: never."""
    reservation: str | None = None
    """Of market reservation. aws: id of the capacity reservation, in the fleet's one zone. gcp:
    `projects/P/reservations/R`, if it must be named to be used."""
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
        """Lenient: what another version added is dropped. Raises KeyError or TypeError if something is missing, and
        pydantic's ValidationError for a bad fleet."""
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
    """FleetSpec.template_hash of what the template was made of."""
    template: str
    """aws: launch template id. gcp: unique self link of the instance template. azure: "" (a part of the group)."""
    template_version: str
    """aws: number of the launch template's version. Elsewhere ""."""
    group: str
    """aws: name of the Auto Scaling group. gcp: self link of the managed instance group. azure: resource id of the
    scale set."""
    size: int
    """Machines wanted when the stack was last brought up."""
    fleet_dir: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FleetOutputs:
        """Lenient: what another version added is dropped; Pulumi's numbers, which are floats, become whole ones. Raises
        TypeError if something is missing."""
        known = fields_of(cls, value)
        return cls(**{**known, "size": int(known["size"])} if "size" in known else known)
