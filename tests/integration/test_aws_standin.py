"""Tests of the AWS stand-in: it answers an unmodified boto3 over HTTP like AWS, as other tests assume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError, SSLError

from cloudgpu.runtime.notices.aws import looks
from cloudgpu.tests.standins.aws import Aws, AwsControl
from cloudgpu.tests.standins.aws.control import KEY, environ
from cloudgpu.tests.standins.faults import HANG, HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error
from cloudgpu.tests.standins.tls import make_certificate

IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
TYPE = "g4dn.xlarge"
PATIENT_S = 180.0
SESSION = boto3.session.Session(KEY, "secret")  # shared: loading boto3's models is slow


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws(boot=True) as aws:
        yield aws


class Account:
    """boto3 clients for the stand-in, and the launch that most tests make."""

    def __init__(self, aws: Aws) -> None:
        self.url, self.control = aws.url, aws.control
        self.ec2, self.iam, self.s3, self.ssm = (self.client(name) for name in ("ec2", "iam", "s3", "ssm"))
        self.image: str = self.ssm.get_parameter(Name=IMAGE)["Parameter"]["Value"]
        self.subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in self.ec2.describe_subnets()["Subnets"]}

    def client(self, service: str, region: str = "us-east-1", *, tries: int = 1, **more: Any) -> Any:
        """Return a boto3 client without retries, unless `tries` allows more."""
        config = Config(retries={"mode": "standard", "total_max_attempts": tries}, **more)
        return SESSION.client(service, region_name=region, endpoint_url=self.url, config=config)  # type: ignore[call-overload]

    def run(self, zone: str = "us-east-1a", *, spot: bool = False, tries: int = 1, **more: Any) -> dict[str, Any]:
        request: dict[str, Any] = {
            "ImageId": self.image,
            "InstanceType": TYPE,
            "MinCount": 1,
            "MaxCount": 1,
            "SubnetId": self.subnets[zone],
            **more,
        }
        if spot:
            request["InstanceMarketOptions"] = {"MarketType": "spot"}
        ec2 = self.ec2 if tries == 1 else self.client("ec2", tries=tries)
        return dict(ec2.run_instances(**request)["Instances"][0])

    def state(self, instance: dict[str, Any]) -> str:
        found = self.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])


@pytest.fixture
def account(server: Aws) -> Account:
    server.control.reset()
    return Account(server)


def refusal(call: Callable[[], Any]) -> tuple[str, int, str]:
    """Return code, status and message of the ClientError that the call must raise."""
    with pytest.raises(ClientError) as caught:
        call()
    answer: Any = caught.value.response
    failure = answer.get("Error", {})
    return failure.get("Code", ""), answer["ResponseMetadata"]["HTTPStatusCode"], failure.get("Message", "")


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENT_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


# -- faults


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (error("RequestLimitExceeded", 503, "Request limit exceeded."), ("RequestLimitExceeded", 503)),
        (error("InternalError", 500), ("InternalError", 500)),
        (HTML, (None, 503)),
    ],
)
@pytest.mark.parametrize("service", ["ec2", "iam", "ssm", "s3"])
def test_an_error_in_the_services_own_form(account: Account, service: str, fault: Fault, expected: Any) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "ec2": account.ec2.describe_vpcs,
        "iam": account.iam.list_roles,
        "ssm": lambda: account.ssm.get_parameter(Name=IMAGE),
        "s3": account.s3.list_buckets,
    }
    account.control.fail("*", fault, where={"service": service})
    code, status, _ = refusal(calls[service])
    # botocore finds no error code in a well-formed HTML page; what it does instead depends on the service's protocol.
    assert (code if expected[0] else None, status) == expected
    calls[service]()  # a fault occurs once by default


def test_a_rule_skips_and_counts_and_looks_at_parameters(account: Account) -> None:
    account.control.fail("RunInstances", error("X"), where={"zone": "us-east-1b", "InstanceType": "g4*"}, skip=1)
    account.run("us-east-1a")
    account.run("us-east-1b")
    assert refusal(lambda: account.run("us-east-1b"))[0] == "X"
    account.run("us-east-1b")
    faults = [(call.zone, call.fault) for call in account.control.calls("RunInstances")]
    assert faults == [("us-east-1a", ""), ("us-east-1b", ""), ("us-east-1b", "error"), ("us-east-1b", "")]


def test_a_reset_connection_did_nothing_and_a_lost_answer_everything(account: Account) -> None:
    for fault, there in ((RESET, 1), (LOSE, 1)):
        account.control.fail("RunInstances", fault)
        account.run(tries=3, ClientToken=fault.kind)
        assert len(account.ec2.describe_instances()["Reservations"]) == there + (fault is LOSE)
    assert len(account.control.calls("RunInstances")) == 4


def test_a_hang_lasts(account: Account) -> None:
    account.control.fail("DescribeVpcs", HANG)
    with pytest.raises(ReadTimeoutError):
        account.client("ec2", read_timeout=0.3).describe_vpcs()
    account.ec2.describe_vpcs()  # other requests are served meanwhile


@pytest.mark.parametrize(("fault", "groups"), [(KILL_BEFORE, 0), (KILL_AFTER, 1)])
def test_the_caller_is_killed(account: Account, fault: Fault, groups: int) -> None:
    account.control.fail("CreateSecurityGroup", fault)
    program = "import boto3; boto3.client('ec2').create_security_group(GroupName='g', Description='d')"
    ended = subprocess.run([sys.executable, "-c", program], env=environ(account.url), timeout=180, check=False)
    assert ended.returncode == -9
    found = account.ec2.describe_security_groups()["SecurityGroups"]
    assert sum(group["GroupName"] == "g" for group in found) == groups


def test_unimplemented_actions_answer_an_error(account: Account) -> None:
    code, status, text = refusal(lambda: account.client("ec2", tries=5).describe_fpga_images())
    assert (code, status) == ("StandinNotImplemented", 501)
    assert "DescribeFpgaImages" in text
    assert len(account.control.calls("DescribeFpgaImages")) == 1
    account.run()
    filters = [{"Name": "no-such-filter", "Values": ["x"]}]
    assert refusal(lambda: account.ec2.describe_instances(Filters=filters))[0] == "StandinNotImplemented"


# -- capacity and quotas


def test_a_zone_without_capacity_names_the_others(account: Account) -> None:
    account.control.set_capacity(TYPE, "us-east-1a", "on-demand", 1)
    first = account.run()
    code, status, text = refusal(account.run)
    assert (code, status) == ("InsufficientInstanceCapacity", 500)
    assert "(us-east-1a)" in text
    assert "choosing us-east-1b" in text
    assert "1a" not in text.partition("choosing")[2]
    account.run(spot=True)  # capacity of another market
    account.ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    account.run()


def test_the_sdk_sends_a_capacity_error_again(account: Account) -> None:
    """EC2 answers HTTP 500 for missing capacity, which botocore retries: the product must disable these retries."""
    account.control.set_capacity(TYPE, "us-east-1a", "on-demand", 0)
    refusal(lambda: account.run(tries=3))
    assert len(account.control.calls("RunInstances")) == 3


def test_fewer_machines_than_the_most(account: Account) -> None:
    account.control.set_capacity(TYPE, "us-east-1a", "on-demand", 3)
    request = {"ImageId": account.image, "InstanceType": TYPE, "SubnetId": account.subnets["us-east-1a"]}
    launched = account.ec2.run_instances(**request, MinCount=2, MaxCount=5)["Instances"]
    assert len(launched) == 3


@pytest.mark.parametrize(
    ("spot", "quota", "code"),
    [(False, "L-DB2E81BA", "VcpuLimitExceeded"), (True, "L-3819A6DF", "MaxSpotInstanceCountExceeded")],
)
def test_quotas_are_of_a_market(account: Account, spot: bool, quota: str, code: str) -> None:
    account.control.set_quota("us-east-1", quota, 7)
    account.run(spot=spot)
    assert refusal(lambda: account.run("us-east-1b", spot=spot))[:2] == (code, 400)
    account.run(spot=not spot)
    answer = account.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=quota)
    assert answer["Quota"]["Value"] == 7


def test_a_type_that_is_not_sold_in_the_zone(account: Account) -> None:
    code, status, text = refusal(lambda: account.run("us-east-1a", InstanceType="p6-b200.48xlarge"))
    assert (code, status) == ("Unsupported", 400)
    assert "(us-east-1a)" in text
    assert refusal(lambda: account.run(InstanceType="g4dn.tiny"))[0] == "InvalidInstanceType.NotFound"
    assert refusal(lambda: account.run(ImageId="ami-12345678"))[0] == "InvalidAMIID.NotFound"


# -- client tokens, eventual consistency


def test_a_client_token_means_one_machine(account: Account) -> None:
    first, again = account.run(ClientToken="t"), account.run(ClientToken="t")
    assert first["InstanceId"] == again["InstanceId"]
    assert refusal(lambda: account.run(ClientToken="t", EbsOptimized=True))[0] == "IdempotentParameterMismatch"
    assert account.run("us-east-1b", ClientToken="t")["InstanceId"] != first["InstanceId"]
    account.ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    after = account.run(ClientToken="t")
    assert (after["InstanceId"], after["State"]["Name"]) == (first["InstanceId"], "terminated")
    filters = [{"Name": "client-token", "Values": ["t"]}]
    assert len(account.ec2.describe_instances(Filters=filters)["Reservations"]) == 2


def test_threads_with_one_token_get_one_machine(account: Account) -> None:
    found: set[str] = set()
    threads = [
        threading.Thread(target=lambda: found.add(account.run(ClientToken="one")["InstanceId"])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1


def test_a_new_machine_is_not_found_at_once(account: Account) -> None:
    account.control.set_lag(600.0)
    instance = account.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "v"}]}])
    identity = [instance["InstanceId"]]
    for call in (account.ec2.describe_instances, account.ec2.terminate_instances):
        assert refusal(partial(call, InstanceIds=identity))[:2] == ("InvalidInstanceID.NotFound", 400)
    filters = [{"Name": "tag:k", "Values": ["v"]}]
    assert account.ec2.describe_instances(Filters=filters)["Reservations"] == []
    account.control.set_lag(0.0)
    assert account.ec2.describe_instances(Filters=filters)["Reservations"]


# -- Spot


def test_a_spot_request_lives_and_ends_with_its_machine(account: Account) -> None:
    tagged = [
        {"ResourceType": kind, "Tags": [{"Key": "k", "Value": kind}]}
        for kind in ("instance", "volume", "network-interface", "spot-instances-request")
    ]
    instance = account.run(spot=True, TagSpecifications=tagged)
    filters = [{"Name": "tag:k", "Values": ["spot-instances-request"]}]

    def request() -> dict[str, Any]:
        return dict(account.ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"][0])

    assert request()["SpotInstanceRequestId"] == instance["SpotInstanceRequestId"]
    assert (request()["State"], request()["Status"]["Code"]) == ("active", "fulfilled")
    account.control.interrupt(instance["InstanceId"], 600.0)
    assert request()["Status"]["Code"] == "marked-for-termination"
    assert account.state(instance) == "running"
    account.control.run_delayed()
    assert account.state(instance) == "terminated"
    assert (request()["State"], request()["Status"]["Code"]) == ("closed", "instance-terminated-no-capacity")
    described = account.ec2.describe_instances()["Reservations"][0]["Instances"][0]
    assert described["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert account.ec2.describe_volumes()["Volumes"] == []
    assert account.ec2.describe_network_interfaces()["NetworkInterfaces"] == []


def test_a_cancelled_request_leaves_its_machine(account: Account) -> None:
    instance = account.run(spot=True)
    account.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[instance["SpotInstanceRequestId"]])
    assert account.ec2.describe_spot_instance_requests()["SpotInstanceRequests"][0]["State"] == "cancelled"
    assert account.state(instance) == "running"
    code, *_ = refusal(lambda: account.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=["sir-0"]))
    assert code == "InvalidSpotInstanceRequestID.NotFound"


def test_prices(account: Account) -> None:
    account.control.set_price(TYPE, "us-east-1b", "0.21")
    account.control.set_price(TYPE, "us-east-1", "0.6")
    history = account.ec2.describe_spot_price_history(InstanceTypes=[TYPE])["SpotPriceHistory"]
    assert {one["AvailabilityZone"]: one["SpotPrice"] for one in history}["us-east-1b"] == "0.21"
    filters = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": TYPE}]
    listed = account.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    assert any('"USD": "0.6000000000"' in one and '"us-east-1"' in one for one in listed)


def test_reservations(account: Account) -> None:
    block = account.control.reserve(TYPE, "us-east-1a", 1, end_s=3_600)
    account.control.reserve(TYPE, "us-east-1a", 1, start_s=3_600)
    filters = [{"Name": "instance-type", "Values": [TYPE]}]

    def described() -> list[tuple[str, str, int]]:
        found = account.ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"]
        return [(one["ReservationType"], one["State"], one["AvailableInstanceCount"]) for one in found]

    assert described() == [("capacity-block", "active", 1), ("default", "scheduled", 1)]
    into: Any = {
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": block}},
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
    }
    account.control.set_capacity(TYPE, "us-east-1a", "on-demand", 0)  # a reservation has separate capacity
    instance = account.run(**into)
    assert described()[0] == ("capacity-block", "active", 0)
    assert refusal(lambda: account.run(**into))[0] == "ReservationCapacityExceeded"
    account.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert described()[0] == ("capacity-block", "active", 1)


def test_interfaces_of_further_network_cards_leave_nothing_behind(account: Account) -> None:
    subnet = account.subnets["us-east-1a"]
    cards = [{"SubnetId": subnet, "DeviceIndex": int(card > 0), "NetworkCardIndex": card} for card in range(4)]
    request = {"ImageId": account.image, "InstanceType": "p4d.24xlarge", "NetworkInterfaces": cards}
    instance = account.ec2.run_instances(**request, MinCount=1, MaxCount=1)["Instances"][0]
    account.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert account.ec2.describe_network_interfaces()["NetworkInterfaces"] == []


# -- resources in use, and eventual consistency of instance profiles


def test_a_used_security_group_stays_until_its_machine_has_gone(account: Account) -> None:
    account.control.set_stopping(600.0)
    vpc = account.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = account.ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    instance = account.run(SecurityGroupIds=[group])
    assert refusal(lambda: account.ec2.delete_security_group(GroupId=group))[0] == "DependencyViolation"
    account.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert account.state(instance) == "shutting-down"
    assert refusal(lambda: account.ec2.delete_security_group(GroupId=group))[0] == "DependencyViolation"
    account.control.run_delayed()
    assert account.state(instance) == "terminated"
    account.ec2.delete_security_group(GroupId=group)


def test_placement_groups(account: Account) -> None:
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "k", "Value": "v"}]}]
    assert refusal(lambda: account.run(Placement={"GroupName": "pg"}))[0] == "InvalidPlacementGroup.Unknown"
    account.ec2.create_placement_group(GroupName="pg", Strategy="cluster", TagSpecifications=tags)
    code, *_ = refusal(lambda: account.ec2.create_placement_group(GroupName="pg", Strategy="cluster"))
    assert code == "InvalidPlacementGroup.Duplicate"
    found = account.ec2.describe_placement_groups(Filters=[{"Name": "tag:k", "Values": ["v"]}])["PlacementGroups"]
    assert [(group["GroupName"], group["State"]) for group in found] == [("pg", "available")]
    instance = account.run(Placement={"GroupName": "pg"})
    assert refusal(lambda: account.ec2.delete_placement_group(GroupName="pg"))[0] == "InvalidPlacementGroup.InUse"
    account.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    account.ec2.delete_placement_group(GroupName="pg")
    assert account.ec2.describe_placement_groups()["PlacementGroups"] == []


def make_profile(account: Account, policy: dict[str, Any] | None = None) -> str:
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
    account.iam.create_role(RoleName="r", AssumeRolePolicyDocument=json.dumps(trust))
    if policy is not None:
        account.iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument=json.dumps(policy))
    account.iam.create_instance_profile(InstanceProfileName="p")
    account.iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="r")
    return "p"


def test_ec2_learns_late_of_an_instance_profile(account: Account) -> None:
    code, status, text = refusal(lambda: account.run(IamInstanceProfile={"Name": "nobody"}))
    assert (code, status) == ("InvalidParameterValue", 400)
    assert "Invalid IAM Instance Profile name" in text
    account.control.set_lag(0.0, profiles=600.0)
    name = make_profile(account)
    assert refusal(lambda: account.run(IamInstanceProfile={"Name": name}))[2] == text.replace("nobody", name)
    account.control.set_lag(0.0)
    account.run(IamInstanceProfile={"Name": name})


def test_too_much_user_data(account: Account) -> None:
    account.run(UserData="#cloud-config\n" + " " * (16_384 - 14))
    assert refusal(lambda: account.run(UserData="#cloud-config\n" + " " * 16_371))[0] == "InvalidParameterValue"


# -- machines that boot

SERVICE = """\
[Service]
ExecStart=/usr/bin/env sh /opt/main.sh
TimeoutStopSec=180
[Install]
WantedBy=multi-user.target
"""


def user_data(script: str, *commands: list[str], **more: Any) -> str:
    """Return cloud-init user data for a machine with a service that runs this shell script at every boot."""
    value = {
        "write_files": [
            {"path": "/opt/main.sh", "content": script, "permissions": "0755"},
            {"path": "/etc/systemd/system/a.service", "content": SERVICE},
        ],
        "runcmd": [*commands, ["systemctl", "enable", "a.service"], ["systemctl", "start", "--no-block", "a.service"]],
        **more,
    }
    return "#cloud-config\n" + json.dumps(value)


def boots(account: Account, script: str, *commands: list[str], **more: Any) -> dict[str, Any]:
    return account.run(UserData=user_data(script, *commands), **more)


def machine_of(account: Account, instance: dict[str, Any]) -> Any:
    return next(one for one in account.control.instances() if one.instance_id == instance["InstanceId"])


def test_user_data_runs_with_nothing_of_the_testers(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the tester's")
    monkeypatch.setenv("SOMETHING", "else")
    instance = boots(account, "env; pwd; echo done", InstanceInitiatedShutdownBehavior="terminate")
    console = wait_for(lambda: "done" in (seen := machine_of(account, instance)).console and seen).console
    names = {line.partition("=")[0] for line in console.splitlines() if "=" in line} - {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names == {"PATH", "HOME", "LANG", "TMPDIR", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL"}
    assert machine_of(account, instance).trouble == []
    assert machine_of(account, instance).root in console


def test_a_machine_is_its_role_and_nothing_else(account: Account) -> None:
    """botocore on the machine gets its role's credentials from IMDSv2, and the role's policy is enforced."""
    account.s3.create_bucket(Bucket="bucket")
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": "arn:aws:s3:::bucket/mine/*"}],
    }
    name = make_profile(account, policy)
    program = "import boto3\ns3 = boto3.client('s3', region_name='us-east-1')\nfor key in ('mine/a', 'yours/a'):\n"
    program += "    try: print(key, s3.put_object(Bucket='bucket', Key=key)['ResponseMetadata']['HTTPStatusCode'])\n"
    program += "    except Exception as e: print(key, e)\nprint('done')\n"
    account.control.enforce()
    account.control.enforce(False)
    instance = boots(account, f"{sys.executable} - <<'END'\n{program}END\n", IamInstanceProfile={"Name": name})
    account.control.enforce()
    console = wait_for(lambda: "done" in (seen := machine_of(account, instance)).console and seen).console
    assert "mine/a 200" in console
    assert "yours/a An error occurred (AccessDenied)" in console
    (key,) = machine_of(account, instance).keys
    assert {call.action for call in account.control.calls(caller=key)} == {"PutObject"}


def test_terminating_kills_whatever_runs(account: Account) -> None:
    script = f"setsid {sys.executable} -c 'import time; print(\"deep\", flush=True); time.sleep(600)' & sleep 600"
    instance = boots(account, script)
    seen = wait_for(lambda: "deep" in (one := machine_of(account, instance)).console and one)
    account.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert processes_in(seen.root) == []


def processes_in(root: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HOME", "").startswith(root):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
@pytest.mark.parametrize("command", ["poweroff", "shutdown -P now", "systemctl poweroff"])
def test_a_machine_ends_itself(account: Account, command: str, behavior: str, state: str) -> None:
    script = f"trap 'echo asked; exit 0' TERM; {command}; sleep 600 & wait"
    instance = boots(account, script, InstanceInitiatedShutdownBehavior=behavior)
    wait_for(lambda: account.state(instance) == state)
    assert "asked" in machine_of(account, instance).console
    if state == "terminated":
        assert machine_of(account, instance).reason == "Client.InstanceInitiatedShutdown"


def test_a_service_that_fails_ends_the_machine_where_it_says_so(account: Account) -> None:
    failing = user_data("exit 3").replace("[Service]", "[Unit]\\nFailureAction=poweroff\\n[Service]")
    instance = account.run(UserData=failing, InstanceInitiatedShutdownBehavior="terminate")
    wait_for(lambda: account.state(instance) == "terminated")
    other = boots(account, "exit 3; ", InstanceInitiatedShutdownBehavior="terminate")
    time.sleep(0.3)
    assert account.state(other) == "running"


def test_a_reboot_keeps_the_disk(account: Account) -> None:
    instance = boots(account, 'echo -n x >> $HOME/n; echo "boot $(cat $HOME/n)"; sleep 600', ["sh", "-c", "echo first"])
    wait_for(lambda: "boot x\n" in machine_of(account, instance).console)
    account.control.reboot(instance["InstanceId"])
    wait_for(lambda: "boot xx\n" in machine_of(account, instance).console)
    account.ec2.reboot_instances(InstanceIds=[instance["InstanceId"]])
    wait_for(lambda: "boot xxx\n" in machine_of(account, instance).console)
    assert machine_of(account, instance).console.count("first") == 1
    assert account.state(instance) == "running"


def test_a_notice_is_seen_on_the_machine_before_it_goes(account: Account) -> None:
    look = "import os, time, urllib.request as u\nbase = os.environ['AWS_EC2_METADATA_SERVICE_ENDPOINT'] + '/latest/'\n"
    look += "ask = lambda path, method='GET', **h: u.urlopen(u.Request(base + path, headers=h, method=method)).read()\n"
    look += "token = ask('api/token', 'PUT', **{'X-aws-ec2-metadata-token-ttl-seconds': '60'}).decode()\n"
    look += "while True:\n    try: print(ask('meta-data/spot/instance-action', **{'X-aws-ec2-metadata-token': token})"
    look += ", flush=True)\n    except Exception as e: print(e, flush=True)\n    time.sleep(0.05)\n"
    instance = boots(account, f"exec {sys.executable} -c '{look.replace(chr(39), chr(34))}'", spot=True)
    wait_for(lambda: "404" in machine_of(account, instance).console)
    account.control.interrupt(instance["InstanceId"], 600.0)
    wait_for(lambda: '"action": "terminate"' in machine_of(account, instance).console)
    assert account.state(instance) == "running"
    account.control.run_delayed()
    assert account.state(instance) == "terminated"


def test_every_kind_of_notice_is_what_the_agent_looks_for(account: Account) -> None:
    instance = boots(account, "sleep 600", spot=True)
    identity, url = instance["InstanceId"], machine_of(account, instance).imds
    account.control.recommend_rebalance(identity)
    event = {"Code": "system-reboot", "EventId": "e-1", "State": "active", "NotBefore": "21 Jan 2027 09:00:43 GMT"}
    account.control.schedule_event(identity, event)
    account.control.interrupt(identity)
    asked = looks({"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}, lambda _text: None)
    assert {notice.kind for look in asked for notice in look.look()} == {
        "spot-terminate",
        "rebalance-recommendation",
        "system-reboot",
    }


def test_a_crash_comes_without_notice(account: Account) -> None:
    instance = boots(account, "echo here; sleep 600", spot=True)
    root = wait_for(lambda: "here" in (seen := machine_of(account, instance)).console and seen).root
    account.control.crash(instance["InstanceId"])
    assert processes_in(root) == []
    seen = machine_of(account, instance)
    assert (seen.state, seen.reason, seen.running) == ("terminated", "Server.InternalError", False)


@pytest.mark.parametrize(
    ("data", "trouble"),
    [
        ("#!/bin/sh\necho", "#cloud-config"),
        ("#cloud-config\n{runcmds: []}", "unknown keys runcmds"),
        ('#cloud-config\n{"write_files": [{"path": "a"}]}', "no absolute path"),
        ('#cloud-config\n{"write_files": [{"path": "/a", "contents": "b"}]}', "unknown keys contents"),
        ('#cloud-config\n{"runcmd": [["sleep", 3]]}', "neither text nor a list"),
        ('#cloud-config\n{"runcmd": [["false"]]}', "false ended with 1"),
        ('#cloud-config\n{"runcmd": [["systemctl", "start", "b.service"]]}', "b.service not found"),
    ],
)
def test_unsupported_user_data_is_reported(account: Account, data: str, trouble: str) -> None:
    instance = account.run(UserData=data)
    wait_for(lambda: trouble in "\n".join(machine_of(account, instance).trouble))


def test_console_output_is_what_it_printed(account: Account) -> None:
    instance = boots(account, "echo hello")
    wait_for(lambda: "hello" in account.ec2.get_console_output(InstanceId=instance["InstanceId"])["Output"])


# -- as a separate process


def test_it_can_be_a_process(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "cloudgpu.tests.standins.aws"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        settings = environ(url, "eu-west-1")
        session = boto3.session.Session(settings["AWS_ACCESS_KEY_ID"], settings["AWS_SECRET_ACCESS_KEY"])
        ec2 = session.client("ec2", region_name="eu-west-1", endpoint_url=url)
        assert len(ec2.describe_availability_zones()["AvailabilityZones"]) == 3
        assert [call.region for call in AwsControl(url).calls("DescribeAvailabilityZones")] == ["eu-west-1"]
        process.terminate()
        assert process.wait(180) == 0


def test_a_bucket_that_requires_tls_refuses_plain_http(tmp_path: Path) -> None:
    """Clients with TLS have access, whether they use boto3 or obstore."""
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    with Aws(certificate=make_certificate(tmp_path)) as aws:
        trusted = aws.environ["AWS_CA_BUNDLE"]
        safe = SESSION.client("s3", endpoint_url=aws.environ["AWS_ENDPOINT_URL"], verify=trusted)
        safe.create_bucket(Bucket="bucket")
        safe.put_bucket_policy(Bucket="bucket", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
        plain = SESSION.client("s3", endpoint_url=aws.url)
        safe.put_object(Bucket="bucket", Key="one", Body=b"1")
        for call in (plain.get_object, plain.put_object, plain.delete_object):
            assert refusal(partial(call, Bucket="bucket", Key="one"))[1] == 403
        assert safe.get_object(Bucket="bucket", Key="one")["Body"].read() == b"1"
        script = (
            "import obstore; from obstore.store import S3Store; "
            "print(obstore.get(S3Store.from_url('s3://bucket'), 'one').bytes().to_bytes())"
        )
        environ = {"PATH": os.environ["PATH"], **aws.environ}
        done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
        assert done.stdout == "b'1'\n", done.stderr
        with pytest.raises(SSLError):
            SESSION.client("s3", endpoint_url=aws.environ["AWS_ENDPOINT_URL"], verify=True).list_buckets()
        deny["Condition"] = {"StringEquals": {"aws:PrincipalOrgID": "o-1"}}
        safe.put_bucket_policy(Bucket="bucket", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
        assert refusal(partial(safe.get_object, Bucket="bucket", Key="one"))[:2] == ("StandinNotImplemented", 501)
