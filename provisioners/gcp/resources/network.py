"""Network of machines: an existing network and subnetwork, and firewall rules that block inbound traffic.

Networks usually have rules that allow SSH, RDP and traffic between all machines. cloudgpu's machines need no inbound
traffic, so one rule for each network, `cloudgpu-closed-<network>`, denies all traffic to the network tag `cloudgpu`. It
is created if missing, shared by all launches, and kept (rules are free). Machines of a launch with several nodes may
reach each other through a separate rule, `cloudgpu-<token>`, which teardown removes last.

Source: Compute Engine's documentation, "VPC firewall rules" (lower numbers win; deny wins among equals).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ...shared.infra_outputs import Infrastructure
from ..clients import READ_S, WRITE_S, Clients, ignore_not_found
from ..labels import PREFIX, from_description, launch_name, to_description
from ..operations import make, remove
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

NETWORK, SUBNETWORK = "CLOUDGPU_GCP_NETWORK", "CLOUDGPU_GCP_SUBNETWORK"
CLOSED_TAG = PREFIX
"""Network tag of all cloudgpu machines."""
_OURS, _DEFAULT = PREFIX, "default"
"""Networks to try if none is configured: cloudgpu's, an infra stack's in the region (`cloudgpu-us-central1`), and the
project's default one."""
_ALLOW_PRIORITY, _DENY_PRIORITY = 90, 100
"""Rule priorities; a network's built-in rules have 65534, gcloud's default is 1000."""
_RETRY_TIMEOUT_S = 120.0
"""Timeout in seconds for creating or removing a firewall rule, which takes about 10 s."""
_MAX_NAME = 63


class Attachment(NamedTuple):
    """Subnetwork for machines."""

    network: str
    """Name of the network."""
    network_url: str
    subnetwork_url: str
    private_access: bool
    """True if Google's APIs are reachable without an external address (Private Google Access)."""


class Rule(NamedTuple):
    """Firewall rule of a launch."""

    name: str
    tags: Mapping[str, str]

    @property
    def token(self) -> str:
        return self.tags.get(tags.TOKEN, "")


# --- subnetwork -------------------------------------------------------------------------------------------------------


def find_attachment(clients: Clients, region: str, stack: Infrastructure | None = None) -> Attachment:
    """Return the subnetwork to use in a region.

    It is in the configured network, otherwise the infra stack's, otherwise cloudgpu's or the project's default one.
    Raises ProvisionError: `invalid` if the network does not exist, `not_offered` if it has no subnetwork in the region.
    """
    if stack is not None and not os.environ.get(NETWORK) and not os.environ.get(SUBNETWORK):
        return _of_stack(clients, region, stack)
    network = _find_network(clients, region)
    named = os.environ.get(SUBNETWORK)
    found = [one for one in _subnetworks(clients, region, network.self_link) if named in {None, "", one.name}]
    if not found:
        raise _no_subnetwork(network.name, region, named)
    best = min(found, key=lambda one: (not one.private_ip_google_access, one.name))
    return Attachment(network.name, network.self_link, best.self_link, best.private_ip_google_access)


def _of_stack(clients: Clients, region: str, stack: Infrastructure) -> Attachment:
    network = _network(clients, stack.network)
    subnets = [] if network is None else _subnetworks(clients, region, network.self_link)
    found = next((one for one in subnets if _same(one.self_link, stack.subnets.get("", ""))), None)
    if network is None or found is None:
        message = (
            f"the subnetwork of stack {stack.stack} is not in project {clients.project}: `cloudgpu infra status "
            f"--cloud gcp --region {region}` looks what is there"
        )
        raise ProvisionError("invalid", message, scope="region", code="NoSubnetwork")
    return Attachment(network.name, network.self_link, found.self_link, found.private_ip_google_access)


def _find_network(clients: Clients, region: str) -> compute_v1.Network:
    named = os.environ.get(NETWORK)
    for name in (named,) if named else (_OURS, f"{_OURS}-{region}", _DEFAULT):
        network = _network(clients, name)
        if network is not None:
            return network
    what = f"network {named}, which {NETWORK} names" if named else f"network {_OURS} or {_DEFAULT}"
    message = f"project {clients.project} has no {what}: `gcloud compute networks create {named or _OURS}` makes one"
    raise ProvisionError("invalid", message, scope="cloud", code="NoNetwork")


def _network(clients: Clients, name: str) -> compute_v1.Network | None:
    def ask() -> compute_v1.Network | None:
        with ignore_not_found():
            return clients.networks.get(project=clients.project, network=name, retry=None, timeout=READ_S)
        return None

    return clients.ask(f"look up the network {name}", ask)


def _subnetworks(clients: Clients, region: str, network_url: str) -> list[compute_v1.Subnetwork]:
    """Return a network's subnetworks for machines in a region."""

    def ask() -> list[compute_v1.Subnetwork]:
        pages = clients.subnetworks.list(project=clients.project, region=region, retry=None, timeout=READ_S)
        return [one for one in pages if one.purpose in {"", "PRIVATE"} and _same(one.network, network_url)]

    return clients.ask(f"look for subnetworks in {region}", ask)


def _same(one: str, other: str) -> bool:
    """Return True if two URLs name the same resource, ignoring host and API version."""
    return one.partition("/projects/")[2] == other.partition("/projects/")[2]


def _no_subnetwork(network: str, region: str, named: str | None) -> ProvisionError:
    if named:
        message = f"network {network} has no subnetwork {named} in {region}, which {SUBNETWORK} names; unset it, or"
    else:
        message = f"network {network} has no subnetwork in {region};"
    how = (
        f"`gcloud compute networks subnets create {named or network} --network {network} --region {region} "
        "--range 10.0.0.0/20 --enable-private-ip-google-access` makes one"
    )
    return ProvisionError("not_offered", f"{message} {how}", scope="region", code="NoSubnetwork")


# --- firewall ---------------------------------------------------------------------------------------------------------


def close(clients: Clients, at: Attachment) -> None:
    """Create the rule that blocks inbound traffic to cloudgpu's machines in this network. Idempotent."""
    _make(clients, closed_rule(closed_name(at.network), at.network_url))


def connect_peers(clients: Clients, request: LaunchRequest, at: Attachment) -> None:
    """Create the rule that lets the machines of a launch reach each other. Idempotent."""
    _make(clients, peers_rule(request, at.network_url))


def closed_rule(name: str, network_url: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"Machines of {PREFIX} listen to nobody. Shared by all its jobs: it may stay.",
        "network": network_url,
        "direction": "INGRESS",
        "priority": _DENY_PRIORITY,
        "source_ranges": ["0.0.0.0/0"],
        "target_tags": [CLOSED_TAG],
        "denied": [{"I_p_protocol": "all"}],
    }


def peers_rule(request: LaunchRequest, network_url: str) -> dict[str, Any]:
    """Return the rule for a launch's machines. Its tags are in the description, because firewall rules have no
    labels."""
    return within_rule(launch_name(request.token), to_description(tags.launch_tags(request)), network_url)


def within_rule(name: str, description: str, network_url: str) -> dict[str, Any]:
    """Return a rule that lets machines with a network tag reach each other; `name` is both the tag and the rule's
    name."""
    return {
        "name": name,
        "description": description,
        "network": network_url,
        "direction": "INGRESS",
        "priority": _ALLOW_PRIORITY,
        "source_tags": [name],
        "target_tags": [name],
        "allowed": [{"I_p_protocol": "all"}],
    }


def closed_name(network: str) -> str:
    name = f"{PREFIX}-closed-{network}"
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}-{hashlib.sha256(network.encode()).hexdigest()[:8]}"


def find_rule(clients: Clients, token: str) -> Rule | None:
    """Return the rule of a launch; None: it does not exist."""
    found = _firewall(clients, launch_name(token))
    return None if found is None else Rule(found.name, from_description(found.description))


def rules_of(clients: Clients, owner: str | None = None) -> list[Rule]:
    """Return the rules of all launches of an owner, or with None of all owners."""

    def ask() -> list[Rule]:
        from google.cloud import compute_v1

        request = compute_v1.ListFirewallsRequest(project=clients.project, filter=f'name eq "{PREFIX}-[0-9a-f]{{32}}"')
        pages = clients.firewalls.list(request, retry=None, timeout=READ_S)
        return [Rule(one.name, from_description(one.description)) for one in pages]

    found = clients.ask("look for firewall rules", ask)
    return [rule for rule in found if rule.token and owner in {None, rule.tags.get(tags.OWNER)}]


def remove_rule(clients: Clients, token: str) -> None:
    """Delete a launch's rule, and return when it is gone. Idempotent. Raises ProvisionError."""
    name = launch_name(token)

    def delete() -> compute_v1.Operation:
        return clients.firewalls.delete_unary(project=clients.project, firewall=name, retry=None, timeout=WRITE_S)

    def is_there() -> bool:
        return _firewall(clients, name) is not None

    remove(clients, delete, is_there, doing=f"remove the firewall rule {name}", retry_timeout_s=_RETRY_TIMEOUT_S)


def _firewall(clients: Clients, name: str) -> compute_v1.Firewall | None:
    def ask() -> compute_v1.Firewall | None:
        with ignore_not_found():
            return clients.firewalls.get(project=clients.project, firewall=name, retry=None, timeout=READ_S)
        return None

    return clients.ask(f"look for the firewall rule {name}", ask)


def _make(clients: Clients, rule: dict[str, Any]) -> None:
    from google.cloud import compute_v1

    name = str(rule["name"])
    request = compute_v1.InsertFirewallRequest(project=clients.project, firewall_resource=compute_v1.Firewall(rule))

    def insert(request_id: str) -> compute_v1.Operation:
        request.request_id = request_id
        return clients.firewalls.insert_unary(request, retry=None, timeout=WRITE_S)

    def is_there() -> bool:
        return _firewall(clients, name) is not None

    doing = f"make the firewall rule {name} of network {last_part(rule['network'])}"
    make(clients, insert, is_there, doing=doing, retry_timeout_s=_RETRY_TIMEOUT_S)
