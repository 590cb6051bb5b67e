"""Where jobs live: a container of Blob Storage that only identities with a role get in to."""

import hashlib
from typing import NotRequired, TypedDict

import pulumi
from pulumi_azure_native import storage

from ...provisioners.azure.resources.rights import WRITER
from ..arguments import check_arguments
from ..components import child_of
from .resource_groups import TYPES, assign, definition, group_of, id_of_group, tags_of

CONTAINER, PREFIX = "cloudgpu", "jobs"
_COOL_DAYS = 30
_LONGEST = 24
"""An account's name; letters and digits only."""


class JobBucketArgs(TypedDict):
    """Arguments of JobBucket."""

    region: pulumi.Input[str]
    """Azure's name of the region."""
    subscription: pulumi.Input[str]
    """Id of the subscription that it is in."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Omitted: made of the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of the storage account and its group."""
    resource_group: NotRequired[pulumi.Input[str]]
    """Name of one that is there; omitted: a new one, called like the component, which nothing else is in."""
    account: NotRequired[pulumi.Input[str]]
    """Name of the storage account, unique in all of Azure; omitted: made of the subscription's id and the component's
    name."""
    container: NotRequired[pulumi.Input[str]]
    """Name of its container; omitted: `cloudgpu`."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Object ids of those who may read and write all of it: whoever submits jobs. To own the account is not enough."""
    keep_days: NotRequired[pulumi.Input[int]]
    """Objects that nobody has written for so many days are deleted; omitted: never."""
    protect: NotRequired[bool]
    """Pulumi does not delete it, nor what is in it; omitted: true."""


class JobBucket(pulumi.ComponentResource):
    """A storage account with one container: TLS 1.2, nothing public, no keys (only Entra ID), encrypted as all storage
    of Azure is; what nobody has written for a month is kept as cool, which is cheaper."""

    account: pulumi.Output[str]
    """Name of the storage account."""
    container: pulumi.Output[str]
    """Name of the container."""
    container_id: pulumi.Output[str]
    """Resource id of the container: what roles are given on."""
    job_dir: pulumi.Output[str]
    """`az://CONTAINER@ACCOUNT/jobs`: below it job dirs are."""

    def __init__(self, name: str, args: JobBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("JobBucket", name, args, JobBucketArgs)
        super().__init__(f"{TYPES}:JobBucket", name, {}, opts)
        protect = args.get("protect", True)
        group = group_of(self, name, args, tags_of(args), protect=protect)
        account = self._account(name, args, group, protect=protect)
        container = storage.BlobContainer(
            f"{name}-container",
            container_name=args.get("container", CONTAINER),
            account_name=account.name,
            resource_group_name=group,
            public_access=storage.PublicAccess.NONE,
            opts=child_of(self, protect=protect),
        )
        self.account, self.container, self.container_id = account.name, container.name, container.id
        self.job_dir = pulumi.Output.concat("az://", container.name, "@", account.name, "/", PREFIX)
        storage.ManagementPolicy(
            f"{name}-lifecycle",
            management_policy_name="default",  # Azure knows no other
            account_name=account.name,
            resource_group_name=group,
            policy=storage.ManagementPolicySchemaArgs(rules=[_lifecycle(container.name, args.get("keep_days"))]),
            opts=child_of(self, protect=protect),
        )
        for number, user in enumerate(args.get("users", [])):
            role = definition(args["subscription"], WRITER)
            assign(self, f"{name}-user-{number}", role=role, scope=container.id, principal=user, protect=protect)
        told = {name: getattr(self, name) for name in ("account", "container", "container_id", "job_dir")}
        self.register_outputs(told)

    def _account(
        self, name: str, args: JobBucketArgs, group: pulumi.Output[str], *, protect: bool
    ) -> storage.StorageAccount:
        named = args.get("account") or id_of_group(args["subscription"], name).apply(account_name)
        return storage.StorageAccount(
            f"{name}-account",
            account_name=named,
            resource_group_name=group,
            location=args["region"],
            tags=tags_of(args),
            kind=storage.Kind.STORAGE_V2,
            sku=storage.SkuArgs(name=storage.SkuName.STANDARD_LRS),
            access_tier=storage.AccessTier.HOT,
            minimum_tls_version=storage.MinimumTlsVersion.TLS1_2,
            enable_https_traffic_only=True,
            allow_blob_public_access=False,
            allow_shared_key_access=False,
            allow_cross_tenant_replication=False,
            default_to_o_auth_authentication=True,
            opts=child_of(self, protect=protect),
        )


def account_name(seed: str) -> str:
    """Of a storage account: the same for the same seed, and nobody else's."""
    return f"cloudgpu{hashlib.sha256(seed.lower().encode()).hexdigest()}"[:_LONGEST]


def _lifecycle(container: pulumi.Input[str], keep_days: pulumi.Input[int] | None) -> storage.ManagementPolicyRuleArgs:
    old = storage.DateAfterModificationArgs
    return storage.ManagementPolicyRuleArgs(
        name="jobs",
        type=storage.RuleType.LIFECYCLE,
        enabled=True,
        definition=storage.ManagementPolicyDefinitionArgs(
            filters=storage.ManagementPolicyFilterArgs(
                blob_types=["blockBlob"], prefix_match=[pulumi.Output.concat(container, "/")]
            ),
            actions=storage.ManagementPolicyActionArgs(
                base_blob=storage.ManagementPolicyBaseBlobArgs(
                    tier_to_cool=old(days_after_modification_greater_than=_COOL_DAYS),
                    delete=None if keep_days is None else old(days_after_modification_greater_than=keep_days),
                )
            ),
        ),
    )
