"""Lambda function on a schedule that terminates expired machines: the safety net when no other cleanup runs."""

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws

from ...provisioners.aws.resources.identity import PATH, policy
from ...provisioners.shared import tags
from ..arguments import check_arguments
from ..components import child_of
from .children import TYPES, tags_of

_HANDLER = Path(__file__).with_name("reaper_handler.py")
_RUNTIME = "python3.13"
_LIMIT_S = 300


class OrphanReaperArgs(TypedDict):
    """Arguments of OrphanReaper."""

    every_minutes: NotRequired[int]
    """Interval between runs in minutes. Default: 15."""
    keep_log_days: NotRequired[int]
    """Retention of the function's logs in days. Default: 30."""
    boundary: NotRequired[pulumi.Input[str]]
    """ARN of the permissions boundary of the function's role."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner of the reaper's resources; see GpuNetworkArgs. The reaper deletes resources of
    any owner that begins with `cloudgpu-`."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all the reaper's resources."""


class OrphanReaper(pulumi.ComponentResource):
    """Scheduled Lambda function that deletes billable resources in its region that cloudgpu tagged and that have
    expired.

    It covers machines, groups of machines, and unattached volumes; its role allows no other deletion. It costs almost
    nothing, a few seconds of Lambda a day, and needs no job, store or computer of a user to run.
    """

    function_name: pulumi.Output[str]
    """Name of the Lambda function."""

    def __init__(self, name: str, args: OrphanReaperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("OrphanReaper", name, args, OrphanReaperArgs)
        super().__init__(f"{TYPES}:OrphanReaper", name, {}, opts)
        self._tags = tags_of(args)
        function = self._function(name, int(args.get("keep_log_days") or 30), args.get("boundary"))
        minutes = int(args.get("every_minutes") or 15)  # programs in other languages pass a float
        rule = aws.cloudwatch.EventRule(
            f"{name}-schedule",
            description="ends what is tagged cloudgpu-expires and has expired",
            schedule_expression=f"rate({minutes} minute{'s' if minutes > 1 else ''})",
            tags=self._tags,
            opts=child_of(self),
        )
        allowed = aws.lambda_.Permission(
            f"{name}-may-be-called",
            action="lambda:InvokeFunction",
            function=function.name,
            principal="events.amazonaws.com",
            source_arn=rule.arn,
            opts=child_of(self),
        )
        aws.cloudwatch.EventTarget(
            f"{name}-call", rule=rule.name, arn=function.arn, opts=child_of(self, depends_on=[allowed])
        )
        self.function_name = function.name
        self.register_outputs({"function_name": self.function_name})

    def _function(self, name: str, keep_log_days: int, boundary: pulumi.Input[str] | None) -> aws.lambda_.Function:
        log = aws.cloudwatch.LogGroup(
            f"{name}-log", retention_in_days=keep_log_days, tags=self._tags, opts=child_of(self)
        )
        role = aws.iam.Role(
            f"{name}-role",
            path=f"{PATH}{self._tags[tags.OWNER]}/",
            assume_role_policy=json.dumps(_TRUST),
            description="ends what is tagged cloudgpu-expires and has expired",
            permissions_boundary=boundary,
            tags=self._tags,
            opts=child_of(self),
        )
        partition = aws.get_partition_output(opts=pulumi.InvokeOutputOptions(parent=self)).partition
        granted = aws.iam.RolePolicy(
            f"{name}-ends",
            role=role.id,
            policy=pulumi.Output.all(log.arn, partition).apply(
                lambda known: json.dumps(reaper_policy(known[0], known[1]))
            ),
            opts=child_of(self),
        )
        return aws.lambda_.Function(
            f"{name}-function",
            runtime=_RUNTIME,
            handler="reaper_handler.handler",
            # Inline text, because a file asset would put a local path into the stack's state.
            code=pulumi.AssetArchive({"reaper_handler.py": pulumi.StringAsset(_HANDLER.read_text(encoding="utf-8"))}),
            role=role.arn,
            timeout=_LIMIT_S,
            memory_size=256,
            logging_config={"log_format": "Text", "log_group": log.name},
            tags=self._tags,
            opts=child_of(self, depends_on=[granted]),
        )


_TRUST = policy([{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}])


def reaper_policy(log_arn: str, partition: str) -> dict[str, Any]:
    """Return a policy that allows describing all resources, deleting those with the tags cloudgpu-owner and
    cloudgpu-expires, and writing the log."""
    ours = {"StringLike": {f"aws:ResourceTag/{tags.OWNER}": "cloudgpu-*", f"aws:ResourceTag/{tags.EXPIRES}": "*"}}
    ends = {
        f"arn:{partition}:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/*": (
            "autoscaling:UpdateAutoScalingGroup"
        ),
        f"arn:{partition}:ec2:*:*:instance/*": "ec2:TerminateInstances",
        f"arn:{partition}:ec2:*:*:volume/*": "ec2:DeleteVolume",
    }
    look = ["autoscaling:DescribeAutoScalingGroups", "ec2:DescribeInstances", "ec2:DescribeVolumes"]
    return policy(
        [
            {"Effect": "Allow", "Action": look, "Resource": "*"},
            *({"Effect": "Allow", "Action": end, "Resource": of, "Condition": ours} for of, end in ends.items()),
            {
                "Effect": "Allow",
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                "Resource": f"{log_arn.removesuffix(':*')}:*",
            },
        ]
    )
