"""Where machines are attached: a network and subnetwork that exist, and firewall rules of ours that let nothing in.

Networks usually come with rules that admit SSH, RDP and all of their own machines. A machine of ours listens to nobody,
so one rule for each network, `cloudgpu-closed-<network>`, denies everything that comes to the network tag `cloudgpu`;
it is made when it is missing, is shared by all launches, and stays (rules cost nothing). The machines of a launch of
several nodes may reach each other: a rule of their own, `cloudgpu-<token>`, which is removed last of all.
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
from ..clients import READ_S, WRITE_S, Clients, gone_is_fine
from ..labels import PREFIX, from_description, launch_name, to_description
from ..operations import make, remove
from ..rest import last_part

if TYPE_CHECKING:
    from google.cloud import compute_v1

NETWORK, SUBNETWORK = "CLOUDGPU_GCP_NETWORK", "CLOUDGPU_GCP_SUBNETWORK"
CLOSED_TAG = PREFIX
"""Network tag of every machine of ours."""
_OURS, _DEFAULT = PREFIX, "default"
"""Networks to be used if none is named: ours if there is one, or the one that an infra stack has made in the region
(`cloudgpu-us-central1`), else the one that projects come with."""
_PEERS_FIRST, _THEN_NOBODY = 90, 100
"""Priorities; rules that a network comes with have 65534, those of gcloud 1000."""
_PATIENCE_S = 120.0
"""For a firewall rule to be made or removed: it takes some 10 s."""
_MAX_NAME = 63


class Attachment(NamedTuple):
    """A subnetwork that machines may be attached to."""

    network: str
    """Its name."""
    network_url: str
    subnetwork_url: str
    private_access: bool
    """It reaches Google's APIs without an external address (Private Google Access)."""


class Rule(NamedTuple):
    """The firewall rule of a launch."""

    name: str
    tags: Mapping[str, str]

    @property
    def token(self) -> str:
        return self.tags.get(tags.TOKEN, "")


# --- where ------------------------------------------------------------------------------------------------------------


def find_attachment(clients: Clients, region: str, stack: Infrastructure | None = None) -> Attachment:
    """The subnetwork to use in a region: of the network that is named, else the infra stack's, else one of ours or of
    the project's own network. Raises ProvisionError: `invalid` if there is no such network, `not_offered` if it has no
    subnetwork in the region."""
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
        with gone_is_fine():
            return clients.networks.get(project=clients.project, network=name, retry=None, timeout=READ_S)
        return None

    return clients.ask(f"look up the network {name}", ask)


def _subnetworks(clients: Clients, region: str, network_url: str) -> list[compute_v1.Subnetwork]:
    """Of a network in a region, those for machines."""

    def ask() -> list[compute_v1.Subnetwork]:
        pages = clients.subnetworks.list(project=clients.project, region=region, retry=None, timeout=READ_S)
        return [one for one in pages if one.purpose in {"", "PRIVATE"} and _same(one.network, network_url)]

    return clients.ask(f"look for subnetworks in {region}", ask)


def _same(one: str, other: str) -> bool:
    """Whether two URLs name the same, whatever host and version they begin with."""
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
    """See to it that nothing comes in to machines of ours on this network."""
    _make(clients, closed_rule(closed_name(at.network), at.network_url))


def connect_peers(clients: Clients, request: LaunchRequest, at: Attachment) -> None:
    """Let the machines of a launch reach each other."""
    _make(clients, peers_rule(request, at.network_url))


def closed_rule(name: str, network_url: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"Machines of {PREFIX} listen to nobody. Shared by all its jobs: it may stay.",
        "network": network_url,
        "direction": "INGRESS",
        "priority": _THEN_NOBODY,
        "source_ranges": ["0.0.0.0/0"],
        "target_tags": [CLOSED_TAG],
        "denied": [{"I_p_protocol": "all"}],
    }


def peers_rule(request: LaunchRequest, network_url: str) -> dict[str, Any]:
    """Its tags are in the description: firewall rules have no labels."""
    return within_rule(launch_name(request.token), to_description(tags.launch_tags(request)), network_url)


def within_rule(name: str, description: str, network_url: str) -> dict[str, Any]:
    """Machines with a network tag reach each other; the tag and the rule have one name."""
    return {
        "name": name,
        "description": description,
        "network": network_url,
        "direction": "INGRESS",
        "priority": _PEERS_FIRST,
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
    """The rule of a launch, if it has one."""
    found = _firewall(clients, launch_name(token))
    return None if found is None else Rule(found.name, from_description(found.description))


def rules_of(clients: Clients, owner: str | None = None) -> list[Rule]:
    """Of every launch of an owner; None: of everybody's."""

    def ask() -> list[Rule]:
        from google.cloud import compute_v1

        request = compute_v1.ListFirewallsRequest(project=clients.project, filter=f'name eq "{PREFIX}-[0-9a-f]{{32}}"')
        pages = clients.firewalls.list(request, retry=None, timeout=READ_S)
        return [Rule(one.name, from_description(one.description)) for one in pages]

    found = clients.ask("look for firewall rules", ask)
    return [rule for rule in found if rule.token and owner in {None, rule.tags.get(tags.OWNER)}]


def remove_rule(clients: Clients, token: str) -> None:
    """Idempotent; returns when it is gone. Raises ProvisionError."""
    name = launch_name(token)

    def delete() -> compute_v1.Operation:
        return clients.firewalls.delete_unary(project=clients.project, firewall=name, retry=None, timeout=WRITE_S)

    def is_there() -> bool:
        return _firewall(clients, name) is not None

    remove(clients, delete, is_there, doing=f"remove the firewall rule {name}", patience_s=_PATIENCE_S)


def _firewall(clients: Clients, name: str) -> compute_v1.Firewall | None:
    def ask() -> compute_v1.Firewall | None:
        with gone_is_fine():
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
    make(clients, insert, is_there, doing=doing, patience_s=_PATIENCE_S)
