"""Managed identity of the machines: the jobs' folder of a container, the secrets named, few other permissions."""

import re
from typing import NotRequired, TypedDict

import pulumi
from pulumi_azure_native import managedidentity

from ...provisioners.azure.names import SHARED
from ...provisioners.azure.resources.rights import LEAVING, SECRETS, WRITER, condition
from ..arguments import check_arguments, check_secrets
from ..components import child_of
from .resource_groups import TYPES, assign, definition, role_of, tags_of

_SECRET = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.KeyVault/vaults/[^/]+/secrets/[^/]+"
)
SWITCH_OFF = ("Microsoft.Compute/virtualMachines/deallocate/action",)
"""Actions of a custom role. The built-in role that launches assign for their own group would also allow starting and
restarting."""


class MachineRoleArgs(TypedDict):
    """Arguments of MachineRole."""

    region: pulumi.Input[str]
    """Name of the Azure region."""
    resource_group: pulumi.Input[str]
    """Name of the resource group for the identity."""
    subscription: pulumi.Input[str]
    """Id of the subscription."""
    container: pulumi.Input[str]
    """Resource id of the Blob Storage container for jobs: JobBucket's `container_id`."""
    prefix: NotRequired[pulumi.Input[str]]
    """Folder of the container that the machines may access. Default: the whole container."""
    switch_off: NotRequired[bool]
    """Allow deallocating every machine of the subscription: machines of launches deallocate themselves, and Azure has
    no narrower permission that could be granted beforehand. Default: false."""
    leaving_role: NotRequired[str]
    """UUID for a role definition without assignments: a launch whose machines are a dedicated scale set assigns it to
    the identity, for its own resource group. Omitted: such launches are not possible."""
    secrets: NotRequired[list[str]]
    """Secrets that the machines may read: resource ids of vaults, each followed by `/secrets/NAME`. Default: none."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of the identity."""


class MachineRole(pulumi.ComponentResource):
    """User-assigned managed identity with the minimum roles for machines.

    GpuFleet adds the permissions that a fleet's machines need on their own group.
    """

    identity_id: pulumi.Output[str]
    """Resource id of the identity."""
    client_id: pulumi.Output[str]
    """Client id of the identity, with which a machine requests tokens."""
    principal_id: pulumi.Output[str]
    """Object id of the identity, to which roles are assigned."""

    def __init__(self, name: str, args: MachineRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("MachineRole", name, args, MachineRoleArgs)
        check_secrets(name, args.get("secrets", []), _SECRET, "…/vaults/VAULT/secrets/SECRET")
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
            condition_version=limit.apply(lambda text: None if text is None else "2.0"),
        )
        for secret in args.get("secrets", []):
            assign(
                self,
                f"{name}-secret-{'-of-'.join(reversed(secret.split('/')[-3::2]))}",
                role=definition(args["subscription"], SECRETS),
                scope=secret,
                principal=self.principal_id,
                principal_type="ServicePrincipal",
            )
        self._define_rights(name, args)
        self.register_outputs({one: getattr(self, one) for one in ("identity_id", "client_id", "principal_id")})

    def _define_rights(self, name: str, args: MachineRoleArgs) -> None:
        """Define the roles by which machines leave their scale set, and switch themselves off."""
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
