"""Whose Azure this is: subscription, credential and endpoint of Azure Resource Manager.

All come from where Azure's own tools take them: `AZURE_SUBSCRIPTION_ID`, else that of `az login`;
the credentials of azure-identity's DefaultAzureCredential, of which those that open a window are left out. The only
setting of ours is `CLOUDGPU_AZURE_ENDPOINT`: another cloud's Resource Manager (China, US Government), or a test's; with
it goes `AZURE_AUTHORITY_HOST`, which azure-identity reads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..base import ProvisionError
from ..boot.record import is_loopback
from ..shared.api_calls import check_encrypted, clock_is_off, known_name, retry_after_s, translate_errors
from ..shared.clock import Clock
from ..shared.errors import classify

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.exceptions import HttpResponseError

ENDPOINT = "CLOUDGPU_AZURE_ENDPOINT"
SUBSCRIPTION = "AZURE_SUBSCRIPTION_ID"
AUTHORITY = "AZURE_AUTHORITY_HOST"
_PUBLIC = "https://management.azure.com"
_PACKAGES = ("identity", "mgmt.authorization", "mgmt.compute", "mgmt.msi", "mgmt.network", "mgmt.resource.resources")
_ON_AZURE = Path("/sys/class/dmi/id/chassis_asset_tag")
_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Of every virtual machine of Azure. Source: Azure's documentation of its metadata service; cloud-init."""
_LONGEST_MESSAGE = 700
_WRONG_SETTING = "a variable AZURE_… of the environment is wrong, e.g. empty: correct it, or unset all of them"
_CONNECT_S, _READ_S = 10, 30
"""For the token service."""


class Account:
    """One subscription and its credential: read once, of any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: tuple[TokenCredential, str] | None = None

    @property
    def credential(self) -> TokenCredential:
        """Raises ProvisionError if the SDK is missing or no subscription is named."""
        return self._read()[0]

    @property
    def subscription(self) -> str:
        """Its id. Raises ProvisionError."""
        return self._read()[1]

    @property
    def endpoint(self) -> str:
        """Of Azure Resource Manager. Raises ProvisionError for one that is not encrypted."""
        url = (os.environ.get(ENDPOINT) or _PUBLIC).rstrip("/")
        check_encrypted(ENDPOINT, url)
        return url

    @property
    def scope(self) -> str:
        """Of its tokens; a test's endpoint stands for the public cloud's."""
        endpoint = self.endpoint
        return f"{_PUBLIC if is_loopback(endpoint) else endpoint}/.default"

    def forget(self) -> None:
        """Read the settings anew: whoever's credentials had expired may have logged in again."""
        with self._lock:
            self._found = None

    def _read(self) -> tuple[TokenCredential, str]:
        with self._lock:
            if self._found is None:
                self._found = self._ask()
            return self._found

    def _ask(self) -> tuple[TokenCredential, str]:
        need_sdk()
        doing = "read Azure's credentials"
        try:
            with translate_errors(translate_error, doing, self._clock):
                credential = _credential()
        except (OSError, ValueError) as error:
            message = f"{doing}: {short(str(error))}; {_WRONG_SETTING}"
            raise ProvisionError("auth", message, scope="cloud", code=type(error).__name__) from error
        subscription = os.environ.get(SUBSCRIPTION) or default_subscription()
        if not subscription:
            message = f"no subscription is named: set {SUBSCRIPTION}, or log in with `az login`"
            raise ProvisionError("auth", message, scope="cloud", code="NoSubscription")
        return credential, subscription


def _credential() -> TokenCredential:
    """Asks nobody yet. Raises OSError, ValueError for variables of the environment that cannot be used."""
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential(
        exclude_interactive_browser_credential=True,
        exclude_broker_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_powershell_credential=True,
        exclude_developer_cli_credential=True,
        exclude_shared_token_cache_credential=True,
        # A test's authority is not one that Microsoft's list of authorities knows.
        disable_instance_discovery=is_loopback(_authority()),
        connection_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retry_total=2,
    )


def default_subscription() -> str | None:
    """The one that `az` works with, by its own file; None: it is not logged in."""
    try:
        told_to_us = json.loads((_az_folder() / "azureProfile.json").read_text(encoding="utf-8-sig"))
        found = [one for one in told_to_us["subscriptions"] if one.get("isDefault")]
        return str(found[0]["id"]) if found else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def need_sdk() -> None:
    """Raises ProvisionError if Azure's SDK is not installed."""
    if not _is_installed():
        message = "the target azure needs Azure's SDK: pip install 'cloudgpu[azure]'"
        raise ProvisionError("invalid", message, scope="cloud", code="azure-mgmt-compute")


def could_be_used() -> bool:
    """Whether the SDK is there and finds credentials of some kind; asks nobody but files and the environment."""
    if not _is_installed():
        return False
    if not (os.environ.get(SUBSCRIPTION) or default_subscription()):
        return False
    if any(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT")):
        return True  # if it is wrong, whoever uses it is told what
    if (_az_folder() / "azureProfile.json").is_file():
        return True
    try:
        return _ON_AZURE.read_text(encoding="ascii").strip() == _ASSET_TAG
    except (OSError, UnicodeDecodeError):
        return False


def _is_installed() -> bool:
    names = ("azure", "azure.mgmt", "azure.mgmt.resource", *(f"azure.{package}" for package in _PACKAGES))
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


def _az_folder() -> Path:
    return Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure")


def _authority() -> str:
    """As a URL; azure-identity takes a bare host name, too."""
    named = os.environ.get(AUTHORITY, "")
    return named if urlsplit(named).scheme else f"https://{named}"


# --- what errors mean -------------------------------------------------------------------------------------------------


def translate_error(error: Exception, doing: str, clock: Clock) -> ProvisionError | None:
    """What an error of Azure's SDK means; None: it is not one."""
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        DeserializationError,
        HttpResponseError,
    )
    from requests.exceptions import RequestException

    if isinstance(error, HttpResponseError) and error.response is not None:
        return _answered(error, doing, clock)
    if isinstance(error, (AzureError, RequestException)):
        status = 401 if isinstance(error, ClientAuthenticationError) else None  # the token service's answer is lost
        return classify("azure", code=known_name(error), status=status, message=short(str(error)), doing=doing)
    if isinstance(error, (json.JSONDecodeError, DeserializationError)):
        message = f"{doing}: the answer is no JSON of Azure's; does something stand between this computer and Azure?"
        return ProvisionError("transient", message, scope="region", code=type(error).__name__)
    return None


def refusal(error: object, doing: str, status: int | None = None) -> ProvisionError:  # JSON
    """What the `error` of an operation that has failed means: `{"code": …, "message": …, "details": […]}`."""
    code, message = words_of(error if isinstance(error, dict) else {})
    return classify("azure", code=code, status=status, message=short(message), doing=doing, is_operation=True)


def words_of(error: dict[str, Any]) -> tuple[str, str]:
    """Azure's code and words: those of the first detail where the outer ones only say that something failed."""
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    details = [one for one in error.get("details") or () if isinstance(one, dict) and one.get("code")]
    if details and code in _SAYS_NOTHING:
        return words_of(details[0])
    return code, message


_SAYS_NOTHING = frozenset({"", "BadRequest", "Conflict", "DeploymentFailed", "ResourceDeploymentFailure"})


def short(text: str) -> str:
    """A proxy's or server's page of HTML is no message."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"


def code_of(error: HttpResponseError) -> str:
    """Azure's, of its answer; "": it has none."""
    return _told_in(error)[0]


def _answered(error: HttpResponseError, doing: str, clock: Clock) -> ProvisionError:
    headers = getattr(error.response, "headers", None) or {}
    code, message = _told_in(error)
    found = classify(
        "azure",
        code=code,
        status=error.status_code,
        message=short(message),
        doing=doing,
        retry_after=retry_after_s(headers.get("Retry-After"), clock),
    )
    skew = clock_is_off(headers.get("Date"), clock, "Azure") if found.error_class in ("auth", "expired") else ""
    return found.as_class("auth", skew) if skew else found


def _told_in(error: HttpResponseError) -> tuple[str, str]:
    """From the answer's JSON; a page of HTML has no code."""
    try:
        body = json.loads(error.response.text()) if error.response is not None else None
    except (ValueError, AttributeError):
        body = None
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict) and (inner.get("code") or inner.get("message")):
            return words_of(inner)
        if isinstance(inner, str):  # the token service: {"error": "invalid_client", "error_description": …}
            return inner, str(body.get("error_description") or inner)
    return "", str(error.message)
