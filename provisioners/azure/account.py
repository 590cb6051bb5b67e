"""Azure account: subscription, credential and endpoint of Azure Resource Manager, and translation of SDK errors.

All settings come from where Azure's own tools read them: `AZURE_SUBSCRIPTION_ID`, otherwise the subscription of `az
login`; the credentials of azure-identity's DefaultAzureCredential, without those that open a window. The only cloudgpu
setting is `CLOUDGPU_AZURE_ENDPOINT`: the URL of Resource Manager in another cloud (China, US Government) or in a test.
`AZURE_AUTHORITY_HOST`, which azure-identity reads, must then name the login endpoint of the same cloud.
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
from ..shared.api_calls import check_encrypted, clock_is_off, error_name, retry_after_s, translate_errors
from ..shared.clock import Clock
from ..shared.errors import classify

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.exceptions import HttpResponseError

ENDPOINT = "CLOUDGPU_AZURE_ENDPOINT"
SUBSCRIPTION = "AZURE_SUBSCRIPTION_ID"
AUTHORITY = "AZURE_AUTHORITY_HOST"
_PUBLIC, _ENTRA = "https://management.azure.com", "https://login.microsoftonline.com"
_PACKAGES = ("identity", "mgmt.authorization", "mgmt.compute", "mgmt.msi", "mgmt.network", "mgmt.resource.resources")
_ON_AZURE = Path("/sys/class/dmi/id/chassis_asset_tag")
_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis asset tag of every Azure virtual machine. Source: Azure's documentation of its metadata service;
cloud-init."""
_LONGEST_MESSAGE = 700
_WRONG_SETTING = "a variable AZURE_… of the environment is wrong, e.g. empty: correct it, or unset all of them"
_CONNECT_S, _READ_S = 10, 30
"""Timeouts in seconds of the token service, for a connection and for each read."""


class Account:
    """One subscription and its credential, read once. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: tuple[TokenCredential, str] | None = None

    @property
    def credential(self) -> TokenCredential:
        """Credential for Azure's SDK. Raises ProvisionError if the SDK is missing or no subscription is configured."""
        return self._read()[0]

    @property
    def subscription(self) -> str:
        """Id of the subscription. Raises ProvisionError."""
        return self._read()[1]

    @property
    def endpoint(self) -> str:
        """URL of Azure Resource Manager. Raises ProvisionError if it is not encrypted."""
        url = (os.environ.get(ENDPOINT) or _PUBLIC).rstrip("/")
        check_encrypted(ENDPOINT, url)
        return url

    @property
    def scope(self) -> str:
        """OAuth scope of the tokens; with a test's endpoint on the loopback, the scope of the public cloud."""
        endpoint = self.endpoint
        return f"{_PUBLIC if is_loopback(endpoint) else endpoint}/.default"

    def forget(self) -> None:
        """Drop the cached settings, so that the credentials of a new login are read."""
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
    """Return the credential, without any request. Raises OSError, ValueError for invalid environment variables."""
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential(
        exclude_interactive_browser_credential=True,
        exclude_broker_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_powershell_credential=True,
        exclude_developer_cli_credential=True,
        exclude_shared_token_cache_credential=True,
        # Microsoft's list of authorities does not contain a test's authority.
        disable_instance_discovery=is_loopback(authority()),
        connection_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retry_total=2,
    )


def default_subscription() -> str | None:
    """Return the default subscription from `az`'s profile file; None: not logged in."""
    try:
        profile = json.loads((_az_folder() / "azureProfile.json").read_text(encoding="utf-8-sig"))
        found = [one for one in profile["subscriptions"] if one.get("isDefault")]
        return str(found[0]["id"]) if found else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def need_sdk() -> None:
    """Raise ProvisionError if Azure's SDK is not installed."""
    if not _is_installed():
        message = "the target azure needs Azure's SDK: pip install 'cloudgpu[azure]'"
        raise ProvisionError("invalid", message, scope="cloud", code="azure-mgmt-compute")


def is_set_up() -> bool:
    """Return True if the SDK is installed, and a subscription and some credentials are configured. No request."""
    if not _is_installed():
        return False
    if not (os.environ.get(SUBSCRIPTION) or default_subscription()):
        return False
    if any(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT")):
        return True  # a wrong value raises a clear error on first use
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


def authority() -> str:
    """Return the authority as a URL; azure-identity also accepts a bare host name."""
    named = os.environ.get(AUTHORITY) or _ENTRA
    return named if urlsplit(named).scheme else f"https://{named}"


# --- errors
# ---------------------------------------------------------------------------------------------------------------


def translate_error(error: Exception, doing: str, clock: Clock) -> ProvisionError | None:
    """Translate an error of Azure's SDK to ProvisionError; None: another kind of error."""
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
        status = 401 if isinstance(error, ClientAuthenticationError) else None  # the response is not available
        return classify("azure", code=error_name(error), status=status, message=short(str(error)), doing=doing)
    if isinstance(error, (json.JSONDecodeError, DeserializationError)):
        message = f"{doing}: the answer is no JSON of Azure's; does something stand between this computer and Azure?"
        return ProvisionError("transient", message, scope="region", code=type(error).__name__)
    return None


def refusal(error: object, doing: str, status: int | None = None) -> ProvisionError:  # JSON
    """Translate the error object of a failed operation, `{"code": …, "message": …, "details": […]}`, to
    ProvisionError."""
    code, message = words_of(error if isinstance(error, dict) else {})
    return classify("azure", code=code, status=status, message=short(message), doing=doing, is_operation=True)


def words_of(error: dict[str, Any]) -> tuple[str, str]:
    """Return code and message of an error; those of its first detail if the outer code is generic."""
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    details = [one for one in error.get("details") or () if isinstance(one, dict) and one.get("code")]
    if details and code in _SAYS_NOTHING:
        return words_of(details[0])
    return code, message


_SAYS_NOTHING = frozenset({"", "BadRequest", "Conflict", "DeploymentFailed", "ResourceDeploymentFailure"})


def short(text: str) -> str:
    """Return `text` on one line, truncated to _LONGEST_MESSAGE characters: it may be a proxy's whole HTML page."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"


def code_of(error: HttpResponseError) -> str:
    """Return Azure's error code in the response; "": none."""
    return _parse_error(error)[0]


def _answered(error: HttpResponseError, doing: str, clock: Clock) -> ProvisionError:
    headers = getattr(error.response, "headers", None) or {}
    code, message = _parse_error(error)
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


def _parse_error(error: HttpResponseError) -> tuple[str, str]:
    """Return code and message from the response's JSON; the code is "" for other formats, such as HTML."""
    try:
        body = json.loads(error.response.text()) if error.response is not None else None
    except (ValueError, AttributeError):
        body = None
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict) and (inner.get("code") or inner.get("message")):
            return words_of(inner)
        if isinstance(inner, str):  # token service: {"error": "invalid_client", "error_description": …}
            return inner, str(body.get("error_description") or inner)
    return "", str(error.message)
