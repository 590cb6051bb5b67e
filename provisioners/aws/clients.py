"""boto3's clients of one account, and what their errors mean.

Credentials, region and endpoint come from where every AWS tool takes them (environment, profile, instance role); the
only setting that is ours to check is the endpoint: plain http is for this very machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...jobspecs.suggest import did_you_mean
from ..base import ProvisionError
from ..boot.record import is_loopback
from ..shared import api_calls
from ..shared.clock import Clock, SystemClock
from .errors import translate_errors
from .throttling import Calling

if TYPE_CHECKING:
    from boto3.session import Session
    from types_boto3_autoscaling import AutoScalingClient
    from types_boto3_ec2 import EC2Client
    from types_boto3_iam import IAMClient
    from types_boto3_pricing import PricingClient
    from types_boto3_service_quotas import ServiceQuotasClient
    from types_boto3_ssm import SSMClient
    from types_boto3_sts import STSClient

HOME_REGION = "us-east-1"
"""Asked about the account's regions, where no other is configured."""
_HOMES = {"aws": HOME_REGION, "aws-us-gov": "us-gov-west-1", "aws-cn": "cn-north-1"}
PRICING_REGION = "us-east-1"
"""The Price List API has endpoints in few regions, each with the prices of all (AWS: Price List Query API)."""
_CONNECTIONS = 128
"""That a client keeps open, at most: as many threads may launch and look at the same time."""
_OVER_THE_NETWORK = frozenset({"iam-role", "container-role"})
"""Providers of credentials that ask a machine's or container's metadata service."""
_VENDOR = Path("/sys/devices/virtual/dmi/id/sys_vendor")


class Clients:
    """The clients of one account: each is made once, and may be used by any thread."""

    def __init__(self, session: Session | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._calling = Calling(self.clock)
        self._session_given = session
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, bool], Any] = {}

    def ec2(self, region: str) -> EC2Client:
        """All of its calls are idempotent, but RunInstances: see launcher()."""
        return cast("EC2Client", self._client("ec2", region))

    def launch_turn(self, region: str, token: str) -> AbstractContextManager[None]:
        """Wait for the turn of a launch. Raises ProvisionError: see Calling.launch_turn."""
        return self._calling.launch_turn(region, token)

    def launcher(self, region: str) -> EC2Client:
        """For RunInstances only, with a client token: an answer may take a minute."""
        return cast("EC2Client", self._client("ec2", region, patient=True))

    def autoscaling(self, region: str) -> AutoScalingClient:
        """Its calls are idempotent: a group is known by its name."""
        return cast("AutoScalingClient", self._client("autoscaling", region))

    def ssm(self, region: str) -> SSMClient:
        return cast("SSMClient", self._client("ssm", region))

    def service_quotas(self, region: str) -> ServiceQuotasClient:
        return cast("ServiceQuotasClient", self._client("service-quotas", region))

    def pricing(self) -> PricingClient:
        return cast("PricingClient", self._client("pricing", PRICING_REGION))

    def iam(self, region: str) -> IAMClient:
        """IAM is one for all regions of the region's partition."""
        return cast("IAMClient", self._client("iam", region))

    def sts(self, region: str) -> STSClient:
        return cast("STSClient", self._client("sts", region))

    def partition(self, region: str) -> str:
        """`aws`, `aws-us-gov`, `aws-cn`: what ARNs of the region begin with."""
        return self._session.get_partition_for_region(region)

    def endpoint(self, region: str) -> str | None:
        """The endpoint that stands for all of AWS, if that is on this machine (a test's); None: AWS's own."""
        url = self.ec2(region).meta.endpoint_url
        return url if is_loopback(url) else None

    @cached_property
    def regions(self) -> dict[str, bool]:
        """The account's regions, and whether each is enabled. Raises ProvisionError."""
        with translate_errors("ask for the account's regions", self.clock):
            answer = self.ec2(self._home()).describe_regions(AllRegions=True)
        return {region["RegionName"]: region.get("OptInStatus") != "not-opted-in" for region in answer["Regions"]}

    @cached_property
    def account(self) -> str:
        """The id of the account that the credentials belong to: a call that needs no right. Raises ProvisionError."""
        with translate_errors("ask whose credentials these are", self.clock):
            return self.sts(self._home()).get_caller_identity()["Account"]

    def check_region(self, region: str) -> None:
        """Raises ProvisionError for one that does not exist, or is not enabled for the account."""
        enabled = self.regions.get(region)
        if enabled is None:
            meant = did_you_mean(region, self.regions) or f"there are {', '.join(sorted(self.regions))}"
            raise ProvisionError("invalid", f"AWS has no region {region} for this account; {meant}", scope="region")
        if not enabled:
            how = f"`aws account enable-region --region-name {region}` enables it"
            message = f"{region} is not enabled for this account; {how}, or choose another region"
            raise ProvisionError("not_offered", message, scope="region", code="OptInRequired")

    def forget(self) -> None:
        """Read the AWS settings anew: whoever's credentials had expired may have logged in again."""
        with self._lock:
            self._made.clear()
            if self._session_given is None:
                for known in ("_session", "regions", "account"):
                    self.__dict__.pop(known, None)

    def _home(self) -> str:
        """The configured region, or one of the same partition if there is no such region."""
        named = self._session.region_name or HOME_REGION
        partition = self._session.get_partition_for_region(named)
        known = self._session.get_available_regions("ec2", partition_name=partition)
        return named if named in known or not known else _HOMES.get(partition, named)

    @cached_property
    def _session(self) -> Session:
        try:
            import boto3
        except ImportError as error:
            message = "the target aws needs boto3: pip install 'cloudgpu[aws]'"
            raise ProvisionError("invalid", message, scope="cloud", code="boto3") from error
        with translate_errors("read the AWS settings", self.clock):
            return self._session_given or boto3.session.Session()

    def _client(self, service: str, region: str, *, patient: bool = False) -> Any:  # the callers cast it
        with self._lock:  # making clients is not thread-safe, using them is
            key = (service, region, patient)
            if key not in self._made:
                with translate_errors(f"reach {service} in {region}", self.clock):
                    self._made[key] = self._make(service, region, patient=patient)
            return self._made[key]

    def _make(self, service: str, region: str, *, patient: bool) -> Any:
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},  # throttling.py repeats them
            connect_timeout=5,
            read_timeout=60 if patient else 20,
            max_pool_connections=_CONNECTIONS,
            user_agent_extra="cloudgpu",
        )
        client: Any = self._session.client(cast("Any", service), region_name=region, config=config)
        api_calls.check_encrypted("AWS_ENDPOINT_URL", client.meta.endpoint_url)
        self._calling.through(client, service, region)
        return client


def could_be_used() -> bool:
    """Whether boto3 is there and finds credentials of some kind; asks nobody but files and the environment."""
    if importlib.util.find_spec("boto3") is None:
        return False
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session as Settings

    try:
        providers = Settings().get_component("credential_provider").providers
        found = any(one.load() is not None for one in providers if one.METHOD not in _OVER_THE_NETWORK)
        return found or _has_role()
    except BotoCoreError:
        return True  # there is something, and it is wrong: whoever uses it is told what


def _has_role() -> bool:
    """Whether this may be a container or an EC2 instance that has a role."""
    if any(os.environ.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL")):
        return True
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    with contextlib.suppress(OSError):
        return _VENDOR.read_text().strip() == "Amazon EC2"
    return False
