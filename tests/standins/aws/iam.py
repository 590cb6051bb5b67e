"""IAM actions that moto implements incompletely. Source: IAM API reference, RemoveRoleFromInstanceProfile."""

from __future__ import annotations

from ..faults import Call
from . import moto_side
from .account import Account
from .answers import Answer, RefusedError
from .handlers import Forward, Handler


def remove_role_from_instance_profile(account: Account, call: Call, forward: Forward) -> Answer:
    """Return NoSuchEntity if the profile does not have the role, where moto crashes."""
    name, role = call.params.get("InstanceProfileName", ""), call.params.get("RoleName", "")
    profile = moto_side.profile(name)
    if profile is not None and role not in [one.name for one in profile.roles]:
        raise RefusedError("NoSuchEntity", f"Role {role} is not in instance profile {name}", 404)
    return forward()


HANDLERS: dict[tuple[str, str], Handler] = {("iam", "RemoveRoleFromInstanceProfile"): remove_role_from_instance_profile}
