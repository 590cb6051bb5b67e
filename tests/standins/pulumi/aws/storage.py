"""S3 buckets and their configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from ..provider import Made
from ..wire import Props
from .cloud import AwsKind, delete_if_exists, none_if_gone, pairs, request, shape_of, tagged, tags_of


class Bucket(AwsKind):
    """S3 bucket. With forceDestroy it is emptied before deletion; without it, deleting a non-empty bucket fails."""

    type = "aws:s3/bucket:Bucket"
    service = "s3"
    inputs = frozenset({"bucket", "forceDestroy", "tags", "region"})
    replaces = frozenset({"bucket", "region"})
    computed = frozenset({"arn", "tagsAll", "region", "bucketDomainName", "bucketRegionalDomainName", "hostedZoneId"})
    autoname = "bucket"

    def create(self, name: str, inputs: Props) -> Made:
        s3, bucket, region = self.api(inputs), inputs["bucket"], self.where(inputs)
        place = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
        s3.create_bucket(Bucket=bucket, **place)
        if inputs.get("tags"):
            s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": pairs(inputs["tags"])})
        outputs = {
            "arn": f"arn:aws:s3:::{bucket}",
            "region": region,
            "bucketDomainName": f"{bucket}.s3.amazonaws.com",
            "bucketRegionalDomainName": f"{bucket}.s3.{region}.amazonaws.com",
        }
        return Made(bucket, {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        s3 = self.api(state)
        if identity not in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
            return None
        result = none_if_gone(lambda: s3.get_bucket_tagging(Bucket=identity)["TagSet"]) if state.get("tags") else []
        tags = tags_of(result)
        return {"bucket": identity, "tags": tags, "tagsAll": tags, "arn": f"arn:aws:s3:::{identity}"}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        s3 = self.api(new)
        if new.get("tags"):
            s3.put_bucket_tagging(Bucket=identity, Tagging={"TagSet": pairs(new["tags"])})
        elif old.get("tags"):
            s3.delete_bucket_tagging(Bucket=identity)
        return tagged(new)

    def delete(self, identity: str, state: Props) -> None:
        if state.get("forceDestroy"):
            delete_if_exists(lambda: self._empty(self.api(state), identity))
        delete_if_exists(lambda: self.api(state).delete_bucket(Bucket=identity))

    def _empty(self, s3: Any, bucket: str) -> None:
        result = s3.list_object_versions(Bucket=bucket)
        for one in [*result.get("Versions", []), *result.get("DeleteMarkers", [])]:
            s3.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])
        for one in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            s3.abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])
        if result.get("IsTruncated"):
            self._empty(s3, bucket)


class _OfBucket(AwsKind):
    """One configuration of a bucket, with its put, get and delete call. `id` is the bucket's name."""

    service = "s3"
    required = frozenset({"bucket"})
    replaces = frozenset({"bucket", "region"})
    computed = frozenset({"region"})
    put: ClassVar[str]
    get: ClassVar[str]
    remove: ClassVar[str]
    argument: ClassVar[str]
    """Name of the put call's argument."""
    renames: ClassVar[Mapping[str, str]] = {}

    def _put(self, inputs: Props) -> None:
        s3 = self.api(inputs)
        operation = s3.meta.service_model.operation_model(s3.meta.method_to_api_mapping[self.put])
        wanted = self.put_argument(inputs)
        if isinstance(wanted, dict):
            shape = shape_of(s3, operation.input_shape.members[self.argument].name)
            wanted = request(shape, wanted, self.renames)
        getattr(s3, self.put)(Bucket=inputs["bucket"], **{self.argument: wanted})

    def put_argument(self, inputs: Props) -> Any:
        """Return the put call's argument."""
        return {name: value for name, value in inputs.items() if name not in ("bucket", "region")}

    def create(self, name: str, inputs: Props) -> Made:
        self._put(inputs)
        return Made(inputs["bucket"], {"region": self.where(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: getattr(self.api(state), self.get)(Bucket=identity))
        return None if result is None else {"bucket": identity}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self._put(new)
        return {}

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: getattr(self.api(state), self.remove)(Bucket=identity))


class PublicAccessBlock(_OfBucket):
    type = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    inputs = frozenset(
        {"bucket", "blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets", "region"}
    )
    put, get, remove = "put_public_access_block", "get_public_access_block", "delete_public_access_block"
    argument = "PublicAccessBlockConfiguration"


class Encryption(_OfBucket):
    type = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    inputs = frozenset({"bucket", "rules", "region"})
    put, get, remove = "put_bucket_encryption", "get_bucket_encryption", "delete_bucket_encryption"
    argument = "ServerSideEncryptionConfiguration"
    renames: ClassVar[Mapping[str, str]] = {"sseAlgorithm": "SSEAlgorithm", "kmsMasterKeyId": "KMSMasterKeyID"}


class Lifecycle(_OfBucket):
    type = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    inputs = frozenset({"bucket", "rules", "region"})
    put, get, remove = (
        "put_bucket_lifecycle_configuration",
        "get_bucket_lifecycle_configuration",
        "delete_bucket_lifecycle",
    )
    argument = "LifecycleConfiguration"


class Versioning(_OfBucket):
    type = "aws:s3/bucketVersioning:BucketVersioning"
    inputs = frozenset({"bucket", "versioningConfiguration", "region"})
    put, get = "put_bucket_versioning", "get_bucket_versioning"
    argument = "VersioningConfiguration"

    def put_argument(self, inputs: Props) -> Any:
        return inputs["versioningConfiguration"]

    def delete(self, identity: str, state: Props) -> None:
        """Suspend versioning: a bucket that had it cannot become unversioned."""
        suspended = {"Status": "Suspended"}
        delete_if_exists(
            lambda: self.api(state).put_bucket_versioning(Bucket=identity, VersioningConfiguration=suspended)
        )


class Policy(_OfBucket):
    type = "aws:s3/bucketPolicy:BucketPolicy"
    inputs = frozenset({"bucket", "policy", "region"})
    required = frozenset({"bucket", "policy"})
    put, get, remove = "put_bucket_policy", "get_bucket_policy", "delete_bucket_policy"
    argument = "Policy"

    def put_argument(self, inputs: Props) -> Any:
        json.loads(inputs["policy"])
        return str(inputs["policy"])

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).get_bucket_policy(Bucket=identity)["Policy"])
        if result is None:
            return None
        same = json.loads(result) == json.loads(state["policy"])
        return {"bucket": identity, "policy": state["policy"] if same else result}


KINDS = (Bucket, PublicAccessBlock, Encryption, Lifecycle, Versioning, Policy)
