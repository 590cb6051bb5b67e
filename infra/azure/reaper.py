"""Hourly Logic App that deletes expired resource groups: the safety net when no other cleanup runs."""

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pulumi
from pulumi_azure_native import logic

from ..arguments import check_arguments
from ..components import child_of
from .resource_groups import TYPES, assign, role_of, tags_of

DEFINITION = Path(__file__).with_name("reaper.json")
"""The workflow, in the Workflow Definition Language. Only its form is tested: it was never run on Azure."""
_ACTIONS = (
    "Microsoft.Resources/subscriptions/resourceGroups/read",
    "Microsoft.Resources/subscriptions/resourceGroups/delete",
)


class OrphanReaperArgs(TypedDict):
    """Arguments of OrphanReaper."""

    region: pulumi.Input[str]
    """Name of the region that the Logic App runs in; the app checks all regions."""
    resource_group: pulumi.Input[str]
    """Name of the resource group for the Logic App."""
    subscription: pulumi.Input[str]
    """Id of the subscription to check."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of the Logic App."""


class OrphanReaper(pulumi.ComponentResource):
    """Logic App with a system-assigned identity that hourly deletes the subscription's expired resource groups.

    It deletes groups whose name begins with `cloudgpu-` and whose tag `cloudgpu-expires` is in the past. Its permission
    to delete groups covers the whole subscription, since Azure cannot limit it by tags.
    """

    workflow_id: pulumi.Output[str]
    """Resource id of the Logic App."""

    def __init__(self, name: str, args: OrphanReaperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("OrphanReaper", name, args, OrphanReaperArgs)
        super().__init__(f"{TYPES}:OrphanReaper", name, {}, opts)
        subscription = pulumi.Output.concat("/subscriptions/", args["subscription"])
        workflow = logic.Workflow(
            f"{name}-workflow",
            workflow_name=name,
            resource_group_name=args["resource_group"],
            location=args["region"],
            tags=tags_of(args),
            state=logic.WorkflowState.ENABLED,
            identity=logic.ManagedServiceIdentityArgs(type=logic.ManagedServiceIdentityType.SYSTEM_ASSIGNED),
            definition=definition(),
            parameters={"subscription": logic.WorkflowParameterArgs(type="String", value=args["subscription"])},
            opts=child_of(self),
        )
        role = role_of(
            self,
            f"{name}-role",
            subscription=args["subscription"],
            scope=subscription,
            actions=_ACTIONS,
            description="Deletes resource groups of cloudgpu that have expired",
        )
        principal = workflow.identity.apply(lambda identity: identity.principal_id if identity else "")
        assign(
            self,
            f"{name}-right",
            role=role.id,
            scope=subscription,
            principal=principal,
            principal_type="ServicePrincipal",
        )
        self.workflow_id = workflow.id
        self.register_outputs({"workflow_id": self.workflow_id})


def definition() -> dict[str, Any]:
    """Return the definition of the workflow."""
    found: dict[str, Any] = json.loads(DEFINITION.read_text(encoding="utf-8"))
    return found
