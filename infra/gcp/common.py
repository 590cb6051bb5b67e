"""What all components for Google Cloud have in common: their type tokens, labels, how long a name may be."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import pulumi

from ...provisioners.gcp.labels import MAX_VALUE, to_labels
from ...provisioners.shared import tags
from ..components import expiry_of, owner_of
from ..pulumi_arguments import keywords

TYPES = "cloudgpu-gcp:index"
"""What type tokens begin with: fixed for ever, for stacks hold them."""
RULE = {"denied": "denies", "denied.I_p_protocol": "protocol", "allowed": "allows", "allowed.I_p_protocol": "protocol"}
"""A firewall rule as Pulumi spells it, where that is not as Google's SDK does."""


Labels = dict[str, pulumi.Input[str]]


def labels_of(args: Mapping[str, Any], fleet: str = "") -> Labels:
    """`owner`, `labels` and, of a fleet, `expires` of a component's arguments, as labels."""
    owner, stack = (shortened(one, MAX_VALUE) for one in (owner_of(args), pulumi.get_stack()))
    found: Labels = {**to_labels(tags.stack_tags(owner, stack, fleet=fleet))}
    expires = expiry_of(args)
    if expires is not None:
        found[tags.EXPIRES] = expires
    return {**found, **(args.get("labels") or {})}


def shortened(name: str, longest: int) -> str:
    """At most so long; what would be longer ends in a part of its hash, so that no two are the same."""
    if len(name) <= longest:
        return name
    return f"{name[: longest - 7].rstrip('-_')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def role_id(*parts: str) -> str:
    """Id of a custom role: letters, digits, `_` and `.`, 64 at most."""
    return shortened(re.sub(r"[^A-Za-z0-9_.]", "_", "_".join(parts)), 64).replace("-", "_")


def firewall_arguments(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of compute.Firewall for a rule as in provisioners/gcp/resources/network.py."""
    from pulumi_gcp import compute

    return keywords(compute.FirewallArgs, rule, RULE)
