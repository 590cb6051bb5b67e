"""Code shared by all components for Google Cloud: type tokens, labels, name lengths."""

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
"""Prefix of the components' type tokens. It must never change: stacks store it."""
RULE = {"denied": "denies", "denied.I_p_protocol": "protocol", "allowed": "allows", "allowed.I_p_protocol": "protocol"}
"""Pulumi's names of firewall fields, where they differ from Google's SDK."""


Labels = dict[str, pulumi.Input[str]]


def labels_of(args: Mapping[str, Any], fleet: str = "") -> Labels:
    """Return labels for a component's `owner`, `labels` and, for a fleet, `expires` arguments."""
    owner, stack = (shortened(one, MAX_VALUE) for one in (owner_of(args), pulumi.get_stack()))
    found: Labels = {**to_labels(tags.stack_tags(owner, stack, fleet=fleet))}
    expires = expiry_of(args)
    if expires is not None:
        found[tags.EXPIRES] = expires
    return {**found, **(args.get("labels") or {})}


def shortened(name: str, longest: int) -> str:
    """Return `name` cut to at most `longest` characters. A cut name ends in a part of its hash to stay unique."""
    if len(name) <= longest:
        return name
    return f"{name[: longest - 7].rstrip('-_')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def role_id(*parts: str) -> str:
    """Return the id of a custom role: letters, digits, `_` and `.`, 64 at most."""
    return shortened(re.sub(r"[^A-Za-z0-9_.]", "_", "_".join(parts)), 64).replace("-", "_")


def firewall_arguments(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of compute.Firewall for a rule from provisioners/gcp/resources/network.py."""
    from pulumi_gcp import compute

    return keywords(compute.FirewallArgs, rule, RULE)
