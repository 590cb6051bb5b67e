"""Current on-demand and Spot prices of Azure's machines, from the Retail Prices API, which needs no login.

Each size is queried for all regions at once: a few hundred entries, whereas a region's list has thousands. Each entry
is the price of a size in one form of sale. Prices with Windows, for dedicated hosts, for Cloud Services and for
Batch's "Low Priority" machines do not apply and are skipped. Source: Microsoft's documentation, "Azure Retail Prices
overview" (fields of an entry, filters, paging); the strings that distinguish entries were found in its responses.
"""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ....jobspecs.plan import Offer
from ...base import ProvisionError
from ...boot.record import is_loopback
from ...shared.api_calls import ask
from ...shared.clock import Clock
from ..account import Account, need_sdk, translate_error

if TYPE_CHECKING:
    from azure.core import PipelineClient

MARKETS = ("on-demand", "spot")
_HOST = "https://prices.azure.com"
_PATH = "/api/retail/prices"
_VERSION = "2023-01-01-preview"
"""API version that marks primary meters and compares names exactly."""
_CONNECT_S, _READ_S = 5.0, 30.0
_RETRY_TIMEOUT_S = 60.0
"""Timeout of retries in seconds: the API throttles by client address."""
_LAUNCH_RETRY_TIMEOUT_S = 5.0
_MAX_PAGES = 100
_MICRO = Decimal("0.000001")
_NOT_OURS = re.compile(r"windows|dedicated|cloud ?services|low priority", re.IGNORECASE)


class PriceList:
    """Client of the Retail Prices API. Thread-safe."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self._account = account
        self._clock = clock
        self._lock = threading.Lock()
        self._made: PipelineClient[Any, Any] | None = None

    def of(self, machine_type: str, timeout_s: float = _RETRY_TIMEOUT_S) -> Prices:
        """Return the prices of a size in all regions. Raises ProvisionError."""
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        return read(machine_type, self._entries(machine_type, timeout_s), now)

    def _entries(self, machine_type: str, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        doing = f"ask for prices of {machine_type}"
        query = {
            "api-version": _VERSION,
            "currencyCode": "USD",
            "$filter": f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' "
            f"and armSkuName eq '{machine_type}'",
        }
        for _ in range(_MAX_PAGES):
            page = self._page(query, doing, timeout_s)
            try:
                yield from page["Items"]
                more = page.get("NextPageLink")
            except (KeyError, TypeError, AttributeError) as error:
                message = f"{doing}: an unexpected answer ({type(error).__name__}: {error})"
                raise ProvisionError("transient", message, scope="cloud") from error
            if not more:
                return
            query = dict(parse_qsl(urlsplit(str(more)).query))  # keep the configured host instead of the link's
        raise ProvisionError("transient", f"{doing}: more than {_MAX_PAGES} pages", scope="cloud")

    def _page(self, query: Mapping[str, str], doing: str, timeout_s: float) -> Any:  # JSON
        def call() -> Any:
            from azure.core.rest import HttpRequest

            answer = self._client.send_request(HttpRequest("GET", self._url, params=dict(query)))
            answer.raise_for_status()
            try:
                return answer.json()
            except ValueError as error:
                message = f"{doing}: the answer is no JSON ({error})"
                raise ProvisionError("transient", message, scope="cloud") from error

        return ask(call, translate_error, doing, timeout_s=timeout_s, clock=self._clock)

    @property
    def _url(self) -> str:
        """URL of the API: Microsoft's, or on a test's endpoint if the configured one is on the loopback."""
        endpoint = self._account.endpoint
        return f"{endpoint if is_loopback(endpoint) else _HOST}{_PATH}"

    @property
    def _client(self) -> PipelineClient[Any, Any]:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> PipelineClient[Any, Any]:
        need_sdk()
        from azure.core import PipelineClient
        from azure.core.pipeline import policies

        sent = [policies.UserAgentPolicy("cloudgpu"), policies.ProxyPolicy(), policies.RedirectPolicy()]
        return PipelineClient(
            _HOST,
            policies=[*sent, policies.RetryPolicy.no_retries()],
            connection_timeout=_CONNECT_S,
            read_timeout=_READ_S,
        )


class Prices(NamedTuple):
    """Prices of a size in US dollars per hour, with Linux."""

    amounts: Mapping[tuple[str, str], Decimal]
    """(region, market) -> price; a missing key means unknown or not sold."""
    odd: frozenset[str]
    """Descriptions of unparsable or contradictory entries."""


def read(machine_type: str, entries: Iterable[Mapping[str, object]], now: datetime.datetime) -> Prices:
    """Parse a size's prices from the API's entries.

    The primary meter's price has precedence. If several different prices remain, the price is unknown."""
    found: dict[tuple[str, str], dict[bool, set[Decimal]]] = {}
    odd: set[str] = set()
    for entry in entries:
        try:
            meter = str(entry["meterName"])
            if entry.get("armSkuName") != machine_type or not _is_ours(entry) or not _holds(entry, now):
                continue
            if entry["unitOfMeasure"] != "1 Hour" or entry["currencyCode"] != "USD":
                odd.add(f"{meter} in {entry['currencyCode']} for {entry['unitOfMeasure']}")
                continue
            place = (str(entry["armRegionName"]), _market(entry))
            by_meter = found.setdefault(place, {})
            by_meter.setdefault(bool(entry.get("isPrimaryMeterRegion", True)), set()).add(_amount(entry))
        except (KeyError, TypeError, ValueError) as error:
            odd.add(f"an entry of {machine_type} that is not understood ({type(error).__name__}: {error})")
    amounts: dict[tuple[str, str], Decimal] = {}
    for (region, market), by_meter in found.items():
        meant = by_meter.get(True) or by_meter[False]
        if len(meant) == 1:
            amounts[region, market] = next(iter(meant))
        else:
            odd.add(f"{machine_type} {market}: {len(meant)} prices in {region}")
    return Prices(amounts, frozenset(odd))


def offer_price(prices: PriceList, offer: Offer) -> Decimal | None:
    """Return the current total price of an offer in US dollars an hour, disks included. Raises ProvisionError.

    Only Spot prices are queried; they are the same in all zones of a region. Returns None if a price is unknown, and
    for other markets: list prices hardly change, so that the plan's price still holds.
    """
    if offer.market != "spot" or offer.disk_price is None:
        return None
    total = offer.disk_price
    for role in offer.roles:
        amount = prices.of(role.machine_type, _LAUNCH_RETRY_TIMEOUT_S).amounts.get((offer.region, "spot"))
        if amount is None:
            return None
        total += amount * role.nodes
    return total.quantize(_MICRO)


def _market(entry: Mapping[str, object]) -> str:
    """Return the market, from the words of SKU and meter name: `NC4as T4 v3 Spot`."""
    return "spot" if "spot" in f"{entry['skuName']} {entry['meterName']}".casefold().split() else "on-demand"


def _is_ours(entry: Mapping[str, object]) -> bool:
    sold_as = f"{entry['productName']} / {entry['skuName']} / {entry['meterName']}"
    return entry["type"] == "Consumption" and not entry.get("tierMinimumUnits") and not _NOT_OURS.search(sold_as)


def _holds(entry: Mapping[str, Any], now: datetime.datetime) -> bool:
    """Return True if the price is in effect at `now`."""
    ends = entry.get("effectiveEndDate")
    return _moment(entry["effectiveStartDate"]) <= now and (ends is None or now < _moment(ends))


def _moment(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _amount(entry: Mapping[str, object]) -> Decimal:
    """Return the price. Raises ValueError for an invalid one, such as 0, which Azure uses for missing prices."""
    try:
        amount = Decimal(str(entry["retailPrice"]))
    except InvalidOperation as error:
        raise ValueError(f"a price of {entry['retailPrice']}") from error
    if not amount.is_finite() or amount <= 0:
        raise ValueError(f"a price of {amount} USD/h in {entry['armRegionName']}")
    return amount
