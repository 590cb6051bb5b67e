"""Invokes of the provider: functions that return existing resources."""

from __future__ import annotations

from typing import Any

from ..wire import Props
from .cloud import Cloud, tags_of


def get_partition(cloud: Cloud, arguments: Props) -> Props:
    result = {"partition": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}
    return {"id": "aws", **result}


def get_region(cloud: Cloud, arguments: Props) -> Props:
    region = str(arguments.get("region") or cloud.region)
    return {"id": region, "region": region, "name": region, "description": region, "endpoint": ""}


def get_caller_identity(cloud: Cloud, arguments: Props) -> Props:
    result = cloud.client("sts").get_caller_identity()
    return {"id": result["Account"], "accountId": result["Account"], "arn": result["Arn"], "userId": result["UserId"]}


def get_zones(cloud: Cloud, arguments: Props) -> Props:
    wanted = {"state": arguments["state"]} if arguments.get("state") else {}
    filters = [*_filters(arguments), *({"Name": name, "Values": [value]} for name, value in wanted.items())]
    result = cloud.client("ec2", arguments).describe_availability_zones(Filters=filters)["AvailabilityZones"]
    ordered = sorted(result, key=lambda one: str(one["ZoneName"]))
    return {
        "id": str(arguments.get("region") or cloud.region),
        "region": str(arguments.get("region") or cloud.region),
        "names": [one["ZoneName"] for one in ordered],
        "zoneIds": [one["ZoneId"] for one in ordered],
        "groupNames": sorted({one.get("GroupName", "") for one in ordered}),
    }


def get_parameter(cloud: Cloud, arguments: Props) -> Props:
    result = cloud.client("ssm", arguments).get_parameter(Name=arguments["name"], WithDecryption=True)["Parameter"]
    names = {"arn": "ARN", "name": "Name", "type": "Type", "value": "Value", "version": "Version"}
    return {"id": result["Name"], "region": cloud.region, **{key: result[name] for key, name in names.items()}}


def get_ami(cloud: Cloud, arguments: Props) -> Props:
    """Return the image that matches; of several the newest if `mostRecent`. Raises LookupError with the provider's
    messages."""
    owners = {"Owners": arguments["owners"]} if arguments.get("owners") else {}
    ec2 = cloud.client("ec2", arguments)
    result = ec2.describe_images(Filters=_filters(arguments), IncludeDeprecated=True, **owners)["Images"]
    if not result:
        raise LookupError("Your query returned no results. Please change your search criteria and try again.")
    if len(result) > 1 and not arguments.get("mostRecent"):
        raise LookupError("Your query returned more than one result. Please try a more specific search criteria.")
    image = max(result, key=lambda one: str(one.get("CreationDate", "")))
    return {
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "arn": f"arn:aws:ec2:{cloud.region}::image/{image['ImageId']}",
        "architecture": image["Architecture"],
        "blockDeviceMappings": [_mapping(one) for one in image.get("BlockDeviceMappings", [])],
        "name": image.get("Name", ""),
        "ownerId": image.get("OwnerId", ""),
        "rootDeviceName": image["RootDeviceName"],
        "rootDeviceType": image["RootDeviceType"],
        "state": image["State"],
        "region": str(arguments.get("region") or cloud.region),
        "tags": tags_of(image.get("Tags")),
    }


def _mapping(told: dict[str, Any]) -> Props:
    """Convert a block device mapping; all values of `ebs` are text."""
    ebs = {f"{key[:1].lower()}{key[1:]}": _text(value) for key, value in told.get("Ebs", {}).items()}
    return {"deviceName": told["DeviceName"], "ebs": ebs, "noDevice": "", "virtualName": told.get("VirtualName", "")}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filters(arguments: Props) -> list[dict[str, Any]]:
    return [{"Name": one["name"], "Values": one["values"]} for one in arguments.get("filters") or []]


INVOKES = {
    "aws:index/getPartition:getPartition": get_partition,
    "aws:index/getRegion:getRegion": get_region,
    "aws:index/getCallerIdentity:getCallerIdentity": get_caller_identity,
    "aws:index/getAvailabilityZones:getAvailabilityZones": get_zones,
    "aws:ssm/getParameter:getParameter": get_parameter,
    "aws:ec2/getAmi:getAmi": get_ami,
}
