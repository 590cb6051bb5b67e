"""Metadata service of one instance: AwsMetadata plus instance properties, user data and the role's credentials.

Categories follow the EC2 user guide's "Instance metadata categories". The credentials come from moto's STS, so with
enforced policies the machine has exactly the permissions of its role.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from ..metadata import Answer, Request
from ..metadata_aws import AwsMetadata
from . import moto_side

_ROLE = "/latest/meta-data/iam/security-credentials/"
_LASTS_S = 6 * 3_600


class InstanceMetadata(AwsMetadata):
    """Metadata service of a moto instance."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance
        self._credentials = ""
        self.keys: list[str] = []
        """Access keys that it issued."""
        zone = instance.availability_zone
        self.values = {
            "ami-id": instance.image_id,
            "ami-launch-index": str(instance.ami_launch_index),
            "hostname": instance.private_dns_name,
            "instance-action": "none",
            "instance-id": instance.id,
            "instance-life-cycle": "spot" if instance.lifecycle == "spot" else "on-demand",
            "instance-type": instance.instance_type,
            "local-hostname": instance.private_dns_name,
            "local-ipv4": instance.private_ip,
            "placement/availability-zone": zone,
            "placement/region": instance.region_name,
            "services/domain": "amazonaws.com",
        }

    def find(self, path: str) -> str | None:
        if path == "/latest/user-data":
            return self._instance.user_data.decode() if self._instance.user_data else None
        if path == "/latest/dynamic/instance-identity/document":
            return json.dumps({"accountId": moto_side.ACCOUNT, "instanceId": self._instance.id, **self._place()})
        if path.startswith(_ROLE):
            return self._role(path.removeprefix(_ROLE))
        return super().find(path)

    def answer(self, request: Request) -> Answer:
        if self._instance.metadata_options.http_endpoint == "disabled":
            return Answer(403)
        return super().answer(request)

    def _place(self) -> dict[str, str]:
        return {
            "architecture": self._instance.architecture,
            "availabilityZone": self._instance.availability_zone,
            "imageId": self._instance.image_id,
            "instanceType": self._instance.instance_type,
            "privateIp": self._instance.private_ip,
            "region": self._instance.region_name,
        }

    def _role(self, asked: str) -> str | None:
        attached = self._instance.iam_instance_profile
        profile = moto_side.profile(attached["Arn"]) if attached else None
        role = profile.roles[0] if profile and profile.roles else None
        if role is None or asked not in ("", role.name):
            return None
        return self._given(role.arn) if asked else str(role.name)

    def _given(self, role_arn: str) -> str:
        if not self._credentials:
            made = moto_side.credentials(role_arn, self._instance.id, _LASTS_S)
            self.keys.append(made.access_key_id)
            now = time.time()
            self._credentials = json.dumps(
                {
                    "Code": "Success",
                    "Type": "AWS-HMAC",
                    "LastUpdated": _stamp(now),
                    "Expiration": _stamp(now + _LASTS_S),
                    "AccessKeyId": made.access_key_id,
                    "SecretAccessKey": made.secret_access_key,
                    "Token": made.session_token,
                }
            )
        return self._credentials


def _stamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
