"""Resource groups, tags and role assignments, shared by the components for Azure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_azure_native import authorization, resources

from ...provisioners.azure.names import assignment_name, group_id
from ...provisioners.shared import tags
from ..components import child_of, expiry_of, owner_of

TYPES = "cloudgpu-azure:index"
"""Prefix of the components' type tokens. It must never change: Pulumi would replace all existing resources."""

Tags = dict[str, pulumi.Input[str]]


def tags_of(args: Mapping[str, Any], *, fleet: str = "") -> Tags:
    """Return tags for a component's `owner`, `expires` and `tags` arguments, and for the `fleet` it belongs to, if
    any."""
    found: Tags = {**tags.stack_tags(owner_of(args), pulumi.get_stack(), fleet=fleet)}
    expires = expiry_of(args)
    if expires is not None:
        found[tags.EXPIRES] = expires
    return {**found, **(args.get("tags") or {})}


def group_of(
    parent: pulumi.ComponentResource,
    name: str,
    args: Mapping[str, Any],
    tags: Tags,
    *,
    protect: bool = False,
) -> pulumi.Output[str]:
    """Return the name of the resource group in the arguments, or create one with the component's name."""
    given = args.get("resource_group")
    if given is not None:
        return pulumi.Output.from_input(given)
    made = resources.ResourceGroup(
        f"{name}-group",
        resource_group_name=name,
        location=args["region"],
        tags=tags,
        opts=child_of(parent, protect=protect),
    )
    return made.name


def assign(
    parent: pulumi.ComponentResource,
    name: str,
    *,
    role: pulumi.Input[str],
    scope: pulumi.Input[str],
    principal: pulumi.Input[str],
    protect: bool = False,
    **more: Any,
) -> authorization.RoleAssignment:
    """Assign a role. The assignment's name is derived from role, scope and principal, which makes a retry idempotent.

    `role`: resource id of the role definition.
    """
    named = pulumi.Output.all(role, scope, principal).apply(
        lambda values: assignment_name(values[2], values[1], values[0])
    )
    return authorization.RoleAssignment(
        name,
        role_assignment_name=named,
        role_definition_id=role,
        scope=scope,
        principal_id=principal,
        opts=child_of(parent, delete_before_replace=True, protect=protect),
        **more,
    )


def role_of(
    parent: pulumi.ComponentResource,
    name: str,
    *,
    subscription: pulumi.Input[str],
    scope: pulumi.Input[str],
    actions: Sequence[str],
    description: str,
    uuid: str | None = None,
) -> authorization.RoleDefinition:
    """Create a custom role that can be assigned at `scope` and below.

    `uuid`: its id; None: derived from name and scope, as for assignments.
    """
    return authorization.RoleDefinition(
        name,
        role_definition_id=pulumi.Output.from_input(scope).apply(
            lambda scope_id: uuid or assignment_name(name, scope_id, "definition")
        ),
        role_name=pulumi.Output.concat(name, " ", subscription),  # unique in the tenant
        description=description,
        scope=scope,
        assignable_scopes=[scope],
        permissions=[authorization.PermissionArgs(actions=list(actions))],
        opts=child_of(parent),
    )


def definition(subscription: pulumi.Input[str], role: str) -> pulumi.Output[str]:
    """Return the resource id of a built-in role, given its UUID."""
    return pulumi.Output.concat(
        "/subscriptions/", subscription, "/providers/Microsoft.Authorization/roleDefinitions/", role
    )


def id_of_group(subscription: pulumi.Input[str], group: pulumi.Input[str]) -> pulumi.Output[str]:
    return pulumi.Output.all(subscription, group).apply(lambda values: group_id(values[0], values[1]))
