"""IAM: roles, their policies, instance profiles."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from ..provider import Made
from ..wire import Props
from .cloud import AwsKind, delete_if_exists, none_if_gone, pairs, tagged, tags_of


class _Iam(AwsKind):
    service = "iam"

    def policy(self, told: Any, known: str) -> str:
        """Return the known document if the reported one has the same meaning, otherwise the reported one."""
        document = told if isinstance(told, dict) else json.loads(unquote(told))
        return known if known and document == json.loads(known) else json.dumps(document)


class Role(_Iam):
    """IAM role. It is removed from its instance profiles before it is deleted."""

    type = "aws:iam/role:Role"
    inputs = frozenset(
        {"name", "path", "description", "assumeRolePolicy", "permissionsBoundary", "maxSessionDuration", "tags"}
    )
    required = frozenset({"assumeRolePolicy"})
    replaces = frozenset({"name", "path"})
    computed = frozenset({"arn", "tagsAll", "uniqueId", "createDate"})
    autoname = "name"

    def check(self, inputs: Props) -> Props:
        return {"path": "/", "maxSessionDuration": 3600, **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        bounded = inputs.get("permissionsBoundary")
        made = self.api(inputs).create_role(
            RoleName=inputs["name"],
            Path=inputs["path"],
            Description=inputs.get("description", ""),
            AssumeRolePolicyDocument=inputs["assumeRolePolicy"],
            MaxSessionDuration=inputs["maxSessionDuration"],
            Tags=pairs(inputs.get("tags")),
            **({"PermissionsBoundary": bounded} if bounded else {}),
        )["Role"]
        result = {"arn": made["Arn"], "uniqueId": made["RoleId"], "createDate": made["CreateDate"].isoformat()}
        return Made(inputs["name"], {**result, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).get_role(RoleName=identity)["Role"])
        if result is None:
            return None
        trust = self.policy(result["AssumeRolePolicyDocument"], state.get("assumeRolePolicy", ""))
        tags = tags_of(result.get("Tags"))
        return {"name": identity, "path": result["Path"], "assumeRolePolicy": trust, "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        iam = self.api(new)
        iam.update_assume_role_policy(RoleName=identity, PolicyDocument=new["assumeRolePolicy"])
        seconds, text = new["maxSessionDuration"], new.get("description", "")
        iam.update_role(RoleName=identity, Description=text, MaxSessionDuration=seconds)
        if old.get("permissionsBoundary") != new.get("permissionsBoundary"):
            if new.get("permissionsBoundary"):
                iam.put_role_permissions_boundary(RoleName=identity, PermissionsBoundary=new["permissionsBoundary"])
            else:
                iam.delete_role_permissions_boundary(RoleName=identity)
        gone = [key for key in old.get("tags") or {} if key not in (new.get("tags") or {})]
        iam.untag_role(RoleName=identity, TagKeys=gone)
        iam.tag_role(RoleName=identity, Tags=pairs(new.get("tags")))
        return tagged(new)

    def delete(self, identity: str, state: Props) -> None:
        iam = self.api(state)
        profiles = none_if_gone(lambda: iam.list_instance_profiles_for_role(RoleName=identity)["InstanceProfiles"])
        for one in profiles or []:
            name = one["InstanceProfileName"]
            iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=identity)
        delete_if_exists(lambda: iam.delete_role(RoleName=identity))


class RolePolicy(_Iam):
    """Inline policy of a role. `id` is `role:name`."""

    type = "aws:iam/rolePolicy:RolePolicy"
    inputs = frozenset({"name", "role", "policy"})
    required = frozenset({"role", "policy"})
    replaces = frozenset({"name", "role"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        self._put(inputs)
        return Made(f"{inputs['role']}:{inputs['name']}")

    def _put(self, inputs: Props) -> None:
        self.api(inputs).put_role_policy(
            RoleName=inputs["role"], PolicyName=inputs["name"], PolicyDocument=inputs["policy"]
        )

    def read(self, identity: str, state: Props) -> Props | None:
        role, _, name = identity.partition(":")
        result = none_if_gone(lambda: self.api(state).get_role_policy(RoleName=role, PolicyName=name))
        if result is None:
            return None
        return {"role": role, "name": name, "policy": self.policy(result["PolicyDocument"], state.get("policy", ""))}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self._put(new)
        return {}

    def delete(self, identity: str, state: Props) -> None:
        role, _, name = identity.partition(":")
        delete_if_exists(lambda: self.api(state).delete_role_policy(RoleName=role, PolicyName=name))


class InstanceProfile(_Iam):
    type = "aws:iam/instanceProfile:InstanceProfile"
    inputs = frozenset({"name", "path", "role", "tags"})
    replaces = frozenset({"name", "path"})
    computed = frozenset({"arn", "tagsAll", "uniqueId", "createDate"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        iam = self.api(inputs)
        made = iam.create_instance_profile(
            InstanceProfileName=inputs["name"], Path=inputs.get("path", "/"), Tags=pairs(inputs.get("tags"))
        )["InstanceProfile"]
        if inputs.get("role"):
            iam.add_role_to_instance_profile(InstanceProfileName=inputs["name"], RoleName=inputs["role"])
        result = {
            "arn": made["Arn"],
            "uniqueId": made["InstanceProfileId"],
            "createDate": made["CreateDate"].isoformat(),
        }
        return Made(inputs["name"], {**result, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(
            lambda: self.api(state).get_instance_profile(InstanceProfileName=identity)["InstanceProfile"]
        )
        if result is None:
            return None
        tags = tags_of(result.get("Tags"))
        role = next((one["RoleName"] for one in result["Roles"]), "")
        return {"name": identity, "role": role, "path": result["Path"], "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        iam = self.api(new)
        if old.get("role") != new.get("role"):
            if old.get("role"):
                delete_if_exists(
                    lambda: iam.remove_role_from_instance_profile(InstanceProfileName=identity, RoleName=old["role"])
                )
            if new.get("role"):
                iam.add_role_to_instance_profile(InstanceProfileName=identity, RoleName=new["role"])
        if old.get("tags") != new.get("tags"):
            gone = [key for key in old.get("tags") or {} if key not in (new.get("tags") or {})]
            iam.untag_instance_profile(InstanceProfileName=identity, TagKeys=gone)
            iam.tag_instance_profile(InstanceProfileName=identity, Tags=pairs(new.get("tags")))
        return tagged(new)

    def delete(self, identity: str, state: Props) -> None:
        iam = self.api(state)
        now = self.read(identity, state)
        if now and now["role"]:
            delete_if_exists(
                lambda: iam.remove_role_from_instance_profile(InstanceProfileName=identity, RoleName=now["role"])
            )
        delete_if_exists(lambda: iam.delete_instance_profile(InstanceProfileName=identity))


KINDS = (Role, RolePolicy, InstanceProfile)
