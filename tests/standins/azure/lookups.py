"""Read-only requests: sizes, usages, images, resource providers, operations."""

from __future__ import annotations

from typing import Any

from . import catalog, vms
from .arm import RefusedError, Response, answer
from .ask import ApiRequest
from .vm_checks import restrictions, zones_of
from .world import World


def skus(ask: ApiRequest) -> Response:
    """List machine sizes, one entry per region, with `$filter=location eq '…'`."""
    text = ask.request.query.get("$filter", "")
    wanted = text.removeprefix("location eq '").removesuffix("'") if text else ""
    if text and text != f"location eq '{wanted}'":
        raise RefusedError("InvalidFilterInQueryString", 400, f"The filter '{text}' is not supported.")
    world = ask.world
    value = [
        _sku(world, size, region)
        for size in catalog.sizes().values()
        for region in sorted(size.regions)
        if wanted.lower() in ("", region) and not world.sku_changes.get((size.name.lower(), region), {}).get("missing")
    ]
    copies = [{**one, "name": new} for new, like in world.sku_copies for one in value if one["name"] == like]
    return answer({"value": value + copies})


def usages(ask: ApiRequest) -> Response:
    return answer({"value": ask.world.capacity.usages(ask.target.names[0].lower(), vms.shapes(ask.world))})


def network_usages(ask: ApiRequest) -> Response:
    """Return the network usages relevant to a launch."""
    addresses = sum(1 for _ in ask.world.of_kind("Microsoft.Network/publicIPAddresses"))
    result = {"value": "StandardSkuPublicIpAddresses", "localizedValue": "Public IP Addresses - Standard"}
    return answer({"value": [{"unit": "Count", "currentValue": addresses, "limit": 1_000, "name": result}]})


def images(ask: ApiRequest) -> Response:
    """Return the versions of a platform image, or one of them."""
    _, publisher, _, offer, sku, *version = ask.target.names
    image = catalog.find_image(publisher, offer, sku)
    if image is None or (version and version[0] not in ("latest", image.version)):
        text = f"Artifact: VMImage was not found. ({publisher}:{offer}:{sku})"
        raise RefusedError("NotFound", 404, text)
    path = ask.path.rpartition("/versions")[0]
    result: dict[str, Any] = {
        "location": ask.target.names[0],
        "name": image.version,
        "id": f"{path}/versions/{image.version}",
    }
    if not version:
        return answer([result])
    disk = {"operatingSystem": "Linux", "sizeInGb": image.disk_gb}
    return answer(
        {**result, "properties": {"osDiskImage": disk, "hyperVGeneration": image.generation, "architecture": "x64"}}
    )


def provider(ask: ApiRequest) -> Response:
    """Return a resource provider's registration state; `register` registers it."""
    name = ask.target.namespace
    if ask.target.verb == "register":
        ask.world.registered.add(name.lower())
    state = "Registered" if name.lower() in ask.world.registered else "NotRegistered"
    path = f"/subscriptions/{ask.target.subscription}/providers/{name}"
    return answer({"id": path, "namespace": name, "registrationState": state, "resourceTypes": []})


def permissions(ask: ApiRequest) -> Response:
    """List the caller's permissions at a scope, an entry for each role."""
    return answer({"value": ask.world.entries(ask.caller, ask.target.scope)})


def subscription(ask: ApiRequest) -> Response:
    path = f"/subscriptions/{ask.target.subscription}"
    return answer({"id": path, "subscriptionId": ask.target.subscription, "displayName": "Tests", "state": "Enabled"})


def locations(ask: ApiRequest) -> Response:
    """List the regions, and a logical region beside them."""
    found = [{"name": region, "metadata": {"regionType": "Physical"}} for region in sorted(catalog.regions())]
    logical = {"name": "unitedstates", "metadata": {"regionType": "Logical"}}
    path = f"/subscriptions/{ask.target.subscription}/locations"
    return answer({"value": [{"id": f"{path}/{one['name']}", **one} for one in [*found, logical]]})


def operation(ask: ApiRequest) -> Response:
    """Return an operation as `Azure-AsyncOperation` does: 200, whatever its result."""
    found = ask.world.operations.known.get(ask.target.names[1])
    if found is None:
        raise RefusedError("NotFound", 404, f"Operation {ask.target.names[1]} was not found.")
    result = answer(found)
    if found["status"] == "InProgress":
        result.headers["Retry-After"] = str(ask.world.retry_s)
    return result


def operation_result(ask: ApiRequest) -> Response:
    """Return an operation's result as `Location` does: 202 until it is done."""
    name = ask.target.names[1]
    found = ask.world.operations.known.get(name)
    if found is None:
        raise RefusedError("NotFound", 404, f"Operation {name} was not found.")
    if found["status"] == "InProgress":
        return Response(
            202,
            b"",
            {
                "Location": f"{ask.world.url}{ask.request.path}?api-version={ask.request.query['api-version']}",
                "Retry-After": str(ask.world.retry_s),
            },
        )
    if "error" in found:
        return answer({"error": found["error"]}, 409)
    return Response(200 if ask.target.namespace == "Microsoft.Resources" else 204)


def _sku(world: World, size: catalog.Size, region: str) -> dict[str, Any]:
    rdma = "r" in size.name.partition("_")[2].partition("_")[0].lstrip("NDC0123456789")
    result: dict[str, Any] = {
        "vCPUs": size.vcpus,
        "MemoryGB": f"{size.memory_gb:g}",
        "HyperVGenerations": "V2" if "_v5" in size.name or "_v6" in size.name else "V1,V2",
        "CpuArchitectureType": "x64",
        "LowPriorityCapable": size.spot,
        "CapacityReservationSupported": size.reservable,
        "PremiumIO": True,
        "AcceleratedNetworkingEnabled": True,
        "RdmaEnabled": rdma,
    }
    if size.gpus:
        result["GPUs"] = max(1, int(size.gpus))
    result |= world.sku_changes.get((size.name.lower(), region), {}).get("capabilities", {})
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": "Standard",
        "size": size.name.removeprefix("Standard_"),
        "family": size.family,
        "locations": [region],
        "locationInfo": [{"location": region, "zones": zones_of(world, size, region), "zoneDetails": []}],
        "capabilities": [{"name": name, "value": str(value)} for name, value in result.items()],
        "restrictions": restrictions(world, size, region),
    }
