"""Who machines are: a service account that reaches the jobs' folder of one bucket, and may end its own machines."""

from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

import pulumi
from pulumi_gcp import projects, serviceaccount, storage

from ...provisioners.gcp.labels import PREFIX
from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, role_id, shortened

OBJECTS = "roles/storage.objectUser"


class Right(NamedTuple):
    """A custom role, and of which resources it is given."""

    what: str
    permissions: tuple[str, ...]
    condition: str
    """IAM's, in CEL; "": of all of the project's."""


MACHINES = Right(
    "machines",
    ("compute.instances.delete",),
    f'resource.name.extract("/instances/{{name}}").startsWith("{PREFIX}-")',
)
"""To end itself: as in docs/reference/gcp-permissions.md."""
GROUPS = Right(
    "groups",
    ("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"),
    f'resource.name == "" || resource.name.extract("/instanceGroupManagers/{{name}}").startsWith("{PREFIX}-")',
)
"""To take itself out of its group, and to set the group to no machines (API reference, deleteInstances and resize).
Where IAM's conditions do not know the name of a resource, it is empty: whether groups are such is not documented."""


class MachineRoleArgs(TypedDict):
    """Arguments of MachineRole."""

    project: pulumi.Input[str]
    """Id of the project."""
    account_id: str
    """Of the service account, before the @: 6 to 30 of a-z, 0-9 and `-`."""
    bucket: pulumi.Input[str]
    """Name of the bucket in which jobs are; its access must be uniform."""
    prefix: NotRequired[pulumi.Input[str]]
    """The folder of the bucket that machines may read and write; omitted: all of the bucket."""
    leave_group: NotRequired[bool]
    """They may change groups of machines: what machines of fleets need to leave theirs. Google Cloud gives this right
    for all groups of the project, or for none. Omitted: they may not."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Who may start machines with this account: `user:me@example.com`, `group:…`, `serviceAccount:…`."""


class MachineRole(pulumi.ComponentResource):
    """A service account with tokens from the metadata server only, no keys. It may read and write the jobs' folder, and
    delete machines whose names begin as those of cloudgpu do. It has no right to write logs or metrics."""

    email: pulumi.Output[str]
    """E-mail address of the service account."""

    def __init__(self, name: str, args: MachineRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("MachineRole", name, args, MachineRoleArgs)
        super().__init__(f"{TYPES}:MachineRole", name, {}, opts)
        account = serviceaccount.Account(
            f"{name}-account",
            account_id=args["account_id"],
            project=args["project"],
            display_name="Machines of cloudgpu",
            opts=child_of(self),
        )
        self.email = account.email
        storage.BucketIAMMember(
            f"{name}-objects",
            bucket=args["bucket"],
            role=OBJECTS,
            member=account.member,
            condition=_folder(args["bucket"], args["prefix"]) if "prefix" in args else None,
            opts=child_of(self),
        )
        grant(self, name, args, account.member, MACHINES)
        if args.get("leave_group"):
            grant(self, name, args, account.member, GROUPS)
        for number, user in enumerate(args.get("users", [])):
            serviceaccount.IAMMember(
                f"{name}-user-{number}",
                service_account_id=account.name,
                role="roles/iam.serviceAccountUser",
                member=user,
                opts=child_of(self),
            )
        self.register_outputs({"email": self.email})


def grant(
    parent: pulumi.ComponentResource,
    name: str,
    args: Mapping[str, Any],
    member: pulumi.Input[str],
    right: Right,
) -> None:
    """Make a role of one right in `project` of a component's arguments, and give it to its account of `account_id`."""
    account_id, condition = args["account_id"], None
    if right.condition:
        condition = projects.IAMMemberConditionArgs(title=f"own-{right.what}", expression=right.condition)
    role = projects.IAMCustomRole(
        f"{name}-{right.what}-role",
        project=args["project"],
        role_id=role_id(account_id, right.what),
        title=shortened(f"cloudgpu {right.what} {account_id}", 100),
        description="Of cloudgpu's service accounts",
        permissions=list(right.permissions),
        opts=child_of(parent),
    )
    projects.IAMMember(
        f"{name}-{right.what}",
        project=args["project"],
        role=role.name,
        member=member,
        condition=condition,
        opts=child_of(parent),
    )


def _folder(bucket: pulumi.Input[str], prefix: pulumi.Input[str]) -> storage.BucketIAMMemberConditionArgs:
    """Objects are known by their name, a list by the prefix that it is of. Source: Cloud Storage's documentation, "IAM
    conditions", attributes resource.name and objectListPrefix."""
    expression = pulumi.Output.format(
        'resource.name.startsWith("projects/_/buckets/{0}/objects/{1}/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{1}/")',
        bucket,
        prefix,
    )
    return storage.BucketIAMMemberConditionArgs(title="jobs", expression=expression)
