"""Where jobs live: a bucket that only those with a role reach."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import storage

from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, labels_of

PREFIX = "jobs"
_ABORT_DAYS = 7
"""Uploads that are not finished by then are not going on: a checkpoint that was interrupted is written anew."""


class JobBucketArgs(TypedDict):
    """Arguments of JobBucket."""

    region: pulumi.Input[str]
    """Google Cloud's name of the region, e.g. `us-central1`: the machines' own, for traffic between regions costs."""
    existing: NotRequired[pulumi.Input[str]]
    """Name of a bucket that is there and stays as it is: nothing is made or changed, only used."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to make, unique in all of Google Cloud; omitted: Pulumi makes one up."""
    owner: NotRequired[str]
    """As in the tag `cloudgpu-owner`; omitted: made of the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """More of them. Of the bucket."""
    keep_days: NotRequired[int]
    """Objects that were written so many days ago are deleted; omitted: never."""
    undelete_days: NotRequired[int]
    """So long what is deleted can be had back, and is paid for; omitted: 0, for checkpoints come and go."""
    protect: NotRequired[bool]
    """Pulumi does not delete it, nor what is in it; omitted: true."""


class JobBucket(pulumi.ComponentResource):
    """A bucket with uniform access that cannot be made public, encrypted as all of Cloud Storage is; uploads that were
    not finished are removed after a week."""

    bucket: pulumi.Output[str]
    """Its name."""
    job_dir: pulumi.Output[str]
    """`gs://BUCKET/jobs`: below it job dirs are."""

    def __init__(self, name: str, args: JobBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("JobBucket", name, args, JobBucketArgs)
        super().__init__(f"{TYPES}:JobBucket", name, {}, opts)
        existing = args.get("existing")
        self.bucket = self._made(name, args).name if existing is None else pulumi.Output.from_input(existing)
        self.job_dir = pulumi.Output.concat("gs://", self.bucket, "/", PREFIX)
        self.register_outputs({"bucket": self.bucket, "job_dir": self.job_dir})

    def _made(self, name: str, args: JobBucketArgs) -> storage.Bucket:
        protect = args.get("protect", True)
        return storage.Bucket(
            f"{name}-bucket",
            name=args.get("bucket"),
            location=pulumi.Output.from_input(args["region"]).apply(str.upper),  # as Cloud Storage tells it
            labels=labels_of(args),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            lifecycle_rules=_rules(args.get("keep_days")),
            soft_delete_policy=storage.BucketSoftDeletePolicyArgs(
                retention_duration_seconds=86_400 * int(args.get("undelete_days", 0))
            ),
            force_destroy=not protect,
            opts=child_of(self, protect=protect),
        )


def _rules(keep_days: int | None) -> list[storage.BucketLifecycleRuleArgs]:
    def after(days: int, action: str) -> storage.BucketLifecycleRuleArgs:
        return storage.BucketLifecycleRuleArgs(
            action=storage.BucketLifecycleRuleActionArgs(type=action),
            condition=storage.BucketLifecycleRuleConditionArgs(age=days),
        )

    rules = [after(_ABORT_DAYS, "AbortIncompleteMultipartUpload")]
    return rules if keep_days is None else [*rules, after(int(keep_days), "Delete")]
