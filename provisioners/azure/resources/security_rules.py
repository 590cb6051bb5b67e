"""Security rules for machines' inbound traffic, and address ranges of new networks. Pure functions.

Azure applies the rules of the subnet first, then those of the interface; both must allow the traffic. Sources: Azure's
documentation, "Network security groups", "Application security groups".
"""

from __future__ import annotations

from ..clients import Json
from ..machine.vm_profile import Text

NETWORK_RANGE, SUBNET_RANGE = "10.0.0.0/16", "10.0.0.0/18"
"""Address ranges of a dedicated network and of its subnet, which has 16 384 addresses."""
_ALLOW_PRIORITY, _DENY_PRIORITY = 100, 4096
"""Priorities of the first rule, and of the last one before Azure's default rules."""
_ANYTHING = {
    "protocol": "*",
    "sourcePortRange": "*",
    "destinationPortRange": "*",
    "direction": "Inbound",
}


def security_rules(peers: Text | None) -> list[Json]:
    """Return the rules of machines' interfaces: no inbound traffic, except among several machines of a launch.

    `peers`: the machines' application security group; None: there is only one machine.
    """
    if peers is None:
        return [_deny_all()]
    among = {
        "sourceApplicationSecurityGroups": [{"id": peers}],
        "destinationApplicationSecurityGroups": [{"id": peers}],
    }
    return [
        {"name": "peers", "properties": {**_ANYTHING, "access": "Allow", "priority": _ALLOW_PRIORITY, **among}},
        _deny_all(),
    ]


def subnet_rules() -> list[Json]:
    """Return the rules of a subnet that launches and fleets share: no inbound traffic from outside it. The interfaces'
    rules decide which machines in it reach each other."""
    among = {"sourceAddressPrefix": SUBNET_RANGE, "destinationAddressPrefix": SUBNET_RANGE}
    return [
        {"name": "within", "properties": {**_ANYTHING, "access": "Allow", "priority": _ALLOW_PRIORITY, **among}},
        _deny_all(),
    ]


def _deny_all() -> Json:
    anybody = {"sourceAddressPrefix": "*", "destinationAddressPrefix": "*"}
    return {"name": "nobody", "properties": {**_ANYTHING, "access": "Deny", "priority": _DENY_PRIORITY, **anybody}}
