"""Check where Google credentials come from, and whether Google accepts them. Never shows a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..base import ProvisionError
from ..checks.results import CheckResult, from_error
from .account import Account, adc_file, is_set_up
from .clients import Clients, translate_errors

_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_LOGIN = f"`gcloud auth application-default login`, or name a key file in {_KEY_FILE}"


def check_login(account: Account) -> Iterator[CheckResult]:
    """Yield whether credentials and a project are found, and from where. Sends no request."""
    if not is_set_up():
        yield CheckResult("credentials", "error", "no Google credentials were found", _LOGIN)
        return
    source, where = _source()
    try:
        project = account.project
    except ProvisionError as error:
        if error.code == "NoProject":
            fix = "set GOOGLE_CLOUD_PROJECT, or `gcloud config set project PROJECT`"
            yield CheckResult("credentials", "error", f"{where}, but no project is named", fix, {"source": source})
            return
        yield from_error("credentials", error)
        return
    identity = str(getattr(account.credentials, "service_account_email", "") or "")
    who = f" of {identity}" if "@" in identity else ""
    values = {"source": source, "profile": None, "expires": None, "project": project}
    yield CheckResult("credentials", "ok", f"{where}{who}", "", values)


def check_account(clients: Clients) -> Iterator[CheckResult]:
    """Yield whether Google gives a token for the credentials."""
    from google.auth.transport.requests import Request

    credentials = clients.account.credentials
    try:
        with translate_errors("ask Google for a token", clients.clock):
            credentials.refresh(Request())  # type: ignore[no-untyped-call]
    except ProvisionError as error:
        yield from_error("credentials", error)
        return
    identity = str(getattr(credentials, "service_account_email", "") or "")
    values = {"account": clients.project, "identity": identity or None}
    who = f", as {identity}" if "@" in identity else ""
    yield CheckResult("account", "ok", f"Google Cloud project {clients.project}{who}", "", values)


def _source() -> tuple[str, str]:
    """Return the name of the credentials' source, and its description."""
    named = os.environ.get(_KEY_FILE)
    if named:
        return "key-file", f"the file that {_KEY_FILE} names, {Path(named).name}"
    if adc_file().is_file():
        return "login", "the login of `gcloud auth application-default login`"
    return "machine", "the service account of this machine"
