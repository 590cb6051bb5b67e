"""Target definition of `aws`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..target import Boot, EnvironmentVariables, Target

MAX_BYTES = 16_384
"""Maximum size of user data in bytes, before base64 (EC2 API reference, RunInstances, UserData)."""

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up=".clients:is_set_up",
    setup_hint="aws is not set up here: it needs boto3 (pip install 'cloudgpu[aws]') and credentials (`aws configure`, "
    "`aws sso login`, or AWS_PROFILE), see docs/guides/aws.md",
    check=".check:steps",
    architecture=".machine.images:architecture_of",
    collector=".lifecycle.gc",
    tables=".catalog.refresh",
    fleets=".fleets",
    boot=Boot(
        bucket="bucket_s3",
        host="host_ec2",
        group="group_aws",
        sent_as="user data",
        max_bytes=MAX_BYTES,
    ),
    settings=EnvironmentVariables(
        names=("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"),
        prefixes=("CLOUDGPU_AWS_",),
    ),
    credentials=EnvironmentVariables(
        names=(
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_ROLE_ARN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        )
    ),
)
