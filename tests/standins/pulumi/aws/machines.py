"""Compute resources: launch templates, placement groups, Auto Scaling groups, instances."""

from __future__ import annotations

import base64
import time
from typing import Any

from botocore.exceptions import ClientError

from ..provider import CheckError, Made, PartialError
from ..wire import Props
from .cloud import (
    TIMEOUT_S,
    AwsKind,
    code_of,
    delete_if_exists,
    none_if_gone,
    request,
    retag,
    shape_of,
    specified,
    tagged,
    tags_of,
)

_TEMPLATE_RENAMES = {"vpcSecurityGroupIds": "SecurityGroupIds"}
_INTERFACE_RENAMES = {"securityGroups": "Groups"}


class LaunchTemplate(AwsKind):
    """Launch template. A change of its data adds a version; with updateDefaultVersion that becomes the default."""

    type = "aws:ec2/launchTemplate:LaunchTemplate"
    data = frozenset(
        {
            *("imageId", "instanceType", "keyName", "userData", "ebsOptimized", "iamInstanceProfile", "monitoring"),
            *("blockDeviceMappings", "networkInterfaces", "vpcSecurityGroupIds", "securityGroupNames", "placement"),
            *("instanceMarketOptions", "capacityReservationSpecification", "metadataOptions", "tagSpecifications"),
            *("instanceInitiatedShutdownBehavior", "disableApiTermination", "disableApiStop", "cpuOptions"),
            "instanceRequirements",
        }
    )
    inputs = data | {"name", "description", "updateDefaultVersion", "defaultVersion", "tags", "region"}
    replaces = frozenset({"name", "region"})
    computed = frozenset({"arn", "tagsAll", "region", "latestVersion", "defaultVersion"})
    autoname = "name"

    def check(self, inputs: Props) -> Props:
        if inputs.get("updateDefaultVersion") and "defaultVersion" in inputs:
            raise CheckError("defaultVersion", "conflicts with update_default_version")
        return inputs

    def create(self, name: str, inputs: Props) -> Made:
        made = self.api(inputs).create_launch_template(
            LaunchTemplateName=inputs["name"],
            VersionDescription=inputs.get("description", ""),
            LaunchTemplateData=self._data(inputs),
            **specified("launch-template", inputs.get("tags")),
        )["LaunchTemplate"]
        identity = made["LaunchTemplateId"]
        outputs = {
            "arn": self.arn(inputs, "ec2", f"launch-template/{identity}"),
            "region": self.where(inputs),
            "latestVersion": made["LatestVersionNumber"],
            "defaultVersion": made["DefaultVersionNumber"],
        }
        return Made(identity, {**outputs, **tagged(inputs)})

    def _data(self, inputs: Props) -> dict[str, Any]:
        given = {name: value for name, value in inputs.items() if name in self.data}
        shape = shape_of(self.api(inputs), "RequestLaunchTemplateData")
        made: dict[str, Any] = request(shape, given, {**_TEMPLATE_RENAMES, **_INTERFACE_RENAMES})
        return made

    def read(self, identity: str, state: Props) -> Props | None:
        ec2 = self.api(state)
        result = none_if_gone(lambda: ec2.describe_launch_templates(LaunchTemplateIds=[identity])["LaunchTemplates"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        numbers = {
            "latestVersion": result[0]["LatestVersionNumber"],
            "defaultVersion": result[0]["DefaultVersionNumber"],
        }
        return {**numbers, "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        ec2 = self.api(new)
        outputs = retag(ec2, identity, old, new)
        parts = (*self.data, "description")
        if any(old.get(name) != new.get(name) for name in parts):
            made = ec2.create_launch_template_version(
                LaunchTemplateId=identity,
                VersionDescription=new.get("description", ""),
                LaunchTemplateData=self._data(new),
            )["LaunchTemplateVersion"]
            outputs["latestVersion"] = made["VersionNumber"]
        wanted = new.get("defaultVersion")
        if new.get("updateDefaultVersion"):
            wanted = outputs.get("latestVersion")
        if wanted:
            ec2.modify_launch_template(LaunchTemplateId=identity, DefaultVersion=str(wanted))
            outputs["defaultVersion"] = int(wanted)
        return outputs

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_launch_template(LaunchTemplateId=identity))


class PlacementGroup(AwsKind):
    """Placement group. `id` is its name."""

    type = "aws:ec2/placementGroup:PlacementGroup"
    inputs = frozenset({"name", "strategy", "partitionCount", "spreadLevel", "tags", "region"})
    required = frozenset({"strategy"})
    replaces = inputs - {"tags"}
    computed = frozenset({"arn", "tagsAll", "region", "placementGroupId"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        tags = specified("placement-group", inputs.get("tags"))
        ec2.create_placement_group(GroupName=inputs["name"], Strategy=inputs["strategy"], **tags)
        result = ec2.describe_placement_groups(GroupNames=[inputs["name"]])["PlacementGroups"][0]
        outputs = {
            "arn": self.arn(inputs, "ec2", f"placement-group/{inputs['name']}"),
            "region": self.where(inputs),
            "placementGroupId": result.get("GroupId", ""),
        }
        return Made(inputs["name"], {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        ec2 = self.api(state)
        try:
            result = ec2.describe_placement_groups(GroupNames=[identity])["PlacementGroups"]
        except ClientError as error:
            if code_of(error) == "InvalidPlacementGroup.Unknown":
                return None
            raise
        return {"name": identity, "strategy": result[0]["Strategy"]} if result else None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        return retag(self.api(new), self._id(identity, new), old, new)

    def _id(self, name: str, inputs: Props) -> str:
        result = self.api(inputs).describe_placement_groups(GroupNames=[name])["PlacementGroups"]
        return str(result[0]["GroupId"])

    def delete(self, identity: str, state: Props) -> None:
        if self.read(identity, state) is not None:
            delete_if_exists(
                lambda: self.api(state).delete_placement_group(GroupName=identity), "InvalidPlacementGroup.InUse"
            )


class Group(AwsKind):
    """Auto Scaling group. It is scaled to zero before it is deleted; waitForCapacityTimeout "0" disables waiting.

    `instanceRefresh` is a feature of the provider, not of the API: it starts a refresh when the template, the mixed
    instances policy, the subnets or a trigger change.
    """

    type = "aws:autoscaling/group:Group"
    service = "autoscaling"
    inputs = frozenset(
        {
            *("name", "minSize", "maxSize", "desiredCapacity", "vpcZoneIdentifiers", "availabilityZones", "tags"),
            *("launchTemplate", "mixedInstancesPolicy", "capacityRebalance", "healthCheckType", "defaultCooldown"),
            *("healthCheckGracePeriod", "terminationPolicies", "newInstancesProtectedFromScaleIn", "placementGroup"),
            *("maxInstanceLifetime", "suspendedProcesses", "initialLifecycleHooks", "instanceRefresh"),
            *("waitForCapacityTimeout", "forceDelete", "region", "protectFromScaleIn"),
        }
    )
    required = frozenset({"minSize", "maxSize"})
    replaces = frozenset({"name", "initialLifecycleHooks", "region", "placementGroup"})
    computed = frozenset({"arn", "region", "desiredCapacity", "healthCheckGracePeriod", "defaultCooldown"})
    autoname = "name"
    request_names = frozenset(
        {
            *("minSize", "maxSize", "desiredCapacity", "launchTemplate", "mixedInstancesPolicy", "capacityRebalance"),
            *(
                "healthCheckType",
                "healthCheckGracePeriod",
                "defaultCooldown",
                "terminationPolicies",
                "availabilityZones",
            ),
            *("maxInstanceLifetime", "placementGroup"),
        }
    )
    refreshing = ("launchTemplate", "mixedInstancesPolicy", "vpcZoneIdentifiers", "availabilityZones")

    def check(self, inputs: Props) -> Props:
        sources = [name for name in ("launchTemplate", "mixedInstancesPolicy") if inputs.get(name)]
        if len(sources) != 1:
            raise CheckError("launchTemplate", "one of launch_template and mixed_instances_policy must be specified")
        return {"waitForCapacityTimeout": "10m", "healthCheckGracePeriod": 300, **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        scaling, identity = self.api(inputs), inputs["name"]
        hooks = [_hook(one) for one in inputs.get("initialLifecycleHooks", [])]
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=identity,
            Tags=_group_tags(identity, inputs),
            **self._wanted(inputs, "CreateAutoScalingGroupType"),
            **({"LifecycleHookSpecificationList": hooks} if hooks else {}),
        )
        self._suspend(scaling, identity, [], inputs.get("suspendedProcesses", []))
        result = self._told(scaling, identity)
        assert result is not None
        outputs = {
            "arn": result["AutoScalingGroupARN"],
            "region": self.where(inputs),
            "desiredCapacity": result["DesiredCapacity"],
            "defaultCooldown": result["DefaultCooldown"],
        }
        self._wait(identity, inputs, outputs)
        return Made(identity, outputs)

    def _wanted(self, inputs: Props, shape: str) -> dict[str, Any]:
        given = {name: value for name, value in inputs.items() if name in self.request_names}
        for name in ("launchTemplate",):
            if given.get(name):
                given[name] = _template(given[name])
        if subnets := inputs.get("vpcZoneIdentifiers"):
            given["vpcZoneIdentifier"] = ",".join(subnets)
        made: dict[str, Any] = request(shape_of(self.api(inputs), shape), given)
        return made

    def _wait(self, identity: str, inputs: Props, outputs: Props) -> None:
        """Wait for the desired capacity. Raises PartialError on timeout."""
        if inputs["waitForCapacityTimeout"] in ("0", "0s"):
            return
        until = time.monotonic() + TIMEOUT_S
        while True:
            result = self._told(self.api(inputs), identity)
            assert result is not None
            ready = sum(one["LifecycleState"] == "InService" for one in result["Instances"])
            if ready >= result["DesiredCapacity"]:
                return
            if time.monotonic() > until:
                text = (
                    f"waiting for Auto Scaling Group ({identity}) capacity satisfied: timeout while waiting for state"
                )
                raise PartialError(identity, outputs, text)
            time.sleep(0.1)

    def _suspend(self, scaling: Any, identity: str, old: list[str], new: list[str]) -> None:
        if gone := sorted(set(old) - set(new)):
            scaling.resume_processes(AutoScalingGroupName=identity, ScalingProcesses=gone)
        if come := sorted(set(new) - set(old)):
            scaling.suspend_processes(AutoScalingGroupName=identity, ScalingProcesses=come)

    def _told(self, scaling: Any, identity: str) -> dict[str, Any] | None:
        result = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[identity])["AutoScalingGroups"]
        return dict(result[0]) if result else None

    def read(self, identity: str, state: Props) -> Props | None:
        result = self._told(self.api(state), identity)
        if result is None:
            return None
        return {
            "name": identity,
            "minSize": result["MinSize"],
            "maxSize": result["MaxSize"],
            "desiredCapacity": result["DesiredCapacity"],
            "suspendedProcesses": sorted(one["ProcessName"] for one in result.get("SuspendedProcesses", [])),
        }

    def update(self, identity: str, old: Props, new: Props) -> Props:
        scaling = self.api(new)
        wanted = self._wanted(new, "UpdateAutoScalingGroupType")
        scaling.update_auto_scaling_group(AutoScalingGroupName=identity, **wanted)
        self._suspend(scaling, identity, old.get("suspendedProcesses", []), new.get("suspendedProcesses", []))
        after = {one["key"] for one in new.get("tags", [])}
        if gone := [one for one in _group_tags(identity, old) if one["Key"] not in after]:
            scaling.delete_tags(Tags=[{key: tag[key] for key in tag if key != "Value"} for tag in gone])
        if new.get("tags") and new["tags"] != old.get("tags"):
            scaling.create_or_update_tags(Tags=_group_tags(identity, new))
        triggers = (*self.refreshing, *(new.get("instanceRefresh") or {}).get("triggers", []))
        if new.get("instanceRefresh") and any(old.get(name) != new.get(name) for name in triggers):
            self._refresh(scaling, identity, new["instanceRefresh"])
        result = self._told(scaling, identity)
        assert result is not None
        outputs = {"desiredCapacity": result["DesiredCapacity"]}
        self._wait(identity, new, outputs)
        return outputs

    def _refresh(self, scaling: Any, identity: str, wanted: Props) -> None:
        shape = shape_of(scaling, "StartInstanceRefreshType")
        given = {name: value for name, value in wanted.items() if name != "triggers"}
        scaling.start_instance_refresh(AutoScalingGroupName=identity, **request(shape, given))

    def delete(self, identity: str, state: Props) -> None:
        scaling = self.api(state)
        if self._told(scaling, identity) is None:
            return
        if not state.get("forceDelete"):
            scaling.update_auto_scaling_group(AutoScalingGroupName=identity, MinSize=0, MaxSize=0, DesiredCapacity=0)
            self._drain(scaling, identity)
        force = bool(state.get("forceDelete"))
        delete_if_exists(
            lambda: scaling.delete_auto_scaling_group(AutoScalingGroupName=identity, ForceDelete=force),
            *("ResourceInUse", "ScalingActivityInProgress"),
        )

    def _drain(self, scaling: Any, identity: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while (result := self._told(scaling, identity)) and result["Instances"]:
            if time.monotonic() > until:
                raise TimeoutError(f"waiting for Auto Scaling Group ({identity}) drain: timeout")
            time.sleep(0.1)


def _template(given: Props) -> Props:
    names = {"id": "launchTemplateId", "name": "launchTemplateName", "version": "version"}
    return {names[key]: value for key, value in given.items()}


def _hook(given: Props) -> dict[str, Any]:
    names = {"name": "LifecycleHookName", "notificationTargetArn": "NotificationTargetARN", "roleArn": "RoleARN"}
    return {names.get(key, f"{key[:1].upper()}{key[1:]}"): value for key, value in given.items()}


def _group_tags(identity: str, inputs: Props) -> list[dict[str, Any]]:
    return [
        {
            "ResourceId": identity,
            "ResourceType": "auto-scaling-group",
            "Key": one["key"],
            "Value": one["value"],
            "PropagateAtLaunch": one["propagateAtLaunch"],
        }
        for one in inputs.get("tags", [])
    ]


class Instance(AwsKind):
    """EC2 instance. A change of user data has no effect: userDataReplaceOnChange is accepted but not implemented. A
    template's "$Latest" is resolved only on creation."""

    type = "aws:ec2/instance:Instance"
    inputs = frozenset(
        {
            *("ami", "instanceType", "launchTemplate", "subnetId", "vpcSecurityGroupIds", "iamInstanceProfile"),
            *("userData", "userDataBase64", "userDataReplaceOnChange", "tags", "region", "availabilityZone", "keyName"),
        }
    )
    replaces = frozenset({"ami", "launchTemplate", "subnetId", "availabilityZone", "keyName", "region"})
    computed = frozenset(
        {
            "arn",
            "tagsAll",
            "region",
            "instanceState",
            "publicIp",
            "privateIp",
            "availabilityZone",
            "primaryNetworkInterfaceId",
        }
    )

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        wanted: dict[str, Any] = {"MinCount": 1, "MaxCount": 1, **specified("instance", inputs.get("tags"))}
        for key, field in (("ami", "ImageId"), ("instanceType", "InstanceType"), ("subnetId", "SubnetId")):
            if key in inputs:
                wanted[field] = inputs[key]
        if "vpcSecurityGroupIds" in inputs:
            wanted["SecurityGroupIds"] = inputs["vpcSecurityGroupIds"]
        if "iamInstanceProfile" in inputs:
            wanted["IamInstanceProfile"] = {"Name": inputs["iamInstanceProfile"]}
        if "launchTemplate" in inputs:
            wanted["LaunchTemplate"] = request(
                shape_of(ec2, "LaunchTemplateSpecification"), _template(inputs["launchTemplate"])
            )
        if text := self._user_data(inputs):
            wanted["UserData"] = text
        identity = ec2.run_instances(**wanted)["Instances"][0]["InstanceId"]
        self._wait(ec2, identity, "running")
        made = ec2.describe_instances(InstanceIds=[identity])["Reservations"][0]["Instances"][0]
        return Made(identity, {**self._outputs(made, inputs), **tagged(inputs)})

    def _user_data(self, inputs: Props) -> str:
        if "userDataBase64" in inputs:
            return base64.b64decode(inputs["userDataBase64"]).decode()
        return str(inputs.get("userData", ""))

    def _outputs(self, told: dict[str, Any], inputs: Props) -> Props:
        return {
            "arn": self.arn(inputs, "ec2", f"instance/{told['InstanceId']}"),
            "region": self.where(inputs),
            "instanceState": told["State"]["Name"],
            "availabilityZone": told["Placement"]["AvailabilityZone"],
            "publicIp": told.get("PublicIpAddress", ""),
            "privateIp": told.get("PrivateIpAddress", ""),
        }

    def read(self, identity: str, state: Props) -> Props | None:
        ec2 = self.api(state)
        result = none_if_gone(lambda: ec2.describe_instances(InstanceIds=[identity])["Reservations"])
        machine = result[0]["Instances"][0] if result else None
        if machine is None or machine["State"]["Name"] in ("terminated", "shutting-down"):
            return None
        tags = tags_of(machine.get("Tags"))
        return {**self._outputs(machine, state), "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        ec2 = self.api(new)
        if old.get("instanceType") != new.get("instanceType"):
            raise NotImplementedError("the stand-in does not stop an instance to change its type")
        return retag(ec2, identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        ec2 = self.api(state)
        delete_if_exists(lambda: ec2.terminate_instances(InstanceIds=[identity]))
        self._wait(ec2, identity, "terminated", "gone")

    def _wait(self, ec2: Any, identity: str, *states: str) -> None:
        """Poll until the instance is in one of these states. Raises TimeoutError."""
        until = time.monotonic() + TIMEOUT_S
        while (now := self._state(ec2, identity)) not in states:
            if time.monotonic() > until:
                raise TimeoutError(f"waiting for EC2 Instance ({identity}) to be {states[0]}: it is {now}")
            time.sleep(0.1)

    def _state(self, ec2: Any, identity: str) -> str:
        result = none_if_gone(lambda: ec2.describe_instances(InstanceIds=[identity])["Reservations"])
        return str(result[0]["Instances"][0]["State"]["Name"]) if result else "gone"


KINDS = (LaunchTemplate, PlacementGroup, Group, Instance)
