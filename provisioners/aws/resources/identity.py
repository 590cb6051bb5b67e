"""IAM role of a launch's machines, which grants access to the job's folder, inputs and outputs only.

Each launch has a dedicated role and instance profile, named by its token, under the path `/cloudgpu/<owner>/`. If the
role of an infra stack grants all that a launch needs, the launch uses that role, without calls to IAM.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....jobspecs import secret_references
from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ...shared.infra_outputs import Infrastructure
from ..errors import ignore_errors
from .network import name_of

if TYPE_CHECKING:
    from types_boto3_iam import IAMClient
    from types_boto3_iam.type_defs import TagTypeDef

PATH = "/cloudgpu/"
"""IAM path of all roles and profiles created by cloudgpu; a submitter's permissions can be limited to it."""
BOUNDARY_VARIABLE = "CLOUDGPU_AWS_BOUNDARY"
"""Environment variable with the ARN of a policy used as permissions boundary of created roles."""
_POLICY = "job"
_READ = ("s3:GetObject",)
_WRITE = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


def shared_profile(stack: Infrastructure | None, request: LaunchRequest) -> str:
    """Return the ARN of the stack's instance profile if its role grants all that the machines need, otherwise ""."""
    return "" if stack is None else stack.role_for((request.job_dir, *request.reads, *request.writes), request.secrets)


def make_identity(iam: IAMClient, request: LaunchRequest, partition: str) -> str:
    """Create role and instance profile, and return the profile's ARN. Idempotent. Raises botocore's errors."""
    name, path = name_of(request.token), f"{PATH}{request.owner.name}/"
    labels: list[TagTypeDef] = [{"Key": key, "Value": value} for key, value in tags.launch_tags(request).items()]
    boundary = os.environ.get(BOUNDARY_VARIABLE)
    within: dict[str, Any] = {"PermissionsBoundary": boundary} if boundary else {}
    with ignore_errors("EntityAlreadyExists"):
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
    with ignore_errors("EntityAlreadyExists"):
        iam.create_instance_profile(InstanceProfileName=name, Path=path, Tags=labels)
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    if not profile["Roles"]:
        with ignore_errors("LimitExceeded"):  # a profile holds one role: it was added by a call whose answer was lost
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return profile["Arn"]


def remove_identity(iam: IAMClient, token: str) -> None:
    """Delete role and profile. Idempotent. Raises botocore's errors."""
    name = name_of(token)
    with ignore_errors("NoSuchEntity"):
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    with ignore_errors("NoSuchEntity"):
        iam.delete_instance_profile(InstanceProfileName=name)
    with ignore_errors("NoSuchEntity"):
        iam.delete_role_policy(RoleName=name, PolicyName=_POLICY)
    with ignore_errors("NoSuchEntity"):
        iam.delete_role(RoleName=name)


def trust_policy(partition: str) -> dict[str, Any]:
    """Return the trust policy of the role: only EC2 may assume it."""
    service = "ec2.amazonaws.com.cn" if partition == "aws-cn" else "ec2.amazonaws.com"
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return policy([statement])


def machine_policy(request: LaunchRequest, partition: str) -> dict[str, Any]:
    """Return the policy of a launch's machines: read and write the job's folder and outputs, read its inputs and
    secrets."""
    places = [
        (request.job_dir, True),
        *((url, False) for url in request.reads),
        *((url, True) for url in request.writes),
    ]
    return policy([*reach(places, partition), *read_secrets(request.secrets, partition, request.region)])


def read_secrets(references: Iterable[str], partition: str, region: str) -> list[dict[str, Any]]:
    """Return policy statements for reading secrets, and for the keys that references name; nothing else.

    Secrets Manager appends a hyphen and six random characters to a secret's name in its ARN; a name is looked up in the
    machines' region. The account is left open: a name without an account is only ever of the machine's own.
    """
    secrets, keys = [], []
    for found in map(secret_references.parse, references):
        arn = found.path
        if not arn.startswith("arn:"):
            arn = f"arn:{partition}:secretsmanager:{region}:*:secret:{arn}"
        secrets += [arn, f"{arn}-??????"] if arn == found.path else [f"{arn}-??????"]
        if key := found.options.get("kms-key"):
            keys.append(key if key.startswith("arn:") else f"arn:{partition}:kms:{region}:*:key/{key}")
    granted = {"secretsmanager:GetSecretValue": secrets, "kms:Decrypt": keys}
    return [
        {"Effect": "Allow", "Action": action, "Resource": list(dict.fromkeys(resources))}
        for action, resources in granted.items()
        if resources
    ]


def reach(places: Iterable[tuple[str, bool]], partition: str) -> list[dict[str, Any]]:
    """Return policy statements for (URL, may write) pairs; all URLs may be read.

    They also allow listing below each URL's prefix. S3 answers 403 instead of 404 for a missing object unless the
    caller may list the whole bucket: JobDir distinguishes the two by a listing.
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
    """Return bucket and prefix of `s3://bucket/prefix`. Raises ProvisionError(invalid) for another URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ProvisionError("invalid", f"a machine on aws cannot reach {url}: it must be s3://BUCKET/…", scope="cloud")
    if any(character in prefix for character in "*?$"):  # patterns and variables in IAM policies
        raise ProvisionError("invalid", f"{url}: `*`, `?` and `$` cannot be in it on aws", scope="cloud")
    return bucket, prefix.strip("/")
