"""Find and delete resources tagged by cloudgpu, of all owners in all regions of AWS, for `cloudgpu gc`.

Launches are removed by the same code that a supervisor uses (teardown.py). This module finds resources without local
state, and deletes those that are no longer reachable through a launch's security group: a role of a launch that failed
early, a volume that was kept, an open Spot request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ....jobspecs import catalog
from ...base import ProvisionError
from ...shared import tags
from ...tagged_resources import Leftover, Listing, Resource, Tagged, group_by_launch
from ..clients import HOME_REGION, Clients
from ..errors import ignore_errors, translate_errors
from ..resources import scaling_groups
from ..resources.identity import PATH
from ..resources.instance_cache import InstanceCache
from .teardown import Teardown

if TYPE_CHECKING:
    from types_boto3_autoscaling import AutoScalingClient
    from types_boto3_ec2 import EC2Client
    from types_boto3_iam import IAMClient

_REGIONS_AT_ONCE = 8
_ENDING_S = 300.0
"""Seconds for which remove() waits for the end of machines that it terminated."""
_POLL_S = 3.0
_OURS: Any = [{"Name": "tag-key", "Values": [tags.OWNER]}]
_MARKETS = {"spot": "spot", "capacity-block": "reservation"}
_ALIVE: Any = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
_OPEN: Any = {"Name": "state", "Values": ["open", "active"]}


# --- find -------------------------------------------------------------------------------------------------------------


def find(regions: Sequence[str], clients: Clients | None = None) -> Listing:
    """Return the tagged resources of every owner in these regions (none: all enabled regions). Raises
    ProvisionError."""
    clients = clients or Clients()
    for region in regions:
        clients.check_region(region)
    asked = list(dict.fromkeys(regions)) or [name for name, enabled in clients.regions.items() if enabled]
    missed: dict[str, str] = {}
    found: list[Tagged] = []

    def look(place: str) -> list[Tagged]:
        with translate_errors(f"look for what is tagged in {place}", clients.clock):
            return list(_identities(clients.iam(asked[0])) if place == _IAM else _in_region(clients, place))

    with ThreadPoolExecutor(_REGIONS_AT_ONCE) as pool:
        futures = {place: pool.submit(look, place) for place in (*asked, _IAM)}
        for place, future in futures.items():
            try:
                found += future.result()
            except ProvisionError as error:
                missed[place] = str(error)
    return Listing(group_by_launch("aws", found), missed)


_IAM = "iam"
_GROUP = "Auto Scaling group"


def _in_region(clients: Clients, region: str) -> Iterator[Tagged]:
    yield from _scaling_groups(clients.autoscaling(region), region)
    for listing in (
        *(_spot_requests, _instances, _volumes, _interfaces),
        *(_templates, _placement_groups, _security_groups),
    ):
        yield from listing(clients.ec2(region), region)


def _scaling_groups(autoscaling: AutoScalingClient, region: str) -> Iterator[Tagged]:
    """Yield Auto Scaling groups; _instances() lists their machines."""
    for page in autoscaling.get_paginator("describe_auto_scaling_groups").paginate(Filters=_OURS):
        for group in map(scaling_groups.seen, page["AutoScalingGroups"]):
            detail = f"{group.machines} of {group.wanted} machines"
            yield Tagged(Resource(_GROUP, group.name, region, detail), group.tags)


def _templates(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_launch_templates").paginate(Filters=_OURS):
        for item in page["LaunchTemplates"]:
            name, created = item["LaunchTemplateName"], item["CreateTime"].timestamp()
            yield Tagged(
                Resource("launch template", item["LaunchTemplateId"], region, name, created=created), _tags(item)
            )


def _instances(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_instances").paginate(Filters=[*_OURS, _ALIVE]):
        for item in (item for reservation in page["Reservations"] for item in reservation["Instances"]):
            machine_type, state = item["InstanceType"], item["State"]["Name"]
            market = _MARKETS.get(item.get("InstanceLifecycle", ""), "on-demand")
            thing = Resource(
                "instance",
                item["InstanceId"],
                region,
                f"{machine_type} {market}, {state}",
                Decimal(0) if state == "stopped" else _machine_price(machine_type, region, market),
                item["LaunchTime"].timestamp(),
            )
            yield Tagged(thing, _tags(item))


def _volumes(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=_OURS):
        for item in page["Volumes"]:
            price = catalog.disk_price("aws", region)
            thing = Resource(
                "volume",
                item["VolumeId"],
                region,
                f"{item['Size']} GB, {item['State']}",
                None if price is None else round(price.amount * item["Size"], 6),
                item["CreateTime"].timestamp(),
            )
            yield Tagged(thing, _tags(item))


def _interfaces(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=_OURS):
        for item in page["NetworkInterfaces"]:
            thing = Resource("network interface", item["NetworkInterfaceId"], region, item.get("Status", ""))
            yield Tagged(thing, _tags(item, "TagSet"))


def _security_groups(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=_OURS):
        for item in page["SecurityGroups"]:
            yield Tagged(Resource("security group", item["GroupId"], region, item["GroupName"]), _tags(item))


def _placement_groups(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for item in ec2.describe_placement_groups(Filters=_OURS)["PlacementGroups"]:
        yield Tagged(Resource("placement group", item["GroupName"], region), _tags(item))


def _spot_requests(ec2: EC2Client, region: str) -> Iterator[Tagged]:
    for page in ec2.get_paginator("describe_spot_instance_requests").paginate(Filters=[*_OURS, _OPEN]):
        for item in page["SpotInstanceRequests"]:
            thing = Resource("Spot request", item["SpotInstanceRequestId"], region, str(item.get("State", "")))
            yield Tagged(thing, _tags(item))


def _identities(iam: IAMClient) -> Iterator[Tagged]:
    """Yield roles and instance profiles under cloudgpu's path. Listings omit tags: each item takes another call."""
    for roles in iam.get_paginator("list_roles").paginate(PathPrefix=PATH):
        for name in [role["RoleName"] for role in roles["Roles"]]:
            with ignore_errors("NoSuchEntity"):
                role = iam.get_role(RoleName=name)["Role"]
                yield Tagged(Resource("role", name, "", created=role["CreateDate"].timestamp()), _tags(role))
    for profiles in iam.get_paginator("list_instance_profiles").paginate(PathPrefix=PATH):
        for name in [profile["InstanceProfileName"] for profile in profiles["InstanceProfiles"]]:
            with ignore_errors("NoSuchEntity"):
                profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
                created = profile["CreateDate"].timestamp()
                yield Tagged(Resource("instance profile", name, "", created=created), _tags(profile))


def _tags(item: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get(key) or ()}


def _machine_price(machine_type: str, region: str, market: str) -> Decimal | None:
    for machine in catalog.machine_types("aws").get(machine_type, ()):
        found = catalog.price("aws", machine_type, machine.accelerator, machine.counts[0], region, market)
        return None if found is None else found.amount
    return None


# --- remove -----------------------------------------------------------------------------------------------------------


def remove(leftover: Leftover, clients: Clients | None = None) -> None:
    """Delete all resources of a leftover. Idempotent; returns when nothing is billed any more. Raises
    ProvisionError."""
    clients = clients or Clients()
    for thing in leftover.things:
        if thing.kind == _GROUP:  # before the machines: the group would replace them
            scaling_groups.close(clients, thing.region, thing.id)
    for region in leftover.regions:
        if leftover.token:
            Teardown(clients, InstanceCache(clients), region, leftover.token, leftover.owner).run()
        _remove_things(clients, region, leftover)
    _remove_things(clients, "", leftover)


def _remove_things(clients: Clients, region: str, leftover: Leftover) -> None:
    """Delete the resources of one region ("": global), in the order of _DELETE."""
    here = [thing for thing in leftover.things if thing.region == region]
    for kind, delete in _DELETE.items():
        if kind == "volume":
            _end(clients, region, [thing.id for thing in here if thing.kind == "instance"])
        for name in (thing.id for thing in here if thing.kind == kind):
            with translate_errors(f"remove {kind} {name}" + (f" of {region}" if region else ""), clients.clock):
                delete(clients, region, name)


def _end(clients: Clients, region: str, instances: Sequence[str]) -> None:
    """Terminate instances and wait until they are gone: until then disks are billed, and security groups in use."""
    until = clients.clock.monotonic() + _ENDING_S
    left = _alive(clients, region, instances) if instances else []
    if left:
        with translate_errors(f"end {', '.join(left)} of {region}", clients.clock):
            clients.ec2(region).terminate_instances(InstanceIds=left)
    while left := _alive(clients, region, left) if left else []:
        if clients.clock.monotonic() > until:
            message = f"{', '.join(left)} of {region} were told to end {_ENDING_S:.0f} s ago, and are still there"
            raise ProvisionError("transient", message, scope="region")
        clients.clock.sleep(_POLL_S)


def _alive(clients: Clients, region: str, instances: Sequence[str]) -> list[str]:
    with translate_errors(f"look at the machines in {region}", clients.clock):
        pages = (
            clients.ec2(region)
            .get_paginator("describe_instances")
            .paginate(Filters=[{"Name": "instance-id", "Values": list(instances)}])
        )
        items = [item for page in pages for reservation in page["Reservations"] for item in reservation["Instances"]]
    return [item["InstanceId"] for item in items if item["State"]["Name"] != "terminated"]


def _cancel_spot_request(clients: Clients, region: str, name: str) -> None:
    with ignore_errors("InvalidSpotInstanceRequestID.NotFound"):
        clients.ec2(region).cancel_spot_instance_requests(SpotInstanceRequestIds=[name])


def _delete_volume(clients: Clients, region: str, name: str) -> None:
    with ignore_errors("InvalidVolume.NotFound"):
        clients.ec2(region).delete_volume(VolumeId=name)


def _delete_interface(clients: Clients, region: str, name: str) -> None:
    with ignore_errors("InvalidNetworkInterfaceID.NotFound"):
        clients.ec2(region).delete_network_interface(NetworkInterfaceId=name)


def _delete_template(clients: Clients, region: str, name: str) -> None:
    scaling_groups.delete_template(clients.ec2(region), name)


def _delete_placement_group(clients: Clients, region: str, name: str) -> None:
    with ignore_errors("InvalidPlacementGroup.Unknown"):
        clients.ec2(region).delete_placement_group(GroupName=name)


def _delete_security_group(clients: Clients, region: str, name: str) -> None:
    with ignore_errors("InvalidGroup.NotFound"):
        clients.ec2(region).delete_security_group(GroupId=name)


def _delete_profile(clients: Clients, region: str, name: str) -> None:
    iam = clients.iam(region or HOME_REGION)
    with ignore_errors("NoSuchEntity"):
        for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=name)


def _delete_role(clients: Clients, region: str, name: str) -> None:
    iam = clients.iam(region or HOME_REGION)
    with ignore_errors("NoSuchEntity"):
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
        iam.delete_role(RoleName=name)


_DELETE: dict[str, Callable[[Clients, str, str], None]] = {
    "Spot request": _cancel_spot_request,
    "volume": _delete_volume,
    "network interface": _delete_interface,
    "launch template": _delete_template,
    "placement group": _delete_placement_group,
    "security group": _delete_security_group,
    "instance profile": _delete_profile,
    "role": _delete_role,
}
"""Kind -> function that deletes a resource, in order of deletion. Machines are terminated before the first volume, and
Auto Scaling groups are deleted before everything else."""
