"""GPU quotas of the project in a region, checked before machines are launched.

Compute Engine limits GPUs by region and model, with separate limits for Spot and Flex-start, and limits all models
together over all regions. The region itself (Regions.get) returns limits and usage of older models; the limits of newer
models come only from the Cloud Quotas API. Vertex AI has separate quotas, of which only the limits are available.
quotas.csv maps accelerators to quotas. Accelerators missing there (Vertex AI's P4, B200 and RTX PRO 6000, whose ids
could not be verified) are not checked; Google enforces their quotas.

Sources in quotas.csv: `gce-quota-enum`: values of Quota.metric in the Compute Engine API's discovery document, and the
ids that Cloud Quotas derives from them; `cloud-quotas-docs`: Google's pages on Cloud Quotas; `vertex-samples`: Google's
vertex-ai-samples, and "Schedule training jobs based on resource availability" (Flex-start uses preemptible quota);
`public-code`: several public programs that query these ids, not verified otherwise.
"""

from __future__ import annotations

import csv
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ....jobspecs import catalog
from ...base import NodeRequest, ProvisionError, Scope
from ..rest import Rest, items, last_part

log = logging.getLogger("cloudgpu.provisioners.gcp")

UNLIMITED = math.inf
GLOBAL = "global"
"""Region value of quotas over all regions together."""
_TABLE = Path(__file__).with_name("quotas.csv")
_SERVICE = {"gcp": "compute.googleapis.com", "vertex": "aiplatform.googleapis.com"}
_MARKETS = {"on-demand": "on-demand", "spot": "spot", "flex-start": "spot"}
"""Market -> market of its quota: Flex-start machines use the preemptible quotas. Reservations include their quota."""
_SHORT_S = 7 * 86_400
_ALL = {"GPUs": "GPUS_ALL_REGIONS", "vCPUs": "CPUS_ALL_REGIONS"}
ALL_REGIONS = frozenset(_ALL.values())
"""Metrics of quotas over all regions of the project."""
_HOLDING = frozenset({"PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING", "REPAIRING", "PENDING_STOP"})
"""States of an instance in which its GPUs count as used."""

_T = TypeVar("_T")


class Quota(NamedTuple):
    """Limit on a model's GPUs, or on a series' vCPUs, in one market of a region."""

    target: str
    """`gcp` or `vertex`, which have separate quotas."""
    of: str
    """Accelerator in the target API's spelling, or the series (`n1`) whose vCPUs count."""
    market: str
    """`on-demand` or `spot`."""
    metric: str
    """Name in Regions.get; "": not available there."""
    quota_id: str
    """Id in the Cloud Quotas API."""
    gpu_family: str
    """Value of the gpu_family dimension of `quota_id`; "": none."""

    @property
    def unit(self) -> str:
        return "vCPUs" if self.of == "n1" else "GPUs"

    @property
    def service(self) -> str:
        return _SERVICE[self.target]

    @property
    def name(self) -> str:
        """Name to search for on the console's page of quotas."""
        return self.metric or " ".join(part for part in (self.quota_id, self.gpu_family) if part)


class Allowed(NamedTuple):
    """Limit and usage of a quota."""

    limit: float
    """UNLIMITED: no limit."""
    used: float | None
    """None: not available."""


def quota_of(target: str, of: str, market: str) -> Quota | None:
    """Return the quota that an accelerator counts against in this market; None: none, or unknown."""
    return _quotas().get((target, of, _MARKETS.get(market, "")))


def quotas(target: str) -> list[Quota]:
    """Return all known quotas of a target."""
    return [quota for quota in _quotas().values() if quota.target == target]


def request_url(project: str) -> str:
    """Return the URL for requesting a higher quota."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"


def check(
    rest: Rest,
    *,
    region: str,
    market: str,
    nodes: Sequence[NodeRequest],
    target: str = "gcp",
    run_s: int | None = None,
) -> None:
    """Raise ProvisionError(quota) if these machines would exceed a quota, given current usage.

    `run_s`: seconds after which the machines are deleted (scheduling.maxRunDuration); None: never. With at most a week,
    on-demand machines may use either the standard or the preemptible quota ("Limit the run time of a VM").

    `nodes` are only the machines to start: running ones of the same launch count as used. If the APIs do not return a
    quota (no permission, an API that is not enabled, unknown quota), the launch continues with one warning in the log,
    and Google decides. One to four read-only calls: compute.regions.get, compute.projects.get and, for newer GPUs,
    cloudquotas.quotas.get and compute.instances.list; for Vertex AI, cloudquotas.quotas.get for each model of GPU.
    """
    needed = _needed(target, market, nodes)
    if not needed:
        return
    state = _State(rest, region)
    either = market == "on-demand" and run_s is not None and run_s <= _SHORT_S
    for quota, amount in needed.items():
        _check_one(state, quota, amount, either=either)
    # Not documented: whether preemptible usage counts against the quotas of all regions. Google checks that itself.
    if target == "gcp" and _MARKETS[market] == "on-demand":
        for unit in dict.fromkeys(quota.unit for quota in needed if not (either and quota.unit == "GPUs")):
            total = sum(amount for quota, amount in needed.items() if quota.unit == unit)
            _check_total(state, unit, total)


def _needed(target: str, market: str, nodes: Iterable[NodeRequest]) -> Counter[Quota]:
    needed: Counter[Quota] = Counter()
    for node in nodes:
        machine = catalog.find_machine_type(target, node.machine_type, node.accelerator)
        if machine is None:
            continue
        gpus = quota_of(target, machine.provider_accelerator, market) if machine.provider_accelerator else None
        if gpus is not None:
            needed[gpus] += math.ceil(node.count)
        host = quota_of(target, node.machine_type.partition("-")[0], market)
        if host is not None and machine.vcpus is not None:
            needed[host] += machine.vcpus
    return needed


def _check_one(state: _State, quota: Quota, needed: int, *, either: bool) -> None:
    """Raise ProvisionError(quota) if the machines fit neither the quota nor one that Google may use instead.

    Without preemptible quota in the project, Spot machines use the standard quotas. `either`: both may be used anyway.
    """
    choices = [quota]
    if quota.target == "gcp" and (quota.market == "spot" or either):
        markets = [market for market in ("on-demand", "spot") if market != quota.market]
        others = [_quotas().get((quota.target, quota.of, market)) for market in markets]
        choices += [other for other in others if other is not None]
    refusal: ProvisionError | None = None
    for choice in choices:
        found = _or_none(partial(state.allowed, choice, needed), f"quota {choice.name} of {state.region}")
        if found is None or (found.used or 0) + needed <= found.limit:
            return
        refusal = refusal or state.refusal(choice.name, choice.unit, found, needed, state.region, "region")
        if found.limit > 0 and not either:
            break
    if refusal is not None:
        raise refusal


def _check_total(state: _State, unit: str, needed: int) -> None:
    metric = _ALL[unit]
    found = _or_none(lambda: state.project_quotas().get(metric), f"quota {metric}")
    if found is not None and (found.used or 0) + needed > found.limit:
        raise state.refusal(metric, unit, found, needed, "all regions together", "cloud")


def _or_none(ask: Callable[[], _T | None], what: str) -> _T | None:
    """Return the result of `ask`; None: not available, which is logged once."""
    try:
        return ask()
    except (ProvisionError, KeyError, TypeError, ValueError) as error:
        _say_once(str(error) if isinstance(error, ProvisionError) else f"{what}: an unexpected answer")
        return None


@cache
def _say_once(reason: str) -> None:
    log.warning("not checked before launching: %s", reason)


class _State:
    """Quotas of a region, cached for one check. Failures are cached, too, because an unresponsive server costs half a
    minute for each request. Methods raise ProvisionError."""

    def __init__(self, rest: Rest, region: str) -> None:
        self.region = region
        self._rest = rest
        self._asked: dict[str, dict[str, Allowed] | ProvisionError] = {}

    def allowed(self, quota: Quota, needed: int) -> Allowed | None:
        """Return limit and usage of a quota; None: the region lacks it, or it is not available.

        `needed`: usage is not queried if this exceeds the limit.
        """
        if quota.metric and quota.metric in self.region_quotas():
            return self.region_quotas()[quota.metric]
        limits = cloud_limits(self._rest, quota)
        limit = None if limits is None else granted(limits, self.region, quota.gpu_family)
        if limit is None:
            return None
        if quota.target != "gcp" or needed > limit:
            return Allowed(limit, None)
        return Allowed(limit, _in_use(self._rest, quota, self.region))

    def region_quotas(self) -> dict[str, Allowed]:
        path = f"compute/v1/projects/{{project}}/regions/{self.region}"
        return self._quotas_at(path, f"ask for the quotas of {self.region}")

    def project_quotas(self) -> dict[str, Allowed]:
        return self._quotas_at("compute/v1/projects/{project}", "ask for the project's quotas")

    def refusal(  # noqa: PLR0917 - parts of one message, in its order
        self, name: str, unit: str, found: Allowed, needed: int, where: str, scope: Scope
    ) -> ProvisionError:
        beside = f" and {found.used:g} are in use" if found.used else ""
        return ProvisionError(
            "quota",
            f"{where}: {needed} {unit} more are needed, but {name} allows {found.limit:g}{beside}; "
            f"ask for more: {request_url(self._rest.project)}",
            scope=scope,
            code=name,
        )

    def _quotas_at(self, path: str, doing: str) -> dict[str, Allowed]:
        if path not in self._asked:
            try:
                self._asked[path] = region_limits(self._rest.get("compute", path, doing, fields="quotas"))
            except ProvisionError as error:
                self._asked[path] = error
        found = self._asked[path]
        if isinstance(found, ProvisionError):
            raise found
        return found


# --- API responses
# --------------------------------------------------------------------------------------------------------


def region_limits(answer: Mapping[str, object]) -> dict[str, Allowed]:
    """Return metric -> limit and usage, from a region's or the project's response."""
    return {
        str(item["metric"]): Allowed(_number(item["limit"]), _number(item.get("usage", 0)))
        for item in items(answer, "quotas")
    }


def cloud_limits(rest: Rest, quota: Quota) -> list[dict[str, Any]] | None:
    """Return a quota's limits in all regions, for granted(), from the Cloud Quotas API; None: it does not exist.

    Raises ProvisionError.
    """
    path = f"v1/projects/{{project}}/locations/global/services/{quota.service}/quotaInfos/{quota.quota_id}"
    answer = rest.find("cloudquotas", path, f"ask for quota {quota.quota_id}")
    return None if answer is None else items(answer, "dimensionsInfos")


def granted(infos: Iterable[Mapping[str, Any]], region: str, gpu_family: str) -> float | None:
    """Return the limit for this region and family, from the most specific entry; None: no entry applies.

    An entry without a dimension applies to all values that have no separate entry; a family's entry precedes a region's
    (Cloud Quotas: "Dimension precedence").
    """
    meant = {"region": region, "gpu_family": gpu_family}
    best: tuple[int, float] | None = None
    for info in infos:
        dimensions: Mapping[str, str] = info.get("dimensions") or {}
        if any(meant.get(name) != value for name, value in dimensions.items()):
            continue
        locations = info.get("applicableLocations") or [region]
        value = (info.get("details") or {}).get("value")
        if value is None or ("region" not in dimensions and region not in locations and GLOBAL not in locations):
            continue
        rank = 2 * ("gpu_family" in dimensions) + ("region" in dimensions)
        if best is None or rank > best[0]:
            best = (rank, _number(value))
    return None if best is None else best[1]


def _in_use(rest: Rest, quota: Quota, region: str) -> float:
    """Return the number of GPUs of the project's instances that count against the quota."""
    fields = "items/*/instances(machineType,status,guestAccelerators,scheduling/provisioningModel),nextPageToken"
    used = 0.0
    path, doing = "compute/v1/projects/{project}/aggregated/instances", f"count the GPUs in use in {region}"
    for page in rest.pages("compute", path, doing, fields=fields):
        for scope, found in (page.get("items") or {}).items():
            if last_part(scope).rpartition("-")[0] == region:
                used += sum(_gpus(instance, quota) for instance in items(found, "instances"))
    return used


def _gpus(instance: Mapping[str, Any], quota: Quota) -> float:
    model = (instance.get("scheduling") or {}).get("provisioningModel", "STANDARD")
    market = {"STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "spot"}.get(model, "")
    if instance.get("status") not in _HOLDING or market != quota.market:
        return 0
    attached = sum(
        item.get("acceleratorCount", 0)
        for item in items(instance, "guestAccelerators")
        if last_part(item["acceleratorType"]) == quota.of
    )
    if attached:
        return float(attached)
    known = catalog.machine_types("gcp").get(last_part(instance["machineType"]), ())
    return sum(math.ceil(one.counts[0]) for one in known if one.provider_accelerator == quota.of and len(known) == 1)


def _number(value: object) -> float:
    """Parse a limit, a number or a string of digits; negative values mean no limit."""
    number = float(str(value))
    return UNLIMITED if number < 0 else number


# --- the table --------------------------------------------------------------------------------------------------------


@cache
def _quotas() -> dict[tuple[str, str, str], Quota]:
    """Return (target, accelerator or series, market) -> quota."""
    return {(row["target"], row["of"], row["market"]): Quota(*(row[name] for name in Quota._fields)) for row in _rows()}


def _rows() -> Iterator[dict[str, str]]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
