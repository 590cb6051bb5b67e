"""Condition aws:SecureTransport of bucket policies, since moto treats every condition as true.

Source: IAM user guide, "AWS global condition context keys", aws:SecureTransport.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def obey() -> None:
    """Make moto's buckets evaluate the condition."""
    from moto.s3.models import FakeBucket

    FakeBucket.get_permission = _permission  # type: ignore[assignment,method-assign]


def _permission(bucket: Any, action: str, resource: str) -> Any:
    """Evaluate the statements whose conditions hold for the current request."""
    from moto.iam.access_control import IAMPolicy, PermissionResult

    policy = json.loads(bucket.policy or '{"Statement": []}')
    held = [one for one in _listed(policy["Statement"]) if _holds(one.get("Condition", {}))]
    if not held:
        return PermissionResult.NEUTRAL
    return IAMPolicy(json.dumps({**policy, "Statement": held})).is_action_permitted(action, resource)


def _holds(condition: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a condition holds. Raises NotImplementedError for any but aws:SecureTransport."""
    from flask import request

    for operator, keys in condition.items():
        for key, values in keys.items():
            if (operator, key) != ("Bool", "aws:SecureTransport"):
                raise NotImplementedError(f"{operator} of {key} in a bucket's policy")
            if json.dumps(request.is_secure) not in _listed(values):
                return False
    return True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
