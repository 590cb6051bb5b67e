"""Service account of the machines: access to the jobs' folder of one bucket, and permission to delete its own
machines."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

import pulumi
from pulumi_gcp import projects, secretmanager, serviceaccount, storage

from ...provisioners.gcp.labels import PREFIX
from ..arguments import check_arguments, check_secrets
from ..components import child_of
from .common import TYPES, role_id, shortened

OBJECTS = "roles/storage.objectUser"
SECRET_ACCESSOR = "roles/secretmanager.secretAccessor"  # noqa: S105 - a role
_SECRET = re.compile(r"projects/[^/]+/secrets/[^/]+")


class Right(NamedTuple):
    """Permissions of a custom role, and the condition under which it is granted."""

    what: str
    permissions: tuple[str, ...]
    condition: str
    """IAM condition in CEL; "": all resources of the project."""


MACHINES = Right(
    "machines",
    ("compute.instances.delete",),
    f'resource.name.extract("/instances/{{name}}").startsWith("{PREFIX}-")',
)
"""Allows a machine to delete itself: see docs/reference/gcp-permissions.md."""
GROUPS = Right(
    "groups",
    ("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"),
    f'resource.name == "" || resource.name.extract("/instanceGroupManagers/{{name}}").startsWith("{PREFIX}-")',
)
"""Allows a machine to leave its group, and scaling a group to zero (API reference, deleteInstances and resize). For
resources whose name IAM conditions do not support, resource.name is empty; the documentation does not say whether
groups are among them."""


class MachineRoleArgs(TypedDict):
    """Arguments of MachineRole."""

    project: pulumi.Input[str]
    """Id of the project."""
    account_id: str
    """Id of the service account, before the @: 6 to 30 of a-z, 0-9 and `-`."""
    bucket: pulumi.Input[str]
    """Name of the bucket for jobs, which must have uniform access."""
    prefix: NotRequired[pulumi.Input[str]]
    """Folder of the bucket that the machines may read and write. Default: the whole bucket."""
    leave_group: NotRequired[bool]
    """Allow changing managed instance groups, which fleets' machines need to leave theirs; Google Cloud may apply this
    to all groups of the project. Default: false."""
    secrets: NotRequired[list[str]]
    """Secrets that the machines may read: `projects/P/secrets/S`. Default: none. Machines need the OAuth scope for it,
    too: `read_secrets` of GpuFleet."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Principals that may start machines with this account: `user:me@example.com`, `group:…`, `serviceAccount:…`."""


class MachineRole(pulumi.ComponentResource):
    """Service account without keys: tokens come from the metadata server only.

    It may read and write the jobs' folder, read the secrets named, and delete machines with cloudgpu's name prefix. It
    may not write logs or metrics.
    """

    email: pulumi.Output[str]
    """E-mail address of the service account."""

    def __init__(self, name: str, args: MachineRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("MachineRole", name, args, MachineRoleArgs)
        check_secrets(name, args.get("secrets", []), _SECRET, "projects/PROJECT/secrets/SECRET")
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
        for secret in args.get("secrets", []):
            _, project, _, secret_id = secret.split("/")
            secretmanager.SecretIamMember(
                f"{name}-secret-{secret_id}-of-{project}",
                project=project,
                secret_id=secret_id,
                role=SECRET_ACCESSOR,
                member=account.member,
                opts=child_of(self),
            )
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
    """Create a custom role for the permissions of `right` in the project of `args`, and grant it to `member`."""
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
    """Return a condition that limits access to a folder: objects by their name, listings by their prefix.

    Source: Cloud Storage's documentation, "IAM conditions", attributes resource.name and objectListPrefix.
    """
    expression = pulumi.Output.format(
        'resource.name.startsWith("projects/_/buckets/{0}/objects/{1}/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{1}/")',
        bucket,
        prefix,
    )
    return storage.BucketIAMMemberConditionArgs(title="jobs", expression=expression)
