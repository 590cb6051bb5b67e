"""Networks: VPCs, subnets, routes, endpoints, security groups and their rules."""

from __future__ import annotations

import zlib
from typing import Any

from ..provider import CheckError, Made
from ..wire import Props
from .cloud import AwsKind, delete_if_exists, none_if_gone, pairs, retag, specified, tagged, tags_of

_EVERY = frozenset({"tags", "region"})
_MADE_UP = frozenset({"arn", "tagsAll", "region", "ownerId"})


class Vpc(AwsKind):
    """VPC, created with a default security group, route table and network ACL."""

    type = "aws:ec2/vpc:Vpc"
    inputs = _EVERY | {"cidrBlock", "enableDnsSupport", "enableDnsHostnames", "instanceTenancy"}
    required = frozenset({"cidrBlock"})
    replaces = frozenset({"cidrBlock", "region"})
    computed = _MADE_UP | {
        *("defaultSecurityGroupId", "defaultRouteTableId", "mainRouteTableId", "defaultNetworkAclId"),
        "dhcpOptionsId",
    }

    def check(self, inputs: Props) -> Props:
        return {"enableDnsSupport": True, "enableDnsHostnames": False, "instanceTenancy": "default", **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        made = ec2.create_vpc(
            CidrBlock=inputs["cidrBlock"],
            InstanceTenancy=inputs["instanceTenancy"],
            **specified("vpc", inputs.get("tags")),
        )["Vpc"]
        identity = made["VpcId"]
        self._set_dns(ec2, identity, inputs)
        return Made(identity, {**self._around(ec2, inputs, made), **tagged(inputs)})

    def _set_dns(self, ec2: Any, identity: str, inputs: Props) -> None:
        ec2.modify_vpc_attribute(VpcId=identity, EnableDnsSupport={"Value": inputs["enableDnsSupport"]})
        ec2.modify_vpc_attribute(VpcId=identity, EnableDnsHostnames={"Value": inputs["enableDnsHostnames"]})

    def _around(self, ec2: Any, inputs: Props, made: dict[str, Any]) -> Props:
        identity = made["VpcId"]
        here = [{"Name": "vpc-id", "Values": [identity]}]
        groups = ec2.describe_security_groups(Filters=[*here, {"Name": "group-name", "Values": ["default"]}])
        tables = ec2.describe_route_tables(Filters=here)["RouteTables"]
        lists = ec2.describe_network_acls(Filters=here)["NetworkAcls"]
        table = next((one["RouteTableId"] for one in tables), "")
        return {
            "arn": self.arn(inputs, "ec2", f"vpc/{identity}"),
            "ownerId": self.cloud.account,
            "region": self.where(inputs),
            "dhcpOptionsId": made.get("DhcpOptionsId", ""),
            "defaultSecurityGroupId": groups["SecurityGroups"][0]["GroupId"],
            "defaultRouteTableId": table,
            "mainRouteTableId": table,
            "defaultNetworkAclId": next((one["NetworkAclId"] for one in lists), ""),
        }

    def read(self, identity: str, state: Props) -> Props | None:
        ec2 = self.api(state)
        result = none_if_gone(lambda: ec2.describe_vpcs(VpcIds=[identity])["Vpcs"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        return {
            "cidrBlock": result[0]["CidrBlock"],
            "tags": tags,
            "tagsAll": tags,
            **{
                name: ec2.describe_vpc_attribute(VpcId=identity, Attribute=name)[f"{name[:1].upper()}{name[1:]}"][
                    "Value"
                ]
                for name in ("enableDnsSupport", "enableDnsHostnames")
            },
        }

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self._set_dns(self.api(new), identity, new)
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_vpc(VpcId=identity), "DependencyViolation")


class Subnet(AwsKind):
    """Subnet in one zone, given by name or id."""

    type = "aws:ec2/subnet:Subnet"
    inputs = _EVERY | {"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId", "mapPublicIpOnLaunch"}
    required = frozenset({"vpcId"})
    replaces = frozenset({"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId", "region"})
    computed = _MADE_UP | {"availabilityZone", "availabilityZoneId"}

    def check(self, inputs: Props) -> Props:
        return {"mapPublicIpOnLaunch": False, **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        place = {
            "AvailabilityZone": inputs.get("availabilityZone"),
            "AvailabilityZoneId": inputs.get("availabilityZoneId"),
        }
        made = ec2.create_subnet(
            VpcId=inputs["vpcId"],
            CidrBlock=inputs["cidrBlock"],
            **{key: value for key, value in place.items() if value},
            **specified("subnet", inputs.get("tags")),
        )["Subnet"]
        self._set_public(ec2, made["SubnetId"], inputs)
        outputs = {
            "arn": made.get("SubnetArn") or self.arn(inputs, "ec2", f"subnet/{made['SubnetId']}"),
            "ownerId": self.cloud.account,
            "region": self.where(inputs),
            "availabilityZone": made["AvailabilityZone"],
            "availabilityZoneId": made["AvailabilityZoneId"],
            **tagged(inputs),
        }
        return Made(made["SubnetId"], outputs)

    def _set_public(self, ec2: Any, identity: str, inputs: Props) -> None:
        public = {"Value": inputs["mapPublicIpOnLaunch"]}
        ec2.modify_subnet_attribute(SubnetId=identity, MapPublicIpOnLaunch=public)

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_subnets(SubnetIds=[identity])["Subnets"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        return {
            "vpcId": result[0]["VpcId"],
            "cidrBlock": result[0]["CidrBlock"],
            "availabilityZone": result[0]["AvailabilityZone"],
            "availabilityZoneId": result[0]["AvailabilityZoneId"],
            "mapPublicIpOnLaunch": result[0]["MapPublicIpOnLaunch"],
            "tags": tags,
            "tagsAll": tags,
        }

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self._set_public(self.api(new), identity, new)
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_subnet(SubnetId=identity), "DependencyViolation")


class InternetGateway(AwsKind):
    type = "aws:ec2/internetGateway:InternetGateway"
    inputs = _EVERY | {"vpcId"}
    computed = _MADE_UP

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        made = ec2.create_internet_gateway(**specified("internet-gateway", inputs.get("tags")))["InternetGateway"]
        identity = made["InternetGatewayId"]
        if inputs.get("vpcId"):
            ec2.attach_internet_gateway(InternetGatewayId=identity, VpcId=inputs["vpcId"])
        arn = self.arn(inputs, "ec2", f"internet-gateway/{identity}")
        return Made(
            identity, {"arn": arn, "ownerId": self.cloud.account, "region": self.where(inputs), **tagged(inputs)}
        )

    def read(self, identity: str, state: Props) -> Props | None:
        ec2 = self.api(state)
        result = none_if_gone(lambda: ec2.describe_internet_gateways(InternetGatewayIds=[identity])["InternetGateways"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        attached = [one["VpcId"] for one in result[0]["Attachments"]]
        return {"vpcId": next(iter(attached), ""), "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        ec2 = self.api(new)
        if old.get("vpcId") != new.get("vpcId"):
            if old.get("vpcId"):
                ec2.detach_internet_gateway(InternetGatewayId=identity, VpcId=old["vpcId"])
            if new.get("vpcId"):
                ec2.attach_internet_gateway(InternetGatewayId=identity, VpcId=new["vpcId"])
        return retag(ec2, identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        ec2 = self.api(state)
        now = self.read(identity, state)
        if now and now["vpcId"]:
            delete_if_exists(
                lambda: ec2.detach_internet_gateway(InternetGatewayId=identity, VpcId=now["vpcId"]),
                "DependencyViolation",
            )
        delete_if_exists(lambda: ec2.delete_internet_gateway(InternetGatewayId=identity))


class RouteTable(AwsKind):
    type = "aws:ec2/routeTable:RouteTable"
    inputs = _EVERY | {"vpcId"}
    required = frozenset({"vpcId"})
    replaces = frozenset({"vpcId", "region"})
    computed = _MADE_UP | {"routes"}

    def create(self, name: str, inputs: Props) -> Made:
        tags = specified("route-table", inputs.get("tags"))
        made = self.api(inputs).create_route_table(VpcId=inputs["vpcId"], **tags)["RouteTable"]
        identity = made["RouteTableId"]
        arn = self.arn(inputs, "ec2", f"route-table/{identity}")
        outputs = {"arn": arn, "ownerId": self.cloud.account, "region": self.where(inputs), "routes": []}
        return Made(identity, {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_route_tables(RouteTableIds=[identity])["RouteTables"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        return {"vpcId": result[0]["VpcId"], "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_route_table(RouteTableId=identity), "DependencyViolation")


class Route(AwsKind):
    type = "aws:ec2/route:Route"
    inputs = frozenset({"routeTableId", "destinationCidrBlock", "gatewayId", "natGatewayId", "region"})
    required = frozenset({"routeTableId"})
    replaces = frozenset({"routeTableId", "destinationCidrBlock", "region"})
    computed = frozenset({"origin", "state", "region"})

    def create(self, name: str, inputs: Props) -> Made:
        self.api(inputs).create_route(**self._wanted(inputs))
        digest = zlib.crc32(inputs["destinationCidrBlock"].encode())
        outputs = {"origin": "CreateRoute", "state": "active", "region": self.where(inputs)}
        return Made(f"r-{inputs['routeTableId']}{digest}", outputs)

    def _wanted(self, inputs: Props) -> dict[str, str]:
        names = {"gatewayId": "GatewayId", "natGatewayId": "NatGatewayId"}
        through = {names[key]: inputs[key] for key in names if inputs.get(key)}
        return {
            "RouteTableId": inputs["routeTableId"],
            "DestinationCidrBlock": inputs["destinationCidrBlock"],
            **through,
        }

    def read(self, identity: str, state: Props) -> Props | None:
        table = [state["routeTableId"]]
        result = none_if_gone(lambda: self.api(state).describe_route_tables(RouteTableIds=table)["RouteTables"])
        routes = result[0]["Routes"] if result else []
        for one in routes:
            if one.get("DestinationCidrBlock") == state["destinationCidrBlock"]:
                return {key: one[name] for key, name in (("gatewayId", "GatewayId"),) if name in one}
        return None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self.api(new).replace_route(**self._wanted(new))
        return {}

    def delete(self, identity: str, state: Props) -> None:
        target = {"RouteTableId": state["routeTableId"], "DestinationCidrBlock": state["destinationCidrBlock"]}
        delete_if_exists(lambda: self.api(state).delete_route(**target))


class RouteTableAssociation(AwsKind):
    type = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    inputs = frozenset({"routeTableId", "subnetId", "region"})
    required = frozenset({"routeTableId"})
    replaces = frozenset({"subnetId", "region"})
    computed = frozenset({"region"})

    def create(self, name: str, inputs: Props) -> Made:
        made = self.api(inputs).associate_route_table(RouteTableId=inputs["routeTableId"], SubnetId=inputs["subnetId"])
        return Made(made["AssociationId"], {"region": self.where(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        for table in self.api(state).describe_route_tables()["RouteTables"]:
            for one in table["Associations"]:
                if one.get("RouteTableAssociationId") == identity:
                    return {"routeTableId": table["RouteTableId"], "subnetId": one.get("SubnetId", "")}
        return None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        raise NotImplementedError("a route table association's id would change; the stand-in does not model that")

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).disassociate_route_table(AssociationId=identity))


class VpcEndpoint(AwsKind):
    type = "aws:ec2/vpcEndpoint:VpcEndpoint"
    inputs = _EVERY | {"vpcId", "serviceName", "vpcEndpointType", "routeTableIds"}
    required = frozenset({"vpcId"})
    replaces = frozenset({"vpcId", "serviceName", "vpcEndpointType", "region"})
    computed = _MADE_UP | {"state", "prefixListId"}

    def create(self, name: str, inputs: Props) -> Made:
        made = self.api(inputs).create_vpc_endpoint(
            VpcId=inputs["vpcId"],
            ServiceName=inputs["serviceName"],
            VpcEndpointType=inputs.get("vpcEndpointType", "Gateway"),
            RouteTableIds=inputs.get("routeTableIds", []),
            **specified("vpc-endpoint", inputs.get("tags")),
        )["VpcEndpoint"]
        identity = made["VpcEndpointId"]
        arn = self.arn(inputs, "ec2", f"vpc-endpoint/{identity}")
        outputs = {"arn": arn, "state": "available", "ownerId": self.cloud.account, "region": self.where(inputs)}
        return Made(identity, {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_vpc_endpoints(VpcEndpointIds=[identity])["VpcEndpoints"])
        there = [one for one in result or [] if one["State"].lower() not in ("deleted", "deleting")]
        if not there:
            return None
        tags = tags_of(there[0].get("Tags"))
        return {"vpcId": there[0]["VpcId"], "routeTableIds": there[0]["RouteTableIds"], "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        before, after = set(old.get("routeTableIds", [])), set(new.get("routeTableIds", []))
        if before != after:
            self.api(new).modify_vpc_endpoint(
                VpcEndpointId=identity,
                AddRouteTableIds=sorted(after - before),
                RemoveRouteTableIds=sorted(before - after),
            )
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_vpc_endpoints(VpcEndpointIds=[identity]))


class SecurityGroup(AwsKind):
    """Security group. The provider immediately revokes the allow-all egress rule that EC2 adds to each new group."""

    type = "aws:ec2/securityGroup:SecurityGroup"
    inputs = _EVERY | {"name", "description", "vpcId", "revokeRulesOnDelete"}
    replaces = frozenset({"name", "description", "vpcId", "region"})
    computed = _MADE_UP | {"ingress", "egress"}
    autoname = "name"

    def check(self, inputs: Props) -> Props:
        return {"description": "Managed by Pulumi", **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        made = ec2.create_security_group(
            GroupName=inputs["name"],
            Description=inputs["description"],
            **({"VpcId": inputs["vpcId"]} if inputs.get("vpcId") else {}),
            **specified("security-group", inputs.get("tags")),
        )
        identity = made["GroupId"]
        revoke_all(ec2, identity)
        outputs = {
            "arn": self.arn(inputs, "ec2", f"security-group/{identity}"),
            "ownerId": self.cloud.account,
            "region": self.where(inputs),
            "ingress": [],
            "egress": [],
        }
        return Made(identity, {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_security_groups(GroupIds=[identity])["SecurityGroups"])
        if not result:
            return None
        tags = tags_of(result[0].get("Tags"))
        return {"name": result[0]["GroupName"], "description": result[0]["Description"], "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_security_group(GroupId=identity), "DependencyViolation")


class DefaultSecurityGroup(AwsKind):
    """A VPC's default security group: adopted on creation, and left unchanged on deletion."""

    type = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
    inputs = _EVERY | {"vpcId", "ingress", "egress"}
    replaces = frozenset({"vpcId", "region"})
    computed = _MADE_UP | {"name", "description"}

    def check(self, inputs: Props) -> Props:
        for direction in ("ingress", "egress"):
            if inputs.get(direction):
                raise CheckError(direction, "the stand-in models a default security group without rules only")
        return inputs

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        here = [{"Name": "vpc-id", "Values": [inputs["vpcId"]]}, {"Name": "group-name", "Values": ["default"]}]
        group = ec2.describe_security_groups(Filters=here)["SecurityGroups"][0]
        identity = group["GroupId"]
        revoke_all(ec2, identity)
        if inputs.get("tags"):
            ec2.create_tags(Resources=[identity], Tags=pairs(inputs["tags"]))
        outputs = {
            "arn": self.arn(inputs, "ec2", f"security-group/{identity}"),
            "ownerId": self.cloud.account,
            "region": self.where(inputs),
            "name": group["GroupName"],
            "description": group["Description"],
        }
        return Made(identity, {**outputs, **tagged(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_security_groups(GroupIds=[identity])["SecurityGroups"])
        return {"tags": tags_of(result[0].get("Tags"))} if result else None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        revoke_all(self.api(new), identity)
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        """Do nothing: it belongs to the VPC."""


def revoke_all(ec2: Any, group: str) -> None:
    """Revoke all rules of a security group."""
    result = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    if result["IpPermissionsEgress"]:
        ec2.revoke_security_group_egress(GroupId=group, IpPermissions=result["IpPermissionsEgress"])
    if result["IpPermissions"]:
        ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=result["IpPermissions"])


class _Rule(AwsKind):
    inputs = _EVERY | {
        *("securityGroupId", "ipProtocol", "cidrIpv4", "cidrIpv6", "referencedSecurityGroupId"),
        *("fromPort", "toPort", "description"),
    }
    required = frozenset({"securityGroupId", "ipProtocol"})
    # The provider changes a rule in place, which moto does not support; a replacement has the same effect.
    replaces = inputs - {"tags"}
    computed = frozenset({"arn", "tagsAll", "region", "securityGroupRuleId"})
    verb = ""

    def create(self, name: str, inputs: Props) -> Made:
        ec2 = self.api(inputs)
        allow = getattr(ec2, f"authorize_security_group_{self.verb}")
        made = allow(
            GroupId=inputs["securityGroupId"],
            IpPermissions=[_permission(inputs)],
            **specified("security-group-rule", inputs.get("tags")),
        )["SecurityGroupRules"][0]
        identity = made["SecurityGroupRuleId"]
        arn = self.arn(inputs, "ec2", f"security-group-rule/{identity}")
        return Made(
            identity, {"arn": arn, "region": self.where(inputs), "securityGroupRuleId": identity, **tagged(inputs)}
        )

    def read(self, identity: str, state: Props) -> Props | None:
        here = [{"Name": "group-id", "Values": [state["securityGroupId"]]}]
        result = none_if_gone(lambda: self.api(state).describe_security_group_rules(Filters=here)["SecurityGroupRules"])
        for one in result or []:
            if one["SecurityGroupRuleId"] == identity:
                return {"ipProtocol": one["IpProtocol"], "tags": tags_of(one.get("Tags"))}
        return None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        return retag(self.api(new), identity, old, new)

    def delete(self, identity: str, state: Props) -> None:
        revoke = getattr(self.api(state), f"revoke_security_group_{self.verb}")
        delete_if_exists(lambda: revoke(GroupId=state["securityGroupId"], SecurityGroupRuleIds=[identity]))


def _permission(inputs: Props) -> dict[str, Any]:
    result: dict[str, Any] = {"IpProtocol": inputs["ipProtocol"]}
    about = {"Description": inputs["description"]} if inputs.get("description") else {}
    for key, name in (("fromPort", "FromPort"), ("toPort", "ToPort")):
        if key in inputs:
            result[name] = inputs[key]
    if "cidrIpv4" in inputs:
        result["IpRanges"] = [{"CidrIp": inputs["cidrIpv4"], **about}]
    if "cidrIpv6" in inputs:
        result["Ipv6Ranges"] = [{"CidrIpv6": inputs["cidrIpv6"], **about}]
    if "referencedSecurityGroupId" in inputs:
        result["UserIdGroupPairs"] = [{"GroupId": inputs["referencedSecurityGroupId"], **about}]
    return result


class IngressRule(_Rule):
    type = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    verb = "ingress"


class EgressRule(_Rule):
    type = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    verb = "egress"


KINDS = (
    Vpc,
    Subnet,
    InternetGateway,
    RouteTable,
    Route,
    RouteTableAssociation,
    VpcEndpoint,
    SecurityGroup,
    DefaultSecurityGroup,
    IngressRule,
    EgressRule,
)
