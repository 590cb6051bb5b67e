"""Checks of the target `vertex` (provisioners/checks/results.py describes them)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..base import ProvisionError
from ..checks.results import CheckRequest, CheckResult, Step
from ..gcp import check as google
from ..gcp.catalog import quotas
from ..gcp.login import check_account
from ..gcp.rest import Rest
from .clients import Clients


def steps(request: CheckRequest) -> list[Step]:
    """Return the checks."""
    clients = Clients()
    account = clients.google.account
    rest = Rest(account, clients.clock, "vertex")
    regions = request.regions or (google.DEFAULT_REGION,)

    def rights() -> Iterator[CheckResult]:
        return google.rights(rest, ("vertex",), [clients.google.service_account])

    return [
        *google.gates(account, f"{regions[0]}-aiplatform", partial(check_account, clients.google)),
        Step("api", partial(_api, rest, regions[0])),
        Step("rights", rights),
        Step("quota", lambda: (found for region in regions for found in _quotas(rest, region))),
        Step("job_dir", lambda: google.check_job_dirs(rest, "vertex", request.job_dirs, regions[0])),
    ]


def _api(rest: Rest, region: str) -> Iterator[CheckResult]:
    path = f"v1/projects/{{project}}/locations/{region}/customJobs"
    ask = partial(rest.get, f"{region}-aiplatform", path, f"list the jobs in {region}", pageSize="1")
    return google.enabled(rest, "aiplatform.googleapis.com", ask)


def _quotas(rest: Rest, region: str) -> Iterator[CheckResult]:
    gpus = [quota for quota in quotas.quotas("vertex") if quota.unit == "GPUs"]
    try:
        limits = google.cloud_quotas(rest, region, gpus)
    except ProvisionError as error:
        yield google.from_google("quota", error, rest.project)
        return
    yield google.show_quotas("vertex", region, limits, rest.project)
