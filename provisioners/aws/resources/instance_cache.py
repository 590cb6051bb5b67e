"""Cache of DescribeInstances, one call for each region shared by all jobs of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...base import NodeState, ProvisionError
from ...shared import tags
from ...shared.errors import classify
from ...shared.poll_cache import PollCache
from ..clients import Clients
from ..errors import translate_errors

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import InstanceTypeDef

# EC2's instance state -> phase. Until `terminated` the disk exists and is billed, also in `stopped`.
_PHASES: dict[str, Literal["pending", "running", "gone"]] = {
    "pending": "pending",
    "running": "running",
    "stopping": "running",
    "stopped": "running",
    "shutting-down": "running",
    "terminated": "gone",
}
_MARKETS = {"spot": "spot", "capacity-block": "reservation"}
"""EC2's InstanceLifecycle -> market; absent: on-demand."""
_TAKEN = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.ScheduledStop"})
"""StateReason codes of reclaimed machines. Source: EC2 API reference, StateReason."""
_REFUSALS = (
    "Server.InsufficientInstanceCapacity",
    "Server.InternalError",
    "Client.InstanceLimitExceeded",
    "Client.InternalError",
    "Client.InvalidKMSKey.",
    "Client.InvalidSnapshot.",
    "Client.UnauthorizedOperation",
    "Client.VolumeLimitExceeded",
)
"""Prefixes of StateReason codes with which EC2 terminates an instance that is still `pending`. Source: EC2 user guide,
"Instance terminates immediately". Server.InternalError also terminates running instances: callers ignore the refusal of
a machine that has sent heartbeats."""
_LASTING = "Client.InternalError"
"""StateReason code that usually means a missing permission on the disk's key, in every zone."""
_LASTING_LAUNCHES = 2
"""If _LASTING ended this number of a job's launches, the error is classified as `auth` instead of `capacity`."""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """Instance as last listed."""

    instance: str
    state: str
    """EC2's state name, e.g. `shutting-down`."""
    tags: Mapping[str, str]
    client_token: str
    reason: str
    """EC2's StateReason code, e.g. `Server.SpotInstanceTermination`; "": none."""
    message: str
    zone: str
    """AZ name; EC2 does not return the AZ id of an instance."""
    machine_type: str
    market: str
    """Market, spelled as in offers, e.g. `on-demand`."""

    @property
    def token(self) -> str:
        """Return the token of its launch; "": the tag is missing."""
        return self.tags.get(tags.TOKEN, "")

    @property
    def node(self) -> str:
        """Return the node that it runs, as in NodeRequest; "": the tag is missing."""
        return self.tags.get(tags.NODE, "")

    @property
    def is_gone(self) -> bool:
        return _PHASES.get(self.state, "running") == "gone"

    @property
    def was_refused(self) -> bool:
        """Return whether EC2 terminated the instance instead of starting it; it was then not billed."""
        return self.is_gone and self.reason.startswith(_REFUSALS)

    def as_node(self, node: str, others: Iterable[InstanceState] = ()) -> NodeState:
        """Return the state of the node that the instance runs.

        `others`: all instances of the owner, to count launches of the same job that ended for the same reason."""
        phase = _PHASES.get(self.state, "running")
        words = self.message or self.reason
        if self.reason and self.reason not in words:
            words = f"{self.reason}: {words}"
        detail = "" if self.state == "running" else ": ".join(part for part in (self.state, words) if part)
        refused = self._refusal(node, words, others) if self.was_refused else None
        return NodeState(node, phase, detail, reclaimed=self.reason in _TAKEN, refused=refused)

    def _refusal(self, node: str, words: str, others: Iterable[InstanceState]) -> ProvisionError:
        doing = f"start {node} in {self.zone}"
        found = classify("aws", code=self.reason, message=words, doing=doing, is_operation=True)
        job = self.tags.get(tags.JOB)
        alike = {one.token for one in others if one.reason == self.reason and job and one.tags.get(tags.JOB) == job}
        if self.reason == _LASTING and len(alike | {self.token}) >= _LASTING_LAUNCHES:
            return ProvisionError("auth", str(found), scope="region", code=found.code)
        return found


class InstanceCache:
    """Cached listings of instances, shared by all jobs. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache: PollCache[tuple[str, str, str], Mapping[str, InstanceState]] = PollCache(self._ask, clients.clock)

    def of_owner(self, region: str, owner: str, *, since: float | None = None) -> Mapping[str, InstanceState]:
        """Return instance id -> state of all the owner's instances in a region; terminated ones for about an hour.

        `since`: as in PollCache.get(). Raises ProvisionError.
        """
        return self._cache.get((region, tags.OWNER, owner), since=since)

    def of_token(self, region: str, token: str, *, since: float | None = None) -> Mapping[str, InstanceState]:
        """Return the cached instances of one launch whose owner is unknown. Raises ProvisionError."""
        return self._cache.get((region, tags.TOKEN, token), since=since)

    def of_launch(self, region: str, token: str) -> Mapping[str, InstanceState]:
        """Return the instances of one launch, uncached. Raises ProvisionError.

        Used when a launch begins: of_owner() would list all of the owner's machines again for each launch."""
        return self._ask((region, tags.TOKEN, token))

    def _ask(self, where: tuple[str, str, str]) -> Mapping[str, InstanceState]:
        region, tag, value = where
        with translate_errors(f"look at the machines in {region}", self._clients.clock):
            pages = (
                self._clients.ec2(region)
                .get_paginator("describe_instances")
                .paginate(Filters=[{"Name": f"tag:{tag}", "Values": [value]}], PaginationConfig={"PageSize": 1_000})
            )
            return {
                instance["InstanceId"]: parse_instance(instance)
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation.get("Instances", ())
            }


def parse_instance(instance: InstanceTypeDef) -> InstanceState:
    """Parse an instance of EC2's answer."""
    reason = instance.get("StateReason", {})
    return InstanceState(
        instance=instance["InstanceId"],
        state=instance["State"]["Name"],
        tags={tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())},
        client_token=instance.get("ClientToken", ""),
        reason=reason.get("Code", ""),
        message=reason.get("Message", ""),
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        machine_type=instance.get("InstanceType", ""),
        market=_MARKETS.get(instance.get("InstanceLifecycle", ""), "on-demand"),
    )
