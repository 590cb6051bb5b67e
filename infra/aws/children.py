"""What all components for AWS have in common: their type's package, and the tags of all they make."""

from collections.abc import Mapping
from typing import Any

import pulumi

from ...provisioners.shared import tags
from ..components import expiry_of, owner_of

TYPES = "cloudgpu-aws:index"
"""What type tokens begin with. Fixed for ever: with another, everything would be replaced."""

Tags = dict[str, pulumi.Input[str]]


def tags_of(args: Mapping[str, Any], *, expiring: bool = False) -> Tags:
    """`owner`, `tags` and, of what bills, `expires` of a component's arguments, as tags."""
    found: Tags = {**tags.stack_tags(owner_of(args), pulumi.get_stack())}
    expires = expiry_of(args) if expiring else None
    if expires is not None:
        found[tags.EXPIRES] = expires
    return {**found, **(args.get("tags") or {})}
