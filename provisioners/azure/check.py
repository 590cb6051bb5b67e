"""Checks of the target `azure` (provisioners/checks/results.py describes them)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial

from ...jobspecs.fields import FORMS
from ..base import ProvisionError
from ..checks import job_dirs, sdk
from ..checks.endpoints import check_endpoints
from ..checks.quotas import Allowance, show
from ..checks.results import CheckRequest, CheckResult, Step, from_error
from .account import authority
from .catalog import quotas
from .catalog.regions import check_regions, regions_of
from .clients import Clients
from .login import check_account, check_login
from .names import part_of
from .resources.containers import Container, split_url
from .resources.identity import IDENTITY_SETTING, find_storage_account
from .rights import check_container, check_subscription

DEFAULT_REGION = "eastus"
_STACK = "cloudgpu infra up --cloud azure --region {region}"
_NAMESPACES = ("Compute", "Network", "ManagedIdentity", "Storage")
"""Resource providers that launches use, without `Microsoft.`."""
_PROVIDERS_VERSION = "2021-04-01"
_PATIENCE_S = 10.0


def steps(request: CheckRequest) -> list[Step]:
    """Return the checks."""
    clients = Clients()
    regions = request.regions or (DEFAULT_REGION,)
    return [
        Step("sdk", partial(sdk.check_extra, "azure", "azure.mgmt.compute"), is_gate=True),
        Step("credentials", partial(check_login, clients), is_gate=True),
        Step("network", lambda: check_endpoints([clients.account.endpoint, authority()], "Azure"), is_gate=True),
        Step("account", partial(check_account, clients), is_gate=True),
        Step("api", partial(_providers, clients)),
        Step("rights", lambda: check_subscription(clients, assigns=not _has_identity(request))),
        Step("quota", lambda: (found for region in regions for found in _quotas(clients, region))),
        Step("job_dir", lambda: _job_dirs(clients, request.job_dirs, regions[0])),
    ]


def _has_identity(request: CheckRequest) -> bool:
    """Return whether launches use an identity that exists, and assign no roles."""
    return bool(os.environ.get(IDENTITY_SETTING)) or any(stack.machine_role for stack in request.stacks)


def _providers(clients: Clients) -> Iterator[CheckResult]:
    """Yield whether the resource providers are registered in the subscription."""
    missing = []
    for name in _NAMESPACES:
        url = f"subscriptions/{clients.subscription}/providers/Microsoft.{name}?api-version={_PROVIDERS_VERSION}"
        try:
            found = clients.get(url, f"ask for the resource provider Microsoft.{name}")
        except ProvisionError as error:
            yield from_error("api", error, needed=False)
            return
        if found.get("registrationState") not in ("Registered", "Registering"):
            missing.append(f"Microsoft.{name}")
    if missing:
        fix = "; ".join(f"`az provider register --namespace {name}`" for name in missing)
        message = f"not registered in the subscription: {', '.join(missing)}"
        yield CheckResult("api", "error", message, fix, {"missing": missing})
        return
    names = ", ".join(_NAMESPACES)
    yield CheckResult("api", "ok", f"the resource providers of Microsoft are registered: {names}", "", {"missing": []})


def _quotas(clients: Clients, region: str) -> Iterator[CheckResult]:
    try:
        check_regions([region], regions_of(clients))
    except ProvisionError as error:
        if error.error_class == "invalid":
            yield from_error("quota", error)
            return
    try:
        listed = quotas.usages(clients, region, _PATIENCE_S)
    except ProvisionError as error:
        yield from_error("quota", error, needed=False)
        return
    found = [listed[quotas.key(code)] for code in quotas.families() if quotas.key(code) in listed]
    allowed = [Allowance(_family(one), "on-demand", one.name, one.limit, one.used) for one in found]
    total, spot = listed.get(quotas.key(quotas.TOTAL)), listed.get(quotas.key(quotas.SPOT))
    if spot is not None:
        allowed.append(Allowance("any family", "spot", spot.name, spot.limit, spot.used))
    is_blocked = total is not None and spot is not None and not total.limit and not spot.limit
    blocked_by = total.name if total is not None and is_blocked else ""
    yield show(region, "vCPUs", allowed, f"ask for more: {quotas.REQUEST_URL}", blocked_by=blocked_by)


def _family(usage: quotas.Usage) -> str:
    """Return a family's name without the words that all have: `NCASv3_T4` for `Standard NCASv3_T4 Family vCPUs`."""
    return re.sub(r"(?i)^standard\s*|\s*vCPUs$|\s*Family(?=(\s*vCPUs)?$)", "", usage.name) or usage.name


def _job_dirs(clients: Clients, urls: Sequence[str], region: str) -> Iterator[CheckResult]:
    if not urls:
        yield job_dirs.missing_job_dir("azure", FORMS["az"], _STACK.format(region=region))
    for url in urls:
        readable = job_dirs.check_readable(url)
        if readable.status != "ok":
            yield readable
            continue
        container, account, _ = split_url(url)
        try:
            found = find_storage_account(clients, account)
            place = Container(part_of(str(found["id"]), "resourceGroups"), account, container)
            rights = list(check_container(clients, place.scope(clients.subscription)))
            where = str(found.get("location", ""))
        except ProvisionError as error:
            rights, where = [from_error("job_dir", error, needed=False)], ""
        yield from job_dirs.merge(url, readable, rights, where)
