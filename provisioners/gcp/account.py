"""Google Cloud account: project, credentials and endpoint of the targets `gcp` and `vertex`; error translation.

All settings come from where Google's own tools read them: `GOOGLE_CLOUD_PROJECT`, Application Default Credentials. The
only cloudgpu setting is `CLOUDGPU_GCP_ENDPOINT`, a test's endpoint on this computer that replaces all Google APIs.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..base import ProvisionError
from ..shared.accounts import Accounts
from ..shared.api_calls import (
    ErrorTranslator,
    check_encrypted,
    clock_is_off,
    error_name,
    retry_after_s,
    translate_errors,
)
from ..shared.clock import Clock
from ..shared.errors import classify

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.credentials import Credentials

ENDPOINT = "CLOUDGPU_GCP_ENDPOINT"
ACCOUNTS = Accounts("the Google Cloud project", "set GOOGLE_CLOUD_PROJECT; nothing is changed until then")
_PROJECT = "GOOGLE_CLOUD_PROJECT"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ON_GOOGLE = Path("/sys/class/dmi/id/product_name")
_LONGEST_MESSAGE = 500


class Account:
    """Project and credentials of one account, read once. Thread-safe."""

    def __init__(self, clock: Clock, target: str = "gcp") -> None:
        """`target`: the target whose rows of errors.csv classify errors."""
        self._clock = clock
        self._target = target
        self._lock = threading.Lock()
        self._found: tuple[Credentials, str] | None = None

    @property
    def credentials(self) -> Credentials:
        """Credentials for Google's SDKs. Raises ProvisionError if there are none."""
        return self._read()[0]

    @property
    def project(self) -> str:
        """Id of the project. Raises ProvisionError if none is configured."""
        return self._read()[1]

    @property
    def endpoint(self) -> str:
        """URL that replaces all Google APIs, e.g. `http://127.0.0.1:8123`; "": Google's own. Raises ProvisionError if
        it is not encrypted."""
        url = os.environ.get(ENDPOINT, "").rstrip("/")
        check_encrypted(ENDPOINT, url)
        return url

    def forget(self) -> None:
        """Drop the cached settings, so that the credentials of a new login are read."""
        with self._lock:
            self._found = None

    def _read(self) -> tuple[Credentials, str]:
        with self._lock:
            if self._found is None:
                self._found = self._ask()
            return self._found

    def _ask(self) -> tuple[Credentials, str]:
        try:
            import google.auth
        except ImportError as error:
            message = f"the target {self._target} needs Google's SDK: pip install 'cloudgpu[gcp]'"
            raise ProvisionError("invalid", message, scope="cloud", code="google-auth") from error
        try:
            with (
                translate_errors(error_translator(self._target), "read Google's credentials", self._clock),
                warnings.catch_warnings(),
            ):
                # google.auth warns that a user's login has no quota project; cloudgpu's calls are free.
                warnings.simplefilter("ignore", UserWarning)
                credentials, project = google.auth.default(scopes=[_SCOPE])
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
            raise _no_key_file(error) from error
        project = os.environ.get(_PROJECT) or project
        if not project:
            message = f"no project is named: set {_PROJECT}, or `gcloud config set project PROJECT`"
            raise ProvisionError("auth", message, scope="cloud", code="NoProject")
        return credentials, project


def _no_key_file(error: Exception) -> ProvisionError:
    """Return the error for a credentials file that google-auth cannot take apart, or not read."""
    path = os.environ.get(_KEY_FILE) or adc_file()
    unread = error.strerror if isinstance(error, OSError) else None
    reason = f"cannot be read: {unread}" if unread else "is no key file and no login of Google"
    advice = f"name a key file in {_KEY_FILE}, or `gcloud auth application-default login`"
    message = f"read Google's credentials: {path} {reason}; {advice}"
    return ProvisionError("auth", message, scope="cloud", code=error_name(error), advice=advice)


def is_set_up() -> bool:
    """Return True if the SDK is installed and some credentials are configured. Sends no request."""
    if any(importlib.util.find_spec(package) is None for package in ("google", "google.auth", "google.cloud")):
        return False
    if importlib.util.find_spec("google.cloud.compute_v1") is None:
        return False
    if os.environ.get(_KEY_FILE) or os.environ.get("GCE_METADATA_HOST"):
        return True  # a wrong value raises a clear error on first use
    if adc_file().is_file():
        return True
    try:
        return _ON_GOOGLE.read_text(encoding="ascii").strip().startswith("Google")
    except (OSError, UnicodeDecodeError):
        return False


def adc_file() -> Path:
    """Return the path of the file that `gcloud auth application-default login` writes."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config/gcloud"
    return Path(folder, "application_default_credentials.json")


# --- errors
# ---------------------------------------------------------------------------------------------------------------


def error_translator(target: str) -> ErrorTranslator:
    """Return a function that translates errors of Google's SDKs to ProvisionError by a target's rows of errors.csv."""
    return functools.partial(_translate_error, target)


def _translate_error(target: str, error: Exception, doing: str, clock: Clock) -> ProvisionError | None:
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.protobuf.json_format import ParseError
    from requests.exceptions import RequestException

    if isinstance(error, GoogleAPICallError):
        return _answered(target, error, doing, clock)
    if isinstance(error, GoogleAuthError):
        return _auth_error(target, error, doing)
    if isinstance(error, (RequestException, GoogleAPIError, ParseError)):
        return classify(target, code=error_name(error), message=_short(str(error)), doing=doing)
    return None


def _answered(target: str, error: GoogleAPICallError, doing: str, clock: Clock) -> ProvisionError:
    headers = getattr(error.response, "headers", None) or {}
    code, message = reason_of(error)
    found = classify(
        target,
        code=code,
        status=None if error.code is None else int(error.code),
        message=message,
        doing=doing,
        retry_after=retry_after_s(headers.get("retry-after"), clock),
    )
    skew = clock_is_off(headers.get("date"), clock, "Google") if found.error_class in ("auth", "expired") else ""
    return found.as_class("auth", skew) if skew else found


def _auth_error(target: str, error: Exception, doing: str) -> ProvisionError:
    """Translate an error of google.auth: missing or rejected credentials, or no response of the token service."""
    code = "TransportError" if getattr(error, "retryable", False) else error_name(error)
    message = " ".join(str(part) for part in error.args if isinstance(part, str)) or type(error).__name__
    return classify(target, code=code, message=_short(message), doing=doing)


def reason_of(error: GoogleAPICallError) -> tuple[str, str]:
    """Return Google's error code and message, from `errors`, ErrorInfo or the gRPC status, depending on the API."""
    first = next((one for one in error.errors if isinstance(one, dict)), {})
    code = str(first.get("reason") or getattr(error, "reason", None) or "")
    if not code:
        status = getattr(error, "grpc_status_code", None)
        code = status.name if status is not None else _status_of(error)
    message = str(first.get("message") or _words(error))
    return code, _short(message)


def _status_of(error: GoogleAPICallError) -> str:
    """Return the status in newer APIs' JSON, e.g. `RESOURCE_EXHAUSTED`; "" for other formats."""
    try:
        error_body = error.response.json()["error"]
        return str(error_body.get("status") or "")
    except (AttributeError, KeyError, TypeError, ValueError, json.JSONDecodeError):
        return ""


def _words(error: GoogleAPICallError) -> str:
    """Return the message without the method and URL that the SDK prepends."""
    text = str(error.message)
    head, found, rest = text.partition(": ")
    return rest if found and "://" in head else text


def _short(text: str) -> str:
    """Return `text` on one line, truncated to _LONGEST_MESSAGE characters: it may be a proxy's whole HTML page."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
