"""What may come in to machines, and the addresses of networks that nobody else is in. Pure.

Azure looks at the rules of the subnet first, then at those of the interface: both must let it in. Sources: Azure's
documentation, "Network security groups", "Application security groups".
"""

from __future__ import annotations

from ..clients import Json
from ..machine.vm_profile import Text

NETWORK_RANGE, SUBNET_RANGE = "10.0.0.0/16", "10.0.0.0/18"
"""So many addresses as nobody has machines."""
_PEERS_FIRST, _THEN_NOBODY = 100, 4096
"""Priorities: the first, and the last that there is before Azure's own rules."""
_ANYTHING = {
    "protocol": "*",
    "sourcePortRange": "*",
    "destinationPortRange": "*",
    "direction": "Inbound",
}


def security_rules(peers: Text | None) -> list[Json]:
    """Of machines' interfaces: what may come in is nothing; of several machines, from each other (`peers`: the
    application security group that they are in)."""
    if peers is None:
        return [_nobody()]
    among = {
        "sourceApplicationSecurityGroups": [{"id": peers}],
        "destinationApplicationSecurityGroups": [{"id": peers}],
    }
    return [
        {"name": "peers", "properties": {**_ANYTHING, "access": "Allow", "priority": _PEERS_FIRST, **among}},
        _nobody(),
    ]


def subnet_rules() -> list[Json]:
    """Of a subnet that several launches and fleets share: nothing from outside of it. Who in it reaches whom, the rules
    of their interfaces say."""
    among = {"sourceAddressPrefix": SUBNET_RANGE, "destinationAddressPrefix": SUBNET_RANGE}
    return [
        {"name": "within", "properties": {**_ANYTHING, "access": "Allow", "priority": _PEERS_FIRST, **among}},
        _nobody(),
    ]


def _nobody() -> Json:
    anybody = {"sourceAddressPrefix": "*", "destinationAddressPrefix": "*"}
    return {"name": "nobody", "properties": {**_ANYTHING, "access": "Deny", "priority": _THEN_NOBODY, **anybody}}
