"""Who machines are: a managed identity that reaches the jobs' folder of a container, and little else."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_azure_native import managedidentity

from ...provisioners.azure.names import SHARED
from ...provisioners.azure.resources.rights import LEAVING, WRITER, condition
from ..arguments import check_arguments
from ..components import child_of
from .resource_groups import TYPES, assign, definition, role_of, tags_of

SWITCH_OFF = ("Microsoft.Compute/virtualMachines/deallocate/action",)
"""Not the built-in role that launches give on their own group: that could start machines, and restart them."""


class MachineRoleArgs(TypedDict):
    """Arguments of MachineRole."""

    region: pulumi.Input[str]
    """Azure's name of the region."""
    resource_group: pulumi.Input[str]
    """Name of the group that the identity is in."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    container: pulumi.Input[str]
    """Resource id of the container of Blob Storage in which jobs are: JobBucket's `container_id`."""
    prefix: NotRequired[pulumi.Input[str]]
    """The folder of the container in which jobs are; omitted: all of the container."""
    switch_off: NotRequired[bool]
    """It may switch off every machine of the subscription: what machines of launches need, that switch themselves off,
    for Azure knows no narrower right beforehand. Omitted: it may not."""
    leaving_role: NotRequired[str]
    """UUID of a role that is defined, and given to nobody yet: launches whose machines are a scale set of their own
    give it to the identity, each for its own resource group. Omitted: there is none, and no such launches."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Omitted: made of the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of the identity."""


class MachineRole(pulumi.ComponentResource):
    """A user-assigned managed identity with roles limited to what machines need. What a fleet's machines may do to
    themselves GpuFleet adds, for its own group."""

    identity_id: pulumi.Output[str]
    """Resource id of the identity."""
    client_id: pulumi.Output[str]
    """Client id: how a machine asks for its token."""
    principal_id: pulumi.Output[str]
    """Object id: whom roles are given to."""

    def __init__(self, name: str, args: MachineRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("MachineRole", name, args, MachineRoleArgs)
        super().__init__(f"{TYPES}:MachineRole", name, {}, opts)
        identity = managedidentity.UserAssignedIdentity(
            f"{name}-identity",
            resource_name_=SHARED,
            resource_group_name=args["resource_group"],
            location=args["region"],
            tags=tags_of(args),
            opts=child_of(self),
        )
        self.identity_id, self.client_id, self.principal_id = identity.id, identity.client_id, identity.principal_id
        limit = pulumi.Output.from_input(args.get("prefix", "")).apply(lambda prefix: condition(WRITER, [prefix]))
        assign(
            self,
            f"{name}-jobs",
            role=definition(args["subscription"], WRITER),
            scope=args["container"],
            principal=self.principal_id,
            principal_type="ServicePrincipal",
            condition=limit,
            condition_version=limit.apply(lambda told: None if told is None else "2.0"),
        )
        everywhere = pulumi.Output.concat("/subscriptions/", args["subscription"])
        if leaving_role := args.get("leaving_role"):
            role_of(
                self,
                f"{name}-leaving",
                subscription=args["subscription"],
                scope=everywhere,
                actions=LEAVING,
                description="Machines of cloudgpu leave the scale set that was made for their job",
                uuid=leaving_role,
            )
        if args.get("switch_off"):
            off = role_of(
                self,
                f"{name}-off",
                subscription=args["subscription"],
                scope=everywhere,
                actions=SWITCH_OFF,
                description="Machines of cloudgpu switch themselves off",
            )
            assign(
                self,
                f"{name}-off",
                role=off.id,
                scope=everywhere,
                principal=self.principal_id,
                principal_type="ServicePrincipal",
            )
        told = {name: getattr(self, name) for name in ("identity_id", "client_id", "principal_id")}
        self.register_outputs(told)
