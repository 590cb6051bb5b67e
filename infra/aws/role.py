"""IAM role for machines: access to job dirs and the secrets named, leaving a fleet's group, and nothing else."""

import json
import re
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws

from ...provisioners.aws.resources.identity import PATH, policy, reach, read_secrets, trust_policy
from ...provisioners.aws.resources.network import PROFILE_TAG
from ...provisioners.shared import tags
from ..arguments import check_arguments, check_secrets
from ..components import child_of
from .children import TYPES, tags_of

_SECRET = re.compile(r"aws-secretsmanager://[A-Za-z0-9/_+=.@:-]+(?:[?]kms-key=[A-Za-z0-9/_+=.@:-]+)?")


class MachineRoleArgs(TypedDict):
    """Arguments of MachineRole."""

    job_dir: pulumi.Input[str]
    """`s3://BUCKET/jobs`: the prefix that the machines may read and write; JobBucket's output."""
    boundary: NotRequired[pulumi.Input[str]]
    """ARN of the role's permissions boundary."""
    secrets: NotRequired[list[str]]
    """Secrets that the machines may read: `aws-secretsmanager://NAME or ARN[?kms-key=ARN]`. Default: none."""
    region: NotRequired[str]
    """Region of the secrets that are given by name. Default: every region."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; see GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of role and instance profile."""


class MachineRole(pulumi.ComponentResource):
    """IAM role for machines, and its instance profile."""

    profile_arn: pulumi.Output[str]
    """ARN of the instance profile."""
    role_name: pulumi.Output[str]
    """Name of the role."""

    def __init__(self, name: str, args: MachineRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("MachineRole", name, args, MachineRoleArgs)
        secrets = args.get("secrets", [])
        check_secrets(name, secrets, _SECRET, "aws-secretsmanager://NAME or ARN")
        super().__init__(f"{TYPES}:MachineRole", name, {}, opts)
        labels = tags_of(args)
        owner = str(labels[tags.OWNER])
        partition = aws.get_partition_output(opts=pulumi.InvokeOutputOptions(parent=self)).partition
        role = aws.iam.Role(
            f"{name}-role",
            path=f"{PATH}{owner}/",
            description=f"machines of {owner}",
            assume_role_policy=partition.apply(lambda of: json.dumps(trust_policy(of))),
            permissions_boundary=args.get("boundary"),
            tags=labels,
            opts=child_of(self),
        )
        profile = aws.iam.InstanceProfile(
            f"{name}-profile", path=f"{PATH}{owner}/", role=role.name, tags=labels, opts=child_of(self)
        )
        granted = aws.iam.RolePolicy(
            f"{name}-jobs",
            role=role.id,
            policy=pulumi.Output.all(args["job_dir"], partition, profile.arn).apply(
                lambda known: json.dumps(fleet_policy(*known, secrets=secrets, region=args.get("region", "*")))
            ),
            opts=child_of(self),
        )
        # Export the ARN only after the policy exists: a machine that starts earlier cannot read its job and gives up.
        self.profile_arn = pulumi.Output.all(profile.arn, granted.id).apply(lambda made: str(made[0]))
        self.role_name = role.name
        self.register_outputs({"profile_arn": self.profile_arn, "role_name": self.role_name})


def fleet_policy(
    job_dir: str, partition: str, profile_arn: str, *, secrets: Sequence[str] = (), region: str = "*"
) -> dict[str, Any]:
    """Return the policy of a stack's machines.

    They have the permissions of a launch's machines, but for all job dirs below `job_dir` and for the stack's secrets,
    and may leave Auto Scaling groups that are tagged with the same instance profile.
    """
    leave = {
        "Effect": "Allow",
        "Action": "autoscaling:TerminateInstanceInAutoScalingGroup",
        "Resource": f"arn:{partition}:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/*",
        "Condition": {"StringEquals": {f"aws:ResourceTag/{PROFILE_TAG}": profile_arn}},
    }
    return policy([*reach([(job_dir, True)], partition), leave, *read_secrets(secrets, partition, region)])
