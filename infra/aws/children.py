"""Type-token prefix and tags shared by all components for AWS."""

from collections.abc import Mapping
from typing import Any

import pulumi

from ...provisioners.shared import tags
from ..components import expiry_of, owner_of

TYPES = "cloudgpu-aws:index"
"""Prefix of the components' type tokens. It must never change: Pulumi would replace all existing resources."""

Tags = dict[str, pulumi.Input[str]]


def tags_of(args: Mapping[str, Any], *, expiring: bool = False) -> Tags:
    """Return tags for a component's `owner` and `tags` arguments and, if `expiring` (resources that bill),
    `expires`."""
    found: Tags = {**tags.stack_tags(owner_of(args), pulumi.get_stack())}
    expires = expiry_of(args) if expiring else None
    if expires is not None:
        found[tags.EXPIRES] = expires
    return {**found, **(args.get("tags") or {})}
