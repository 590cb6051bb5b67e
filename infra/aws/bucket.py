"""Where jobs keep everything: a bucket that is encrypted, private, and not deleted by accident."""

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
    """Name of a bucket that is there and stays as it is: nothing is made or changed, only used."""
    bucket: NotRequired[pulumi.Input[str]]
    """Name of the bucket to make; omitted: Pulumi makes one up."""
    prefix: NotRequired[str]
    """Job dirs are below; omitted: `jobs`."""
    protect: NotRequired[bool]
    """Pulumi refuses to delete it; omitted: it does. `false`: it is deleted with everything that is in it."""
    owner: NotRequired[str]
    """As in GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of the bucket."""


class JobBucket(pulumi.ComponentResource):
    """A bucket for job dirs: encrypted, no public access, reached by TLS only; uploads that were never finished go
    after a week, versions that were replaced (of a bucket on which somebody turns versions on) after a day."""

    bucket: pulumi.Output[str]
    """Its name."""
    job_dir: pulumi.Output[str]
    """`s3://BUCKET/jobs`: for `job_dir` of job files."""

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
