"""Generic resources (kinds.py), and the special rules of networks and identities."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from . import catalog
from .arm import RefusedError, Response, answer, error, key, last, parse
from .ask import ApiRequest, accepted, begun, check_location, check_references, check_tags, group_of, resolve
from .kinds import KINDS, Kind
from .names import TENANT, identity
from .operations import FailedError
from .schema import faults
from .tokens import Principal
from .world import World


def check_body(model: str, body: dict[str, Any]) -> None:
    """Check a body against the SDK's model. Raises RefusedError."""
    if wrong := faults(model, body):
        raise RefusedError("InvalidRequestContent", 400, f"The request content was invalid: {'; '.join(wrong)}")


def put(ask: ApiRequest, kind: Kind) -> Response:
    """Create or replace a resource."""
    world, body = ask.world, ask.body
    group = group_of(world, ask)
    check_body(kind.model, body)
    check_tags(body)
    if kind.located:
        check_location(body, kind.name)
    if key(ask.path) in world.deleting:
        raise RefusedError("AnotherOperationInProgress", 409, f"Another operation on {ask.path} is in progress.")
    check_references(world, body, ask.path)
    _check_kind(world, kind, body)
    old = resolve(world, ask.path)
    if (
        old is not None
        and kind.located
        and catalog.region_name(old["location"]) != catalog.region_name(body["location"])
    ):
        raise _moved(ask, old, body)
    made = _made(ask, kind, body, old, group)
    status = kind.made if old is None else 200
    if kind.name.endswith("/subnets"):
        _put_part(world, ask.path, made)
    else:
        world.resources[key(ask.path)] = made
    if not kind.later:
        made["properties"]["provisioningState"] = "Succeeded"
        return answer(shown(made), status)

    def work() -> None:
        world.check_later(kind.name, "write", ask.path)
        made["properties"]["provisioningState"] = "Succeeded"

    def failed() -> None:
        made["properties"]["provisioningState"] = "Failed"

    made["properties"]["provisioningState"] = "Updating"
    return begun(shown(made), status, ask.begin(work, failed))


def get(ask: ApiRequest) -> Response:
    return answer(shown(ask.found()))


def patch(ask: ApiRequest) -> Response:
    """Replace all tags; other changes are not implemented."""
    found, body = ask.found(), ask.body
    if set(body) - {"tags"}:
        return error("StandinNotImplemented", 501, f"PATCH of {', '.join(sorted(set(body) - {'tags'}))}")
    check_tags(body)
    found["tags"] = body.get("tags") or {}
    return answer(shown(found))


def delete(ask: ApiRequest, kind: Kind) -> Response:
    """Delete a resource; 204 if it does not exist."""
    world, found = ask.world, resolve(ask.world, ask.path)
    if found is None:
        return Response(204)
    users = world.users(ask.path)
    if users and kind.in_use is not None:
        code, status = kind.in_use
        return error(
            code, status, f"{kind.name} {ask.path} cannot be deleted since it is in use by {', '.join(users)}."
        )
    if not kind.later:
        world.remove(ask.path)
        return Response(200)

    def work() -> None:
        try:
            world.check_later(kind.name, "delete", ask.path)
        except FailedError:
            world.deleting.discard(key(ask.path))
            raise
        if kind.name.endswith("/subnets"):
            _put_part(world, ask.path, None)
        world.remove(ask.path)
        world.deleting.discard(key(ask.path))

    world.deleting.add(key(ask.path))
    found["properties"]["provisioningState"] = "Deleting"
    return accepted(ask.begin(work))


def shown(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the resource as in responses."""
    return resource


def listed(world: World, found: Iterable[dict[str, Any]]) -> Response:
    return answer({"value": [shown(one) for one in found]})


# -- special rules


def _moved(ask: ApiRequest, old: dict[str, Any], body: dict[str, Any]) -> RefusedError:
    text = (
        f"The resource '{last(ask.path)}' already exists in location '{old['location']}' in resource group "
        f"'{ask.target.group}'. A resource with the same name cannot be created in location '{body['location']}'. "
        "Please select a new resource name."
    )
    return RefusedError("InvalidResourceLocation", 409, text)


def _made(
    ask: ApiRequest, kind: Kind, body: dict[str, Any], old: dict[str, Any] | None, group: dict[str, Any]
) -> dict[str, Any]:
    namespace = kind.name.partition("/")[0]
    properties = {**(body.get("properties") or {})}
    made = {**body, "id": ask.path, "name": last(ask.path), "type": kind.name, "properties": properties}
    if namespace == "Microsoft.Network":
        made["etag"] = f'W/"{uuid.uuid4()}"'
        properties["resourceGuid"] = (old or {}).get("properties", {}).get("resourceGuid") or str(uuid.uuid4())
    for parts, word in (kind.parts or {}).items():
        properties[parts] = [_part(ask.path, kind, word, one) for one in properties.get(parts) or []]
    if kind.name.endswith("networkInterfaces"):
        _address(ask.world, properties, old)
    elif kind.name.endswith("publicIPAddresses"):
        number = ask.world.number()
        properties["ipAddress"] = (old or {}).get("properties", {}).get("ipAddress") or f"203.0.113.{number % 250 + 1}"
    elif kind.name.endswith("userAssignedIdentities"):
        properties |= _principal(ask)
    elif kind.name.endswith("disks"):
        properties.setdefault("diskState", "Unattached")
    return made


def _part(path: str, kind: Kind, word: str, one: dict[str, Any]) -> dict[str, Any]:
    made = {
        **one,
        "id": f"{path}/{word}/{one.get('name', '')}",
        "etag": f'W/"{uuid.uuid4()}"',
        "type": f"{kind.name}/{word}",
    }
    made["properties"] = {**(one.get("properties") or {}), "provisioningState": "Succeeded"}
    return made


def _put_part(world: World, path: str, made: dict[str, Any] | None) -> None:
    """Add, replace or remove a subnet, which is part of its network."""
    above = path.rpartition("/")[0].rpartition("/")[0]
    owner = world.find(above)
    if owner is None:
        raise RefusedError("ParentResourceNotFound", 404, f"Parent resource '{above}' not found.")
    kept = [one for one in owner["properties"]["subnets"] if key(one["id"]) != key(path)]
    owner["properties"]["subnets"] = [*kept, made] if made is not None else kept


def _address(world: World, properties: dict[str, Any], old: dict[str, Any] | None) -> None:
    """Assign a private address to each configuration, keeping earlier ones."""
    known = {one["name"]: one for one in (old or {}).get("properties", {}).get("ipConfigurations", [])}
    for one in properties["ipConfigurations"]:
        before = known.get(one["name"], {}).get("properties", {}).get("privateIPAddress")
        number = world.number()
        one["properties"].setdefault("privateIPAllocationMethod", "Dynamic")
        one["properties"]["privateIPAddress"] = before or f"10.0.{number // 250}.{number % 250 + 4}"
    properties["macAddress"] = "00-0D-3A-00-00-01"


def _principal(ask: ApiRequest) -> dict[str, str]:
    """Return an identity's principal: a new one for each identity created, even with the same name."""
    known = ask.world.identities.get(key(ask.path))
    if known is None:
        seed = f"{ask.path}/{uuid.uuid4()}"
        known = Principal(last(ask.path), identity("principal", seed), identity("client", seed), machine=True)
        ask.world.identities[key(ask.path)] = known
        ask.world.seen_from[f"principal/{known.object_id}"] = ask.world.role_lag_until()
    return {"principalId": known.object_id, "clientId": known.client_id, "tenantId": TENANT}


def _check_kind(world: World, kind: Kind, body: dict[str, Any]) -> None:
    properties = body.get("properties") or {}
    if kind.name.endswith("publicIPAddresses"):
        _check_public_address(body, properties)
    elif kind.name.endswith("networkInterfaces"):
        _check_interface(world, body, properties)
    elif kind.name.endswith("networkSecurityGroups"):
        _check_rules(properties)
    elif kind.name.endswith("virtualNetworks") and not (properties.get("addressSpace") or {}).get("addressPrefixes"):
        raise RefusedError("MissingJsonPropertyName", 400, "Property addressSpace of the virtual network is missing.")
    elif kind.name.endswith("natGateways") and (body.get("sku") or {}).get("name") not in ("Standard", "StandardV2"):
        raise RefusedError("NatGatewaySkuNotSpecified", 400, "Sku of the NAT gateway must be Standard or StandardV2.")


def _check_public_address(body: dict[str, Any], properties: dict[str, Any]) -> None:
    sku = (body.get("sku") or {}).get("name", "Basic")
    if sku == "Basic":
        text = "Cannot create more than 0 IPv4 Basic SKU public IP addresses for this subscription in this region."
        raise RefusedError("IPv4BasicSkuPublicIpCountLimitReached", 400, text)
    if properties.get("publicIPAllocationMethod") != "Static":
        text = "Standard sku publicIp must have AllocationMethod set to Static."
        raise RefusedError("PublicIPAndSkuMustBeStatic", 400, text)


def _check_interface(world: World, body: dict[str, Any], properties: dict[str, Any]) -> None:
    """Check that the interface is in its subnet's region. Raises RefusedError."""
    configurations = properties.get("ipConfigurations") or []
    if not configurations:
        raise RefusedError("NetworkInterfaceMustHaveAtLeastOneIpConfiguration", 400, "There is no ipConfiguration.")
    for one in configurations:
        within = one.get("properties") or {}
        if not within.get("subnet"):
            raise RefusedError(
                "SubnetIsRequired", 400, f"Subnet reference in ipConfiguration {one.get('name')} is missing."
            )
        network = world.find(str(within["subnet"]["id"]).rpartition("/subnets/")[0])
        here = catalog.region_name(body["location"])
        if network is None or catalog.region_name(network["location"]) != here:
            text = f"Resource {within['subnet']['id']} is not in region {here}, in which the network interface is."
            raise RefusedError("InvalidResourceReference", 400, text)


def _check_rules(properties: dict[str, Any]) -> None:
    """Check that priorities are unique per direction, from 100 to 4096, and that no required field is missing. Raises
    RefusedError."""
    taken: set[tuple[str, int]] = set()
    for rule in properties.get("securityRules") or []:
        result = rule.get("properties") or {}
        place = (str(result.get("direction")), int(result.get("priority") or 0))
        if not 100 <= place[1] <= 4096:
            raise RefusedError(
                "SecurityRuleInvalidPriority", 400, f"Security rule {rule.get('name')}: priority {place[1]}."
            )
        if place in taken:
            raise RefusedError("SecurityRuleConflict", 400, f"Security rules conflict: two of priority {place[1]}.")
        taken.add(place)
        for name in ("sourceAddressPrefix", "destinationAddressPrefix", "sourcePortRange", "destinationPortRange"):
            several = name + ("es" if name.endswith("Prefix") else "s")
            groups = f"{name.removesuffix('AddressPrefix')}ApplicationSecurityGroups"
            if not (result.get(name) or result.get(several) or result.get(groups)):
                text = f"Security rule parameter {name} of rule {rule.get('name')} is missing."
                raise RefusedError("SecurityRuleParameterMissing", 400, text)


def kind_of(path: str) -> Kind | None:
    return KINDS.get(parse(path).kind.lower())
