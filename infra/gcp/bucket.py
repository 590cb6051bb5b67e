"""Cloud Storage bucket for job dirs: private, with access by IAM roles only (no ACLs)."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import storage

from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, labels_of

PREFIX = "jobs"
_ABORT_DAYS = 7
"""Days after which incomplete uploads are aborted; an interrupted checkpoint upload starts over anyway."""


class JobBucketArgs(TypedDict):
    """Arguments of JobBucket."""

    region: pulumi.Input[str]
    """Name of the Google Cloud region, e.g. `us-central1`: the machines' region, because traffic between regions costs
    money."""
    existing: NotRequired[pulumi.Input[str]]
    """Name of an existing bucket to use; it is not changed. Omitted: a bucket is created."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to create, globally unique in Google Cloud. Omitted: Pulumi generates one."""
    owner: NotRequired[str]
    """Value of the label `cloudgpu-owner`. Default: derived from the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional labels of the bucket."""
    keep_days: NotRequired[int]
    """Delete objects this many days after they were written. Default: never."""
    undelete_days: NotRequired[int]
    """Number of days in which deleted objects can be restored, at storage cost. Default: 0, since checkpoints are
    short-lived."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the bucket and its contents. Default: true."""


class JobBucket(pulumi.ComponentResource):
    """Cloud Storage bucket with uniform access and public access prevention; incomplete uploads are removed after a
    week."""

    bucket: pulumi.Output[str]
    """Name of the bucket."""
    job_dir: pulumi.Output[str]
    """`gs://BUCKET/jobs`: the prefix of the job dirs."""

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
            location=pulumi.Output.from_input(args["region"]).apply(str.upper),  # Cloud Storage returns upper case
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
