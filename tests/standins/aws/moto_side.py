"""moto in this process: its settings, the backends of the only account, and its images.

moto keeps its state in module globals, so a process can have only one stand-in at a time.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

ACCOUNT = "123456789012"

# The vendors' public parameters that name the newest images, and properties of these images. The names are from AWS's
# "DLAMI release notes" and Canonical's "Find Ubuntu images with SSM"; ids are invented, one per region.
_DEEP_LEARNING = "/aws/service/deeplearning/ami/{architecture}/{name}/latest/ami-id"
_UBUNTU = "/aws/service/canonical/ubuntu/server/{version}/stable/current/{architecture}/hvm/ebs-gp3/ami-id"
_NEURON = "/aws/service/neuron/dlami/base/ubuntu-{version}/latest/image_id"
_AMAZON = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{architecture}"
IMAGES: dict[str, tuple[str, str]] = {  # parameter -> architecture, root device
    **{
        _DEEP_LEARNING.format(architecture=architecture, name=name): (architecture, root)
        for architecture in ("x86_64", "arm64")
        for name, root in (
            ("base-oss-nvidia-driver-gpu-ubuntu-22.04", "/dev/sda1"),
            ("base-oss-nvidia-driver-gpu-ubuntu-24.04", "/dev/sda1"),
            ("base-oss-nvidia-driver-gpu-amazon-linux-2023", "/dev/xvda"),
        )
    },
    **{
        _UBUNTU.format(version=version, architecture=short): (architecture, "/dev/sda1")
        for version in ("22.04", "24.04")
        for short, architecture in (("amd64", "x86_64"), ("arm64", "arm64"))
    },
    **{_AMAZON.format(architecture=architecture): (architecture, "/dev/xvda") for architecture in ("x86_64", "arm64")},
}


def application() -> Callable[..., Any]:
    """Return moto as a WSGI application with its strictest settings."""
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # read when a region is first used; 0.4 s each
    from moto import settings
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    settings.EC2_ENABLE_INSTANCE_TYPE_VALIDATION = True
    settings.ENABLE_AMI_VALIDATION = True
    _groups_only_keep_their_size()
    _copies_share_their_content()
    _lookups_do_not_scan()
    return DomainDispatcherApplication(create_backend_app)


def _groups_only_keep_their_size() -> None:
    """Keep moto's groups from launching machines, which would ignore their template: scaling.py launches them."""
    from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup

    def keep(group: Any, size: int | None) -> None:
        group.desired_capacity = group.min_size if size is None else size

    FakeAutoScalingGroup.set_desired_capacity = keep  # type: ignore[assignment,method-assign]
    AutoScalingBackend.notify_terminate_instances = lambda _self, _ids: None  # type: ignore[assignment,method-assign]


def _copies_share_their_content() -> None:
    """Make copies of an object share its content: moto writes each to disk, gigabytes for the agents of a thousand
    jobs."""
    from moto.s3.models import FakeKey, S3Backend

    write = S3Backend.copy_object

    def copy_object(backend: S3Backend, src_key: FakeKey, bucket: str, key: str, **more: Any) -> None:
        empty = copy.copy(src_key)
        empty._value_buffer, empty.multipart = io.BytesIO(), None  # type: ignore[assignment]
        write(backend, empty, bucket, key, **more)
        made = backend.get_bucket(bucket).keys[key]
        made._etag, made.contentsize = src_key.etag.strip('"'), src_key.contentsize
        made._value_buffer, made.lock = src_key._value_buffer, src_key.lock
        for one in (src_key, made):  # disposing of either would close the shared buffer
            one.dispose = lambda garbage=False: None  # type: ignore[method-assign]

    S3Backend.copy_object = copy_object  # type: ignore[assignment,method-assign]


def _lookups_do_not_scan() -> None:
    """Replace slow lookups: moto scans all tags of a region for one resource, and a folder for its services' names."""
    from moto import backends
    from moto.ec2.models.core import TaggedEC2Resource
    from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

    def get_tags(resource: Any) -> list[dict[str, str]]:
        identity = resource.id
        tags = resource.ec2_backend.tags.get(identity) if identity else None
        if not tags:
            return []
        kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(identity), "")
        return [{"resource_id": identity, "key": key, "value": tags[key], "resource_type": kind} for key in tags]

    TaggedEC2Resource.get_tags = get_tags  # type: ignore[assignment,method-assign]
    services = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services


def reset() -> None:
    """Reset all state, including enforcement of policies."""
    from moto.moto_api._internal.models import moto_api_backend

    enforce_policies(on=False)
    moto_api_backend.reset()


def enforce_policies(*, on: bool) -> None:
    """Verify signatures and enforce IAM policies, or accept any key for anything.

    moto verifies signatures and authorizes S3 calls; permissions.py authorizes all others, with their resources.
    """
    from moto import settings
    from moto.core.authorization import ActionAuthenticatorMixin
    from moto.iam.access_control import IAMRequest

    IAMRequest.check_action_permitted = lambda _self, _resource: None  # type: ignore[assignment,method-assign]
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0 if on else float("inf")
    ActionAuthenticatorMixin.request_count = 0


def ec2(region: str) -> Any:
    """Return EC2's backend."""
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][region]


def forget_instances(region: str, instance_ids: set[str]) -> None:
    """Remove instances from moto's state."""
    backend = ec2(region)
    for identity, reservation in list(backend.reservations.items()):
        reservation.instances = [one for one in reservation.instances if one.id not in instance_ids]
        if not reservation.instances:
            del backend.reservations[identity]
    for one in instance_ids:
        backend.tags.pop(one, None)


def scaling(region: str) -> Any:
    """Return Auto Scaling's backend."""
    from moto.autoscaling.models import autoscaling_backends

    return autoscaling_backends[ACCOUNT][region]


def ec2_regions() -> Iterator[str]:
    """Yield the regions in which EC2 was used."""
    from moto.ec2.models import ec2_backends

    yield from list(ec2_backends[ACCOUNT])


@contextlib.contextmanager
def unjudged(*, was: bool) -> Iterator[None]:
    """Disable verification of signatures for the block; `was`: whether it is enabled otherwise."""
    enforce_policies(on=False)
    try:
        yield
    finally:
        enforce_policies(on=was)


def role_path(name: str) -> str:
    """Return a role's path; `/` if it does not exist."""
    from moto.iam.models import iam_backends

    found = iam_backends[ACCOUNT]["aws"].roles.values()
    return next((role.path for role in found if role.name == name), "/")


def role_boundary(name: str) -> str:
    """Return the ARN of a role's permissions boundary; "": none."""
    from moto.iam.models import iam_backends

    found = (role for role in iam_backends[ACCOUNT]["aws"].roles.values() if role.name == name)
    return next((role.permissions_boundary_arn or "" for role in found), "")


def profile(name: str) -> Any:
    """Return an instance profile by name or ARN, or None."""
    from moto.iam.models import iam_backends

    found = iam_backends[ACCOUNT]["aws"].instance_profiles.values()
    return next((one for one in found if name in (one.name, one.arn)), None)


def credentials(role_arn: str, session: str, seconds: int) -> Any:
    """Return temporary credentials of a role, as the metadata service issues them."""
    from moto.sts.models import sts_backends

    return sts_backends[ACCOUNT]["aws"].assume_role("us-east-1", session, role_arn, "", seconds, "")


def scaling_group(region: str, name: str) -> tuple[str, dict[str, str]]:
    """Return ARN and tags of an Auto Scaling group; if it does not exist, an ARN that no statement matches."""
    from moto.autoscaling.models import autoscaling_backends

    found = autoscaling_backends[ACCOUNT][region].autoscaling_groups.get(name)
    return ("", {}) if found is None else (found.arn, {tag["Key"]: tag["Value"] for tag in found.tags})


def scaling_group_of(region: str, instance: str) -> str:
    """Return the name of an instance's Auto Scaling group; "": none."""
    groups = scaling(region).autoscaling_groups
    return next(
        (name for name, one in groups.items() if instance in [state.instance.id for state in one.instance_states]), ""
    )


def secret_arn(region: str, name: str) -> str:
    """Return the ARN of a secret by its name or ARN; for one that does not exist, the ARN as far as it is known."""
    from moto.secretsmanager.models import secretsmanager_backends

    secrets = secretsmanager_backends[ACCOUNT][region].secrets.values()
    found = (one.arn for one in secrets if name in (one.name, one.arn) or one.arn.startswith(f"{name}-"))
    unknown = name if name.startswith("arn:") else f"arn:aws:secretsmanager:{region}:{ACCOUNT}:secret:{name}"
    return str(next(found, unknown))


def machine_types() -> dict[str, dict[str, Any]]:
    """Return the entries of DescribeInstanceTypes by name."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    return dict(INSTANCE_TYPES)


def zones_offering(region: str, machine_type: str) -> list[str]:
    """Return the zones that offer the type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offer["Location"] for offer in offers if offer["InstanceType"] == machine_type)


def zone_id(zone: str) -> str:
    """Return the id of a zone, such as `use1-az1` for `us-east-1a`, in this account."""
    zones = ec2(zone[:-1]).describe_availability_zones()
    return next(str(one.zone_id) for one in zones if one.name == zone)


def seed(region: str) -> None:
    """Add the images, and the parameters that name them, to a region."""
    from moto.core.utils import utcnow
    from moto.ec2.models.amis import Ami
    from moto.ssm import models

    backend, parameters = ec2(region), models.ssm_backends[ACCOUNT][region]._parameters
    for name, (architecture, root) in IMAGES.items():
        ami = "ami-" + hashlib.sha256(f"{region}{name}".encode()).hexdigest()[:17]
        backend.amis[ami] = Ami(
            backend,
            ami,
            name=name.removeprefix("/aws/service/"),
            owner_id="898082745236",
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=architecture,
            root_device_name=root,
            root_device_type="ebs",
            hypervisor="xen",
            region_name=region,
        )
        parameters[name].append(
            models.Parameter(  # type: ignore[abstract]
                account_id=ACCOUNT,
                name=name,
                value=ami,
                parameter_type="String",
                description="",
                allowed_pattern=None,
                keyid=None,
                last_modified_date=utcnow(),
                version=1,
                data_type="aws:ec2:image",
            )
        )
