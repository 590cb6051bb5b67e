"""EC2 actions that moto lacks or implements incompletely. Each function is one action; `forward` passes a call on to
moto.

Sources: the table in tests/standins/README.md; codes and messages as in the EC2 API reference.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping

from ..faults import Call
from . import moto_side, spot
from .account import Account
from .answers import Answer, RefusedError, ec2_answer
from .calls import filters, numbered, tags_for
from .handlers import Forward, Handler

USER_DATA_BYTES = 16_384
_ID = re.compile(r"<instanceId>(i-[0-9a-f]+)</instanceId>")
_STATE = re.compile(r"(<instanceId>(i-[0-9a-f]+)</instanceId>.*?<instanceState>)(.*?)(</instanceState>)", re.DOTALL)


def zone_of(call: Call) -> str:
    """Return the zone of a RunInstances call; "" if its subnet is unknown."""
    params = call.params
    if zone := params.get("Placement.AvailabilityZone", ""):
        return zone
    subnet = params.get("SubnetId") or params.get("NetworkInterface.1.SubnetId")
    if not subnet:
        return f"{call.region}a"
    subnets = moto_side.ec2(call.region).subnets
    return next((zones[subnet].availability_zone for zones in subnets.values() if subnet in zones), "")


def run_instances(account: Account, call: Call, forward: Forward) -> Answer:
    """Check capacity, quotas, client tokens, placement groups and profiles; launch, create Spot requests, and boot the
    machines."""
    params = call.params
    if params.get("DryRun") == "true":
        return forward()
    known = account.tokens.find(call.caller, call.region, call.zone, params)
    if known is not None:
        return known.edited(lambda text: _STATE.sub(lambda found: _current_state(account, found), text))
    _check_user_data(params)
    _check_placement_group(account, call)
    _check_profile(account, params)
    least, most = int(params.get("MinCount", "1")), int(params.get("MaxCount", "1"))
    market = "spot" if params.get("InstanceMarketOptions.MarketType") == "spot" else "on-demand"
    reservation = account.reservations.target(call, account.running(call.region))
    count = least
    if reservation is None:
        count = account.capacity.admit(
            params.get("InstanceType", ""),
            region=call.region,
            zone=call.zone,
            market=market,
            least=least,
            most=most,
            there=account.running(call.region),
        )
    # Rewrite the request only where moto requires it, since that invalidates the signature.
    wanted = _first_card_only({**params, "MinCount": str(count), "MaxCount": str(count)})
    answer = forward(None if wanted == {**params, "MaxCount": str(count)} else wanted)
    if answer.status != 200:
        return _profile_unknown(answer, params)
    for instance_id in dict.fromkeys(_ID.findall(answer.body.decode())):
        if reservation is not None:
            account.reservations.use(instance_id, reservation)
        answer = _settle(account, call, instance_id, market, answer)
    account.tokens.keep(call.caller, call.region, call.zone, params, answer)
    return answer


def terminate_instances(account: Account, call: Call, forward: Forward) -> Answer:
    """Terminate instances and cut their power. Repeating it is fine, although moto fails on ended instances'
    interfaces."""
    _check_known(account, call)
    asked = numbered(call.params, "InstanceId")
    over = [i.id for i in moto_side.ec2(call.region).all_instances() if i.id in asked and i.state == "terminated"]
    before = {i.id for i in account.running(call.region)}
    answer = _terminate_rest(call, forward, [one for one in asked if one not in over]) if over else forward()
    if answer.status == 200:
        for instance_id in asked:
            if instance_id in before:
                instance = account.instance(instance_id)
                account.ended(instance, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated")
    return answer


def _terminate_rest(call: Call, forward: Forward, rest: list[str]) -> Answer:
    """Terminate the instances that have not ended. The rewritten request has an invalid signature, so callers under
    enforced policies terminate one instance per call."""
    if not rest:
        return ec2_answer(call.action, "<instancesSet/>")
    params = {name: value for name, value in call.params.items() if not name.startswith("InstanceId.")}
    return forward(params | {f"InstanceId.{number}": one for number, one in enumerate(rest, 1)})


def describe_instances(account: Account, call: Call, forward: Forward) -> Answer:
    """Describe instances, except those not visible yet, with the filters that moto lacks."""
    _check_known(account, call)
    reservations = moto_side.ec2(call.region).reservations
    kept = dict(reservations)
    tokens, lifecycles, params = _own_filters(call.params)
    try:
        for identity, reservation in kept.items():
            instances = reservation.instances
            if (
                any(account.is_young(instance.id) for instance in instances)
                or (tokens and not any(instance.client_token in tokens for instance in instances))
                or (lifecycles and not any((instance.lifecycle or "") in lifecycles for instance in instances))
            ):
                del reservations[identity]
        return forward() if params == call.params else forward(params)
    finally:
        for identity, reservation in kept.items():
            reservations[identity] = reservation


def reboot_instances(account: Account, call: Call, forward: Forward) -> Answer:
    _check_known(account, call)
    answer = forward()
    if answer.status == 200:
        for instance_id in numbered(call.params, "InstanceId"):
            if instance_id in account.machines:
                account.reboot(instance_id)
    return answer


def known_only(account: Account, call: Call, forward: Forward) -> Answer:
    """Handle any action on instances by id."""
    _check_known(account, call)
    return forward()


def get_console_output(account: Account, call: Call, forward: Forward) -> Answer:
    """Return the machine's console output."""
    instance_id = call.params.get("InstanceId", "")
    _check_exists(account, call, [instance_id])
    machine = account.machines.get(instance_id)
    text = base64.b64encode(machine.console.encode() if machine else b"").decode()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    return ec2_answer(
        call.action, f"<instanceId>{instance_id}</instanceId><timestamp>{stamp}</timestamp><output>{text}</output>"
    )


def delete_security_group(account: Account, call: Call, forward: Forward) -> Answer:
    """Delete a security group. Refuse while an instance uses it (even shutting-down) or an unattached interface
    does."""
    group = call.params.get("GroupId", "")
    loose = [eni for eni in moto_side.ec2(call.region).enis.values() if not eni.attachment_id]
    if any(group in [used.id for used in eni.group_set] for eni in loose):
        raise RefusedError("DependencyViolation", f"resource {group} has a dependent object")
    for instance in moto_side.ec2(call.region).all_instances():
        used = {g.id for g in instance.security_groups} | {
            g.id for nic in instance.nics.values() for g in nic.group_set
        }
        if instance.state != "terminated" and group in used:
            raise RefusedError("DependencyViolation", f"resource {group} has a dependent object")
    return forward()


# -- Spot


def cancel_spot_instance_requests(account: Account, call: Call, forward: Forward) -> Answer:
    """Cancel Spot requests; they remain, as cancelled, and their instances continue."""
    requests = moto_side.ec2(call.region).spot_instance_requests
    asked = numbered(call.params, "SpotInstanceRequestId")
    items = ""
    for identity in asked:
        if identity not in requests:
            text = f"The spot instance request ID '{identity}' does not exist"
            raise RefusedError("InvalidSpotInstanceRequestID.NotFound", text)
        if requests[identity].state == "active":
            requests[identity].state = "cancelled"
        items += (
            f"<item><spotInstanceRequestId>{identity}</spotInstanceRequestId>"
            f"<state>{requests[identity].state}</state></item>"
        )
    return ec2_answer(call.action, f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>")


def describe_capacity_reservations(account: Account, call: Call, forward: Forward) -> Answer:
    return account.reservations.describe(call, account.running(call.region))


# -- checks that moto does not make


def _check_known(account: Account, call: Call) -> None:
    young = [one for one in _instance_ids(call.params) if account.is_young(one)]
    if young:
        raise RefusedError("InvalidInstanceID.NotFound", f"The instance ID '{young[0]}' does not exist")


def _check_exists(account: Account, call: Call, instance_ids: list[str]) -> None:
    known = {instance.id for instance in moto_side.ec2(call.region).all_instances()}
    for one in instance_ids:
        if one not in known:
            raise RefusedError("InvalidInstanceID.NotFound", f"The instance ID '{one}' does not exist")


def _instance_ids(params: Mapping[str, str]) -> list[str]:
    named = [*numbered(params, "InstanceId"), *numbered(params, "ResourceId"), params.get("InstanceId", "")]
    return [one for one in named if one.startswith("i-")]


def _check_user_data(params: Mapping[str, str]) -> None:
    if len(base64.b64decode(params.get("UserData", ""))) > USER_DATA_BYTES:
        raise RefusedError("InvalidParameterValue", f"User data is limited to {USER_DATA_BYTES} bytes")


def _check_placement_group(account: Account, call: Call) -> None:
    name = call.params.get("Placement.GroupName")
    if name and f"{call.region}/{name}" not in account.groups:
        raise RefusedError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def _check_profile(account: Account, params: Mapping[str, str]) -> None:
    """Check the instance profile. EC2 sees a new profile or its role later than IAM (eventual consistency)."""
    profile = moto_side.profile(_profile_name(params)) if _profile_name(params) else None
    if profile is None:
        return
    age = time.time() - profile.create_date.timestamp()
    if age < account.profile_lag_s:
        raise _no_profile(params)
    if not profile.roles:
        raise RefusedError("InvalidParameterValue", f'IAM Instance Profile "{profile.arn}" has no associated IAM Roles')


def _profile_name(params: Mapping[str, str]) -> str:
    return params.get("IamInstanceProfile.Name") or params.get("IamInstanceProfile.Arn") or ""


def _no_profile(params: Mapping[str, str]) -> RefusedError:
    field = "name" if "IamInstanceProfile.Name" in params else "arn"
    text = f"Value ({_profile_name(params)}) for parameter iamInstanceProfile.{field} is invalid. "
    return RefusedError("InvalidParameterValue", f"{text}Invalid IAM Instance Profile {field}")


def _profile_unknown(answer: Answer, params: Mapping[str, str]) -> Answer:
    """Replace IAM's NoSuchEntity, which moto passes on, by EC2's error."""
    if b"<Code>NoSuchEntity" in answer.body:
        raise _no_profile(params)
    return answer


# -- instance properties that moto omits


def _settle(account: Account, call: Call, instance_id: str, market: str, answer: Answer) -> Answer:
    instance = account.instance(instance_id)
    params = call.params
    instance.placement.group_name = params.get("Placement.GroupName", "")
    for device in instance.block_device_mapping.values():
        if params.get("BlockDeviceMapping.1.Ebs.DeleteOnTermination") != "false":
            device.delete_on_termination = True
    for index, nic in instance.nics.items():
        said = f"NetworkInterface.{index + 1}"
        nic.delete_on_termination = params.get(f"{said}.DeleteOnTermination") != "false"
        nic.interface_type = params.get(f"{said}.InterfaceType", nic.interface_type)
        nic.add_tags(tags_for(params, "network-interface"))
    if market == "spot":
        price = params.get("InstanceMarketOptions.SpotOptions.MaxPrice", "")
        request = spot.open_request(instance, call.region, tags_for(params, "spot-instances-request"), price)
        mark, put = (
            f"<instanceId>{instance_id}</instanceId>",
            f"<spotInstanceRequestId>{request.id}</spotInstanceRequestId>",
        )
        answer = answer.edited(lambda text: text.replace(mark, mark + put))
    elif params.get("InstanceMarketOptions.MarketType") == "capacity-block":
        instance.lifecycle = "capacity-block"
    account.start(instance)
    return answer


def _first_card_only(params: Mapping[str, str]) -> dict[str, str]:
    """Drop interfaces of further network cards: moto identifies interfaces by device index only, so they would
    overwrite others."""
    further = {
        key.removesuffix("NetworkCardIndex")
        for key, value in params.items()
        if re.fullmatch(r"NetworkInterface\.\d+\.NetworkCardIndex", key) and value != "0"
    }
    return {key: value for key, value in params.items() if not key.startswith(tuple(further))}


def _current_state(account: Account, found: re.Match[str]) -> str:
    instance = account.instance(found[2])
    return f"{found[1]}<code>{instance.state_code}</code><name>{instance.state}</name>{found[4]}"


def _own_filters(params: Mapping[str, str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the values of `client-token` and `instance-lifecycle`, and the parameters without these two filters."""
    own: dict[str, list[str]] = {"client-token": [], "instance-lifecycle": []}
    dropped: set[str] = set()
    for key, name in params.items():
        if re.fullmatch(r"Filter\.\d+\.Name", key) and name in own:
            prefix = key.removesuffix(".Name")
            own[name] += numbered(params, f"{prefix}.Value")
            dropped.add(prefix + ".")
    if not dropped:
        return [], [], dict(params)
    left = [(name, values) for name, values in filters(params) if name not in own]
    rest = {key: value for key, value in params.items() if not key.startswith("Filter.")}
    for number, (name, values) in enumerate(left, 1):
        rest[f"Filter.{number}.Name"] = name
        rest |= {f"Filter.{number}.Value.{index}": value for index, value in enumerate(values, 1)}
    return own["client-token"], own["instance-lifecycle"], rest


HANDLERS: dict[tuple[str, str], Handler] = {
    ("ec2", "RunInstances"): run_instances,
    ("ec2", "TerminateInstances"): terminate_instances,
    ("ec2", "DescribeInstances"): describe_instances,
    ("ec2", "DescribeInstanceStatus"): known_only,
    ("ec2", "CreateTags"): known_only,
    ("ec2", "RebootInstances"): reboot_instances,
    ("ec2", "GetConsoleOutput"): get_console_output,
    ("ec2", "DeleteSecurityGroup"): delete_security_group,
    ("ec2", "CancelSpotInstanceRequests"): cancel_spot_instance_requests,
    ("ec2", "DescribeCapacityReservations"): describe_capacity_reservations,
}
