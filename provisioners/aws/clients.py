"""Cached boto3 clients of one account.

Credentials, region and endpoint come from AWS's usual sources (environment, profile, instance role). Only the endpoint
is checked here: plain http is allowed on the loopback only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...jobspecs.suggest import did_you_mean
from ..base import ProvisionError
from ..boot.record import is_loopback
from ..shared import api_calls
from ..shared.clock import Clock, SystemClock
from .errors import translate_errors
from .throttling import RateLimiter

if TYPE_CHECKING:
    from boto3.session import Session
    from types_boto3_autoscaling import AutoScalingClient
    from types_boto3_ec2 import EC2Client
    from types_boto3_iam import IAMClient
    from types_boto3_pricing import PricingClient
    from types_boto3_s3 import S3Client
    from types_boto3_service_quotas import ServiceQuotasClient
    from types_boto3_ssm import SSMClient
    from types_boto3_sts import STSClient

HOME_REGION = "us-east-1"
"""Region for account-wide queries if none is configured."""
_HOMES = {"aws": HOME_REGION, "aws-us-gov": "us-gov-west-1", "aws-cn": "cn-north-1"}
PRICING_REGION = "us-east-1"
"""The Price List API has endpoints in few regions, each with all regions' prices (AWS: Price List Query API)."""
_CONNECTIONS = 128
"""Size of a client's connection pool, for threads that launch and poll concurrently."""
_OVER_THE_NETWORK = frozenset({"iam-role", "container-role"})
"""Credential providers that query a machine's or container's metadata service."""
_WRONG = (AttributeError, LookupError, OSError, TypeError, ValueError)
"""Exceptions of boto3 for settings of the wrong form, beside its own."""
_VENDOR = Path("/sys/devices/virtual/dmi/id/sys_vendor")


class Identity(NamedTuple):
    """Account and ARN of the caller: of a user, of a role's session, or of the root user."""

    account: str
    arn: str

    @property
    def is_root(self) -> bool:
        return self.arn.endswith(":root")


@contextlib.contextmanager
def reading_settings(clock: Clock) -> Iterator[None]:
    """Context manager: translate what boto3 raises for files and variables to ProvisionError. The reason is not
    quoted if it is not boto3's own: it may be a part of a secret."""
    doing = "read the AWS settings"
    try:
        with translate_errors(doing, clock):
            yield
    except _WRONG as error:
        where = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else ""
        reason = where or f"a file in ~/.aws or a variable AWS_… has the wrong form ({type(error).__name__})"
        advice = "correct or unset it: credential_process, AWS_ENDPOINT_URL, AWS_CONTAINER_CREDENTIALS_FULL_URI"
        message = f"{doing}: {reason}; {advice}"
        raise ProvisionError("auth", message, scope="cloud", code=type(error).__name__, advice=advice) from error


class Clients:
    """Cache of the boto3 clients of one account. Thread-safe."""

    def __init__(self, session: Session | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._calling = RateLimiter(self.clock)
        self._session_given = session
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, bool], Any] = {}

    def ec2(self, region: str) -> EC2Client:
        """Return the EC2 client for idempotent calls. For RunInstances use launcher()."""
        return cast("EC2Client", self._client("ec2", region))

    def launch_turn(self, region: str, token: str) -> AbstractContextManager[None]:
        """Context manager: wait until the rate limits allow a launch to begin, see RateLimiter.launch_turn()."""
        return self._calling.launch_turn(region, token)

    def launcher(self, region: str) -> EC2Client:
        """Return the EC2 client for RunInstances (with a client token), which may take a minute to answer."""
        return cast("EC2Client", self._client("ec2", region, patient=True))

    def autoscaling(self, region: str) -> AutoScalingClient:
        """Return the Auto Scaling client. Calls are idempotent, since groups are identified by name."""
        return cast("AutoScalingClient", self._client("autoscaling", region))

    def ssm(self, region: str) -> SSMClient:
        return cast("SSMClient", self._client("ssm", region))

    def service_quotas(self, region: str) -> ServiceQuotasClient:
        return cast("ServiceQuotasClient", self._client("service-quotas", region))

    def pricing(self) -> PricingClient:
        return cast("PricingClient", self._client("pricing", PRICING_REGION))

    def iam(self, region: str) -> IAMClient:
        """Return the IAM client of the region's partition; IAM is not regional."""
        return cast("IAMClient", self._client("iam", region))

    def s3(self, region: str) -> S3Client:
        return cast("S3Client", self._client("s3", region))

    def sts(self, region: str) -> STSClient:
        return cast("STSClient", self._client("sts", region))

    def partition(self, region: str) -> str:
        """Return the partition in ARNs of the region: `aws`, `aws-us-gov` or `aws-cn`."""
        return self.session.get_partition_for_region(region)

    def endpoint(self, region: str) -> str | None:
        """Return the configured EC2 endpoint if it is on the loopback, where tests simulate AWS; otherwise None."""
        url = self.ec2(region).meta.endpoint_url
        return url if is_loopback(url) else None

    @cached_property
    def regions(self) -> dict[str, bool]:
        """Return region -> whether it is enabled for the account. Raises ProvisionError."""
        with translate_errors("ask for the account's regions", self.clock):
            answer = self.ec2(self.home_region).describe_regions(AllRegions=True)
        return {region["RegionName"]: region.get("OptInStatus") != "not-opted-in" for region in answer["Regions"]}

    @cached_property
    def identity(self) -> Identity:
        """Return whose credentials these are. The call needs no permission. Raises ProvisionError."""
        with translate_errors("ask whose credentials these are", self.clock):
            answer = self.sts(self.home_region).get_caller_identity()
            return Identity(answer["Account"], answer["Arn"])

    @property
    def account(self) -> str:
        """Return the id of the credentials' account. Raises ProvisionError."""
        return self.identity.account

    def check_region(self, region: str) -> None:
        """Raise ProvisionError if the region does not exist or is not enabled for the account."""
        enabled = self.regions.get(region)
        if enabled is None:
            meant = did_you_mean(region, self.regions) or f"there are {', '.join(sorted(self.regions))}"
            raise ProvisionError("invalid", f"AWS has no region {region} for this account; {meant}", scope="region")
        if not enabled:
            how = f"`aws account enable-region --region-name {region}` enables it"
            message = f"{region} is not enabled for this account; {how}, or choose another region"
            raise ProvisionError("not_offered", message, scope="region", code="OptInRequired")

    def forget(self) -> None:
        """Drop clients and credentials, so that the next call reloads them: the user may have logged in again."""
        with self._lock:
            self._made.clear()
            if self._session_given is None:
                for known in ("session", "regions", "identity"):
                    self.__dict__.pop(known, None)

    @property
    def home_region(self) -> str:
        """Return the configured region; if boto3 does not know it, the default region of the same partition."""
        named = self.session.region_name or HOME_REGION
        with translate_errors("read the AWS settings", self.clock):
            partition = self.session.get_partition_for_region(named)
        known = self.session.get_available_regions("ec2", partition_name=partition)
        return named if named in known or not known else _HOMES.get(partition, named)

    @cached_property
    def session(self) -> Session:
        """Return the session, which finds the credentials. Raises ProvisionError if boto3 is missing."""
        try:
            import boto3
        except ImportError as error:
            message = "the target aws needs boto3: pip install 'cloudgpu[aws]'"
            raise ProvisionError("invalid", message, scope="cloud", code="boto3") from error
        with reading_settings(self.clock):
            return self._session_given or boto3.session.Session()

    def _client(self, service: str, region: str, *, patient: bool = False) -> Any:  # cast by the callers
        with self._lock:  # making clients is not thread-safe, using them is
            key = (service, region, patient)
            if key not in self._made:
                with reading_settings(self.clock), translate_errors(f"reach {service} in {region}", self.clock):
                    self._made[key] = self._make(service, region, patient=patient)
            return self._made[key]

    def _make(self, service: str, region: str, *, patient: bool) -> Any:
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},  # throttling.py retries instead
            connect_timeout=5,
            read_timeout=60 if patient else 20,
            max_pool_connections=_CONNECTIONS,
            user_agent_extra="cloudgpu",
        )
        client: Any = self.session.client(cast("Any", service), region_name=region, config=config)
        api_calls.check_encrypted("AWS_ENDPOINT_URL", client.meta.endpoint_url)
        self._calling.attach(client, service, region)
        return client


def is_set_up() -> bool:
    """Return whether boto3 is installed and credentials or a machine's role are configured.

    Reads only files and environment variables; sends no request."""
    if importlib.util.find_spec("boto3") is None:
        return False
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session as Settings

    try:
        providers = Settings().get_component("credential_provider").providers
        found = any(one.load() is not None for one in providers if one.METHOD not in _OVER_THE_NETWORK)
        return found or _has_role()
    except (BotoCoreError, *_WRONG):
        return True  # the settings are invalid: the first API call raises the reason


def _has_role() -> bool:
    """Return whether this may be a container or an EC2 instance with a role."""
    if any(os.environ.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL")):
        return True
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    with contextlib.suppress(OSError):
        return _VENDOR.read_text().strip() == "Amazon EC2"
    return False
