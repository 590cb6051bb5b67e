"""Check where Azure credentials come from, whether Azure accepts them, and the subscription. Never shows a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..base import ProvisionError
from ..checks.results import CheckResult, from_error
from .account import SUBSCRIPTION, default_subscription, is_set_up
from .clients import Clients, translate_errors

_VERSION = "2022-12-01"
_LOGIN = "`az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
_SOURCES = (
    ("AZURE_CLIENT_SECRET", "environment", "an application's secret (AZURE_CLIENT_SECRET)"),
    ("AZURE_CLIENT_CERTIFICATE_PATH", "environment", "an application's certificate (AZURE_CLIENT_CERTIFICATE_PATH)"),
    ("AZURE_FEDERATED_TOKEN_FILE", "workload-identity", "a workload identity (AZURE_FEDERATED_TOKEN_FILE)"),
    ("IDENTITY_ENDPOINT", "managed-identity", "the managed identity of this machine"),
    ("MSI_ENDPOINT", "managed-identity", "the managed identity of this machine"),
)
"""(variable, name, description) of sources, in the order in which azure-identity tries them."""


def check_login(clients: Clients) -> Iterator[CheckResult]:
    """Yield whether credentials and a subscription are found, and from where. Sends no request."""
    if not (os.environ.get(SUBSCRIPTION) or default_subscription()):
        message = "no subscription is named"
        fix = f"`az login`, or set {SUBSCRIPTION} (`az account list` shows them)"
        yield CheckResult("credentials", "error", message, fix)
        return
    if not is_set_up():
        yield CheckResult("credentials", "error", "no Azure credentials were found", _LOGIN)
        return
    source, where = _source()
    values = {"source": source, "profile": None, "expires": None, "subscription": clients.subscription}
    yield CheckResult("credentials", "ok", where, "", values)


def check_account(clients: Clients) -> Iterator[CheckResult]:
    """Yield whether Azure gives a token, and the state of the subscription."""
    try:
        with translate_errors("ask Azure for a token", clients.clock):
            clients.account.credential.get_token(clients.account.scope)
    except ProvisionError as error:
        yield from_error("credentials", error)
        return
    url = f"subscriptions/{clients.subscription}?api-version={_VERSION}"
    try:
        found = clients.get(url, f"look at the subscription {clients.subscription}")
    except ProvisionError as error:
        yield from_error("account", error)
        return
    name, state = str(found.get("displayName", "")), str(found.get("state", ""))
    values = {"account": clients.subscription, "identity": None, "name": name, "state": state}
    message = f"Azure subscription {clients.subscription}, {name}"
    if state == "Enabled":
        yield CheckResult("account", "ok", message, "", values)
    else:
        fix = "its owner enables it in the portal (Subscriptions), or choose another: `az account set`"
        yield CheckResult("account", "error", f"{message}: its state is {state}", fix, values)


def _source() -> tuple[str, str]:
    """Return the name of the credentials' source, and its description."""
    found = next(((name, text) for variable, name, text in _SOURCES if os.environ.get(variable)), None)
    return found or ("login", "a login of `az login`, or the managed identity of this machine")
