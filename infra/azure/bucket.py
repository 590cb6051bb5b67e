"""Blob Storage container for job dirs, accessible only to identities with a role assignment."""

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
"""Maximum length of a storage account's name; it may contain only letters and digits."""


class JobBucketArgs(TypedDict):
    """Arguments of JobBucket."""

    region: pulumi.Input[str]
    """Name of the Azure region."""
    subscription: pulumi.Input[str]
    """Id of the subscription for the storage account."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of the storage account and its resource group."""
    resource_group: NotRequired[pulumi.Input[str]]
    """Name of an existing resource group. Default: a new, dedicated group with the component's name."""
    account: NotRequired[pulumi.Input[str]]
    """Name of the storage account, globally unique in Azure. Default: derived from the subscription's id and the
    component's name."""
    container: NotRequired[pulumi.Input[str]]
    """Name of the container in the storage account. Default: `cloudgpu`."""
    users: NotRequired[list[pulumi.Input[str]]]
    """Object ids of users who submit jobs: they may read and write the whole container; owning the account does not
    suffice."""
    keep_days: NotRequired[pulumi.Input[int]]
    """Delete objects this many days after their last modification. Default: never."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the storage account and its contents. Default: true."""


class JobBucket(pulumi.ComponentResource):
    """Storage account with one container: TLS 1.2, no public access, no account keys (Entra ID only), encrypted.

    Objects not modified for 30 days move to the cheaper cool tier.
    """

    account: pulumi.Output[str]
    """Name of the storage account."""
    container: pulumi.Output[str]
    """Name of the container."""
    container_id: pulumi.Output[str]
    """Resource id of the container, the scope of role assignments."""
    job_dir: pulumi.Output[str]
    """`az://CONTAINER@ACCOUNT/jobs`: the prefix of the job dirs."""

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
            management_policy_name="default",  # the only name that Azure accepts
            account_name=account.name,
            resource_group_name=group,
            policy=storage.ManagementPolicySchemaArgs(rules=[_lifecycle(container.name, args.get("keep_days"))]),
            opts=child_of(self, protect=protect),
        )
        for number, user in enumerate(args.get("users", [])):
            role = definition(args["subscription"], WRITER)
            assign(self, f"{name}-user-{number}", role=role, scope=container.id, principal=user, protect=protect)
        outputs = {name: getattr(self, name) for name in ("account", "container", "container_id", "job_dir")}
        self.register_outputs(outputs)

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
    """Return a storage account name derived from a hash of `seed`: stable, and unique in practice."""
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
