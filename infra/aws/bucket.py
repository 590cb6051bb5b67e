"""S3 bucket for job dirs: encrypted, private, and protected from accidental deletion."""

import json
from typing import NotRequired, TypedDict

import pulumi
import pulumi_aws as aws

from ..arguments import check_arguments
from ..components import child_of
from .children import TYPES, tags_of

PREFIX = "jobs"
_TIDY: aws.s3.BucketLifecycleConfigurationRuleArgsDict = {
    "id": "tidy",
    "status": "Enabled",
    "filter": {"prefix": ""},
    "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
    "noncurrent_version_expiration": {"noncurrent_days": 1},
}


class JobBucketArgs(TypedDict):
    """Arguments of JobBucket."""

    existing: NotRequired[pulumi.Input[str]]
    """Name of an existing bucket to use; it is not changed. Omitted: a bucket is created."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to create. Omitted: Pulumi generates one."""
    prefix: NotRequired[str]
    """Prefix of the job dirs in the bucket. Default: `jobs`."""
    protect: NotRequired[bool]
    """Make Pulumi refuse to delete the bucket. Default: true. If false, the bucket is deleted with all its objects."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; see GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of the bucket."""


class JobBucket(pulumi.ComponentResource):
    """S3 bucket for job dirs: encrypted, no public access, TLS only.

    Incomplete uploads are deleted after a week and, if versioning is turned on, replaced versions after a day.
    """

    bucket: pulumi.Output[str]
    """Name of the bucket."""
    job_dir: pulumi.Output[str]
    """`s3://BUCKET/jobs`: the value for `job_dir` in job files."""

    def __init__(self, name: str, args: JobBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("JobBucket", name, args, JobBucketArgs)
        super().__init__(f"{TYPES}:JobBucket", name, {}, opts)
        existing = args.get("existing")
        self.bucket = self._make(name, args) if existing is None else pulumi.Output.from_input(existing)
        self.job_dir = pulumi.Output.concat("s3://", self.bucket, "/", (args.get("prefix") or PREFIX).strip("/"))
        self.register_outputs({"bucket": self.bucket, "job_dir": self.job_dir})

    def _make(self, name: str, args: JobBucketArgs) -> pulumi.Output[str]:
        protect = args.get("protect", True)
        kept = child_of(self, protect=protect)
        made = aws.s3.Bucket(
            f"{name}-bucket", bucket=args.get("bucket"), force_destroy=not protect, tags=tags_of(args), opts=kept
        )
        aws.s3.BucketPublicAccessBlock(
            f"{name}-private",
            bucket=made.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=kept,
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            f"{name}-encrypted",
            bucket=made.id,
            rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
            opts=kept,
        )
        aws.s3.BucketLifecycleConfiguration(f"{name}-tidy", bucket=made.id, rules=[_TIDY], opts=kept)
        aws.s3.BucketPolicy(f"{name}-tls", bucket=made.id, policy=made.arn.apply(_tls_only), opts=kept)
        return made.id


def _tls_only(arn: str) -> str:
    statement = {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
