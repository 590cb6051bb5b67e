"""Checks of the target `gcp`, and the parts of them that `vertex` shares (provisioners/checks/results.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ...jobspecs import catalog
from ...jobspecs.fields import FORMS
from ..base import ProvisionError
from ..checks import job_dirs, sdk
from ..checks.endpoints import check_endpoints
from ..checks.quotas import Allowance, show
from ..checks.results import CheckRequest, CheckResult, Status, Step, Subject, from_error, parsing
from ..shared.api_calls import with_context
from ..shared.infra_outputs import Infrastructure
from .account import Account
from .catalog import quotas
from .clients import Clients
from .login import check_account, check_login
from .rest import Rest
from .rights import check_bucket, check_project, check_service_accounts

DEFAULT_REGION = "us-central1"
TOKENS = "https://oauth2.googleapis.com"
STACK = "cloudgpu infra up --cloud gcp --region {region}"
Limits = dict[quotas.Quota, quotas.Allowed]
_ALL_GPUS = "GPUS_ALL_REGIONS"
"""Metric of the quota of GPUs in all regions together; a new project has 0."""
_AT_ONCE = 8
_DISABLED = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
_SERVICE = re.compile(r"\b([a-z0-9-]+\.googleapis\.com)\b")
_ACTIVATION = re.compile(r"https://console\.(?:developers|cloud)\.google\.com/[\w./?=&-]+")


def steps(request: CheckRequest) -> list[Step]:
    """Return the checks."""
    clients = Clients()
    regions = request.regions or (DEFAULT_REGION,)
    sets = ("launch", "catalog")
    return [
        *gates(clients.account, "compute", partial(check_account, clients)),
        Step("api", partial(_compute, clients.rest, regions[0])),
        Step("rights", lambda: rights(clients.rest, sets, _accounts(clients, request.stacks))),
        Step("quota", lambda: (found for region in regions for found in _quotas(clients.rest, region))),
        Step("job_dir", lambda: check_job_dirs(clients.rest, "gcp", request.job_dirs, regions[0])),
    ]


def gates(account: Account, service: str, check: Callable[[], Iterable[CheckResult]]) -> list[Step]:
    """Return the checks that come before all others of a Google target. `service`: first part of its API's host."""

    def network() -> Iterator[CheckResult]:
        own = account.endpoint
        return check_endpoints([own] if own else [f"https://{service}.googleapis.com", TOKENS], "Google")

    return [
        Step("sdk", partial(sdk.check_extra, "gcp", "google.cloud.compute_v1"), is_gate=True),
        Step("credentials", partial(check_login, account), is_gate=True),
        Step("network", network, is_gate=True),
        Step("account", check, is_gate=True),
    ]


def rights(rest: Rest, sets: Sequence[str], accounts: Sequence[str]) -> Iterator[CheckResult]:
    """Yield the caller's missing permissions in the project and on the machines' service accounts."""
    for check in (partial(check_project, rest, sets), partial(check_service_accounts, rest, accounts)):
        try:
            yield from check()
        except ProvisionError as error:
            yield from_google("rights", error, rest.project)


def check_job_dirs(rest: Rest, target: str, urls: Sequence[str], region: str) -> Iterator[CheckResult]:
    """Yield whether the buckets can be read and written."""
    if not urls:
        yield job_dirs.missing_job_dir(target, FORMS["gs"], STACK.format(region=region))
    for url in urls:
        bucket = url.partition("://")[2].partition("/")[0]
        readable = job_dirs.check_readable(url)
        if readable.status != "ok":
            yield readable
            continue
        try:
            found = list(check_bucket(rest, bucket))
        except ProvisionError as error:
            found = [from_google("job_dir", error, rest.project)]
        yield from job_dirs.merge(url, readable, found, _location(rest, bucket))


def from_google(subject: Subject, error: ProvisionError, project: str, *, needed: bool = False) -> CheckResult:
    """Return the result for an error; for an API that is not enabled, with the command and the page that enable it."""
    if error.code not in _DISABLED:
        return from_error(subject, error, needed=needed)
    service, page = _SERVICE.search(str(error)), _ACTIVATION.search(str(error))
    name = service[1] if service else "an API"
    fix = f"`gcloud services enable {name} --project {project}`"
    values = {"service": name, "activation_url": page[0] if page else None}
    more = f", or {page[0]}" if page else ""
    status: Status = "error" if needed else "warning"
    message = f"{'' if needed else 'not checked: '}{name} is not enabled in project {project}"
    return CheckResult(subject, status, message, f"{fix}{more}", values)


def enabled(rest: Rest, name: str, ask: Callable[[], object]) -> Iterator[CheckResult]:
    """Yield whether an API is enabled, by any request to it."""
    try:
        ask()
    except ProvisionError as error:
        may_not = error.error_class == "auth" and error.code not in _DISABLED  # which the check of rights names
        yield from_google("api", error, rest.project, needed=not may_not)
        return
    yield CheckResult("api", "ok", f"{name} is enabled in project {rest.project}", "", {"service": name})


def show_quotas(target: str, region: str, limits: Limits, project: str, blocked_by: str = "") -> CheckResult:
    """Return the result for the GPU quotas of a region; see checks.quotas.show()."""
    names = {
        machine.provider_accelerator: machine.accelerator
        for machines in catalog.machine_types(target).values()
        for machine in machines
    }
    found = [
        Allowance(
            names.get(quota.of) or quota.of,
            quota.market,
            quota.name,
            None if one.limit == quotas.UNLIMITED else one.limit,
            one.used,
        )
        for quota, one in limits.items()
    ]
    return show(region, "GPUs", found, f"ask for more: {quotas.request_url(project)}", blocked_by=blocked_by)


def cloud_quotas(rest: Rest, region: str, wanted: Sequence[quotas.Quota]) -> Limits:
    """Return the limits that only the Cloud Quotas API knows. Raises ProvisionError."""
    ids = list({quota.quota_id: quota for quota in wanted}.values())
    with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-check") as pool, parsing(f"ask for the quotas of {region}"):
        answers = list(pool.map(with_context(partial(quotas.cloud_limits, rest)), ids))
    found = {quota.quota_id: infos for quota, infos in zip(ids, answers, strict=True) if infos is not None}
    with parsing(f"read the quotas of {region}"):
        limits = {
            quota: quotas.granted(found[quota.quota_id], region, quota.gpu_family)
            for quota in wanted
            if quota.quota_id in found
        }
    return {quota: quotas.Allowed(limit, None) for quota, limit in limits.items() if limit is not None}


def _compute(rest: Rest, region: str) -> Iterator[CheckResult]:
    path = f"compute/v1/projects/{{project}}/regions/{region}"
    ask = partial(rest.get, "compute", path, f"ask for the region {region}", fields="name")
    return enabled(rest, "compute.googleapis.com", ask)


def _accounts(clients: Clients, stacks: Sequence[Infrastructure]) -> list[str]:
    """Return the service accounts that machines get."""
    if clients.named_account:
        return [clients.named_account]
    roles = [stack.machine_role for stack in stacks if stack.machine_role]
    return list(dict.fromkeys(roles)) or [clients.service_account]


def _quotas(rest: Rest, region: str) -> Iterator[CheckResult]:
    path = f"compute/v1/projects/{{project}}/regions/{region}"
    try:
        of_region = _limits(rest, path, f"ask for the quotas of {region}")
    except ProvisionError as error:
        yield from_google("quota", error, rest.project, needed=error.error_class in ("invalid", "not_offered"))
        return
    gpus = [quota for quota in quotas.quotas("gcp") if quota.unit == "GPUs"]
    limits = {quota: of_region[quota.metric] for quota in gpus if quota.metric in of_region}
    unread: list[CheckResult] = []
    blocked_by = ""
    try:
        everywhere = _limits(rest, "compute/v1/projects/{project}", "ask for the project's quotas").get(_ALL_GPUS)
        blocked_by = _ALL_GPUS if everywhere is not None and not everywhere.limit else ""
        limits |= cloud_quotas(rest, region, [quota for quota in gpus if quota.metric not in of_region])
    except ProvisionError as error:
        unread.append(from_google("quota", error, rest.project))
    yield show_quotas("gcp", region, limits, rest.project, blocked_by)
    yield from unread


def _limits(rest: Rest, path: str, doing: str) -> dict[str, quotas.Allowed]:
    """Return metric -> limit and usage, of a region or the project. Raises ProvisionError."""
    answer = rest.get("compute", path, doing, fields="quotas")
    with parsing(doing):
        return quotas.region_limits(answer)


def _location(rest: Rest, bucket: str) -> str:
    """Return a bucket's location; "": the caller may not see it, which no job needs."""
    try:
        found = rest.get("storage", f"storage/v1/b/{bucket}", f"look at the bucket {bucket}", fields="location")
    except ProvisionError:
        return ""
    return str(found.get("location", "")).lower()
