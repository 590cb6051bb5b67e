"""Who a launch's machines are: a role that reaches this job's folder of its bucket, and nothing else.

Each launch has a role and an instance profile of its own, named by its token, under the path `/cloudgpu/<owner>/`.
Where an infra stack has made a role that reaches all that a launch needs, it is used, and IAM is not asked anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ...shared.infra_outputs import Infrastructure
from ..errors import tolerate
from .network import name_of

if TYPE_CHECKING:
    from types_boto3_iam import IAMClient
    from types_boto3_iam.type_defs import TagTypeDef

PATH = "/cloudgpu/"
"""Of all roles and profiles that are ours: what a submitter's permissions are limited to."""
BOUNDARY_VARIABLE = "CLOUDGPU_AWS_BOUNDARY"
"""ARN of a policy: no role that is made can do more than it allows (IAM's permissions boundary)."""
_POLICY = "job"
_READ = ("s3:GetObject",)
_WRITE = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


def shared_profile(stack: Infrastructure | None, request: LaunchRequest) -> str:
    """ARN of the stack's instance profile, if its role reaches all that the machines need; "": it does not."""
    return "" if stack is None else stack.role_for((request.job_dir, *request.reads, *request.writes))


def make_identity(iam: IAMClient, request: LaunchRequest, partition: str) -> str:
    """The instance profile's ARN. Made in four calls; each finds what an earlier try has made."""
    name, path = name_of(request.token), f"{PATH}{request.owner.name}/"
    labels: list[TagTypeDef] = [{"Key": key, "Value": value} for key, value in tags.launch_tags(request).items()]
    boundary = os.environ.get(BOUNDARY_VARIABLE)
    within: dict[str, Any] = {"PermissionsBoundary": boundary} if boundary else {}
    with tolerate("EntityAlreadyExists"):
        iam.create_role(
            RoleName=name,
            Path=path,
            AssumeRolePolicyDocument=json.dumps(trust_policy(partition)),
            Description=f"machines of cloudgpu job {request.job_id}",
            Tags=labels,
            **within,
        )
    document = json.dumps(machine_policy(request, partition))
    iam.put_role_policy(RoleName=name, PolicyName=_POLICY, PolicyDocument=document)
    with tolerate("EntityAlreadyExists"):
        iam.create_instance_profile(InstanceProfileName=name, Path=path, Tags=labels)
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    if not profile["Roles"]:
        with tolerate("LimitExceeded"):  # a profile holds one role: then it is there, and the answer was lost
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return profile["Arn"]


def remove_identity(iam: IAMClient, token: str) -> None:
    """Role and profile; nothing happens if they are gone."""
    name = name_of(token)
    with tolerate("NoSuchEntity"):
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    with tolerate("NoSuchEntity"):
        iam.delete_instance_profile(InstanceProfileName=name)
    with tolerate("NoSuchEntity"):
        iam.delete_role_policy(RoleName=name, PolicyName=_POLICY)
    with tolerate("NoSuchEntity"):
        iam.delete_role(RoleName=name)


def trust_policy(partition: str) -> dict[str, Any]:
    """Only EC2 may hand the role to a machine."""
    service = "ec2.amazonaws.com.cn" if partition == "aws-cn" else "ec2.amazonaws.com"
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return policy([statement])


def machine_policy(request: LaunchRequest, partition: str) -> dict[str, Any]:
    """What the machines of a launch may do: read and write the job's folder, read its inputs, write its outputs."""
    places = [
        (request.job_dir, True),
        *((url, False) for url in request.reads),
        *((url, True) for url in request.writes),
    ]
    return policy(reach(places, partition))


def reach(places: Iterable[tuple[str, bool]], partition: str) -> list[dict[str, Any]]:
    """Statements for URLs that may be read and, if so said, written.

    Whoever has them may list what it may read, by prefix. Where S3 is asked for an object that is not there, it answers
    403, not 404, to who may not list the whole bucket: JobDir tells the two apart by a listing.
    """
    statements: list[dict[str, Any]] = []
    for url, may_write in places:
        bucket, prefix = split_url(url)
        objects = [f"{prefix}/*", prefix] if prefix else ["*"]
        bucket_arn = f"arn:{partition}:s3:::{bucket}"
        actions = [*_READ, *_WRITE] if may_write else list(_READ)
        statements.append(
            {"Effect": "Allow", "Action": actions, "Resource": [f"{bucket_arn}/{key}" for key in objects]}
        )
        listing: dict[str, Any] = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket_arn}
        if prefix:
            listing["Condition"] = {"StringLike": {"s3:prefix": objects}}
        statements.append(listing)
    return statements


def policy(statements: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def split_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of `s3://bucket/prefix`. Raises ProvisionError(invalid) for another URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ProvisionError("invalid", f"a machine on aws cannot reach {url}: it must be s3://BUCKET/…", scope="cloud")
    if any(character in prefix for character in "*?$"):  # IAM would take them for patterns and variables
        raise ProvisionError("invalid", f"{url}: `*`, `?` and `$` cannot be in it on aws", scope="cloud")
    return bucket, prefix.strip("/")
