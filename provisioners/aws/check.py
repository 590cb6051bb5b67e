"""Checks of the target `aws` (provisioners/checks/results.py describes them)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ...jobspecs.fields import FORMS
from ..base import ProvisionError
from ..checks import job_dirs, sdk
from ..checks.endpoints import check_endpoints
from ..checks.quotas import Allowance, show
from ..checks.results import CheckRequest, CheckResult, Step, from_error, parsing
from ..shared.api_calls import with_context
from .catalog import quotas
from .clients import Clients
from .errors import translate_errors
from .login import check_login
from .resources.identity import split_url
from .rights import check_job_dir_rights, check_rights

_AT_ONCE = 8
"""Maximum number of concurrent requests for quotas."""
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables by which botocore finds trusted certificates."""
_STACK = "cloudgpu infra up --cloud aws"


def steps(request: CheckRequest) -> list[Step]:
    """Return the checks."""
    clients = Clients()

    def regions() -> tuple[str, ...]:
        return request.regions or (clients.home_region,)

    def network() -> Iterator[CheckResult]:
        first = regions()[0]
        urls = [clients.sts(first).meta.endpoint_url, clients.ec2(first).meta.endpoint_url]
        return check_endpoints(urls, "AWS", _BUNDLES)

    return [
        Step("sdk", partial(sdk.check_extra, "aws", "boto3"), is_gate=True),
        Step("credentials", partial(check_login, clients), is_gate=True),
        Step("network", network, is_gate=True),
        Step("account", partial(_account, clients), is_gate=True),
        Step("rights", lambda: check_rights(clients, regions()[0], request.stacks)),
        Step("quota", lambda: _all_quotas(clients, regions())),
        Step("job_dir", lambda: _job_dirs(clients, request.job_dirs, regions()[0])),
    ]


def _account(clients: Clients) -> Iterator[CheckResult]:
    try:
        with parsing("ask whose credentials these are"):
            identity = clients.identity
    except ProvisionError as error:
        yield from_error("credentials" if error.error_class in ("auth", "expired") else "account", error)
        return
    values = {"account": identity.account, "identity": identity.arn}
    yield CheckResult("account", "ok", f"AWS account {identity.account}, as {identity.arn}", "", values)


def _all_quotas(clients: Clients, regions: tuple[str, ...]) -> Iterator[CheckResult]:
    for region in regions:
        yield from _quotas(clients, region)


def _quotas(clients: Clients, region: str) -> Iterator[CheckResult]:
    try:
        with parsing("ask for the account's regions"):
            clients.check_region(region)
    except ProvisionError as error:
        yield from_error("quota", error, needed=error.error_class in ("invalid", "not_offered"))
        if error.error_class in ("invalid", "not_offered"):
            return
    service = clients.service_quotas(region)

    def ask(quota: quotas.Quota) -> float:
        doing = f"ask for quota {quota.code} of {region}"
        with parsing(doing), translate_errors(doing, clients.clock):
            return float(quotas.limit(service, quota))

    listed = quotas.gpu_quotas()
    with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-check") as pool:
        try:
            limits = dict(zip(listed, pool.map(with_context(ask), listed), strict=True))
        except ProvisionError as error:
            yield from_error("quota", error, needed=False)
            return
    found = [Allowance(one.families, one.market, f"{one.name} ({one.code})", limit) for one, limit in limits.items()]
    yield show(region, "vCPUs", found, f"ask for more, e.g. of {listed[0].name}: {listed[0].link(region)}")


def _job_dirs(clients: Clients, urls: tuple[str, ...], region: str) -> Iterator[CheckResult]:
    if not urls:
        yield job_dirs.missing_job_dir("aws", FORMS["s3"], f"{_STACK} --region {region}")
    for url in urls:
        bucket, prefix = split_url(url)
        rights = list(check_job_dir_rights(clients, region, bucket, prefix))
        yield from job_dirs.merge(url, job_dirs.check_readable(url), rights, _region_of(clients, bucket, region))


def _region_of(clients: Clients, bucket: str, region: str) -> str:
    """Return a bucket's region, which S3 names in responses to everyone who may list it; "": unknown."""
    answer: Any
    try:
        with translate_errors(f"look at the bucket {bucket}", clients.clock):
            answer = clients.s3(region).head_bucket(Bucket=bucket)
    except ProvisionError as error:  # check_readable() reports it
        answer = getattr(error.__cause__, "response", {})
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region", ""))
