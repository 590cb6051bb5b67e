"""Whose Google Cloud this is: project, credentials and endpoint, for every API of the targets `gcp` and `vertex`.

All come from where Google's own tools take them: `GOOGLE_CLOUD_PROJECT`, Application Default Credentials. The only
setting of ours is `CLOUDGPU_GCP_ENDPOINT`, which stands for all of Google's APIs: a test's, on this machine.
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
    known_name,
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
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ON_GOOGLE = Path("/sys/class/dmi/id/product_name")
_LONGEST_MESSAGE = 500


class Account:
    """One account's project and credentials: read once, of any thread."""

    def __init__(self, clock: Clock, target: str = "gcp") -> None:
        """`target`: whose rows of errors.csv tell what goes wrong."""
        self._clock = clock
        self._target = target
        self._lock = threading.Lock()
        self._found: tuple[Credentials, str] | None = None

    @property
    def credentials(self) -> Credentials:
        """Raises ProvisionError if there are none."""
        return self._read()[0]

    @property
    def project(self) -> str:
        """The project's id. Raises ProvisionError if no setting names one."""
        return self._read()[1]

    @property
    def endpoint(self) -> str:
        """What stands for all of Google's APIs, e.g. `http://127.0.0.1:8123`; "": Google's own. Raises ProvisionError
        for one that is not encrypted."""
        url = os.environ.get(ENDPOINT, "").rstrip("/")
        check_encrypted(ENDPOINT, url)
        return url

    def forget(self) -> None:
        """Read the settings anew: whoever's credentials had expired may have logged in again."""
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
        with (
            translate_errors(error_translator(self._target), "read Google's credentials", self._clock),
            warnings.catch_warnings(),
        ):
            # Of a user's own login: that it names no project to be charged for calls. Ours are free.
            warnings.simplefilter("ignore", UserWarning)
            credentials, project = google.auth.default(scopes=[_SCOPE])
        project = os.environ.get(_PROJECT) or project
        if not project:
            message = f"no project is named: set {_PROJECT}, or `gcloud config set project PROJECT`"
            raise ProvisionError("auth", message, scope="cloud", code="NoProject")
        return credentials, project


def could_be_used() -> bool:
    """Whether the SDK is there and finds credentials of some kind; asks nobody but files and the environment."""
    if any(importlib.util.find_spec(package) is None for package in ("google", "google.auth", "google.cloud")):
        return False
    if importlib.util.find_spec("google.cloud.compute_v1") is None:
        return False
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or os.environ.get("GCE_METADATA_HOST"):
        return True  # if it is wrong, whoever uses it is told what
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config/gcloud"
    if Path(folder, "application_default_credentials.json").is_file():
        return True
    try:
        return _ON_GOOGLE.read_text(encoding="ascii").strip().startswith("Google")
    except (OSError, UnicodeDecodeError):
        return False


# --- what errors mean -------------------------------------------------------------------------------------------------


def error_translator(target: str) -> ErrorTranslator:
    """Return a translator of errors of Google's SDKs and transports by a target's rows of errors.csv."""
    return functools.partial(_translate_error, target)


def _translate_error(target: str, error: Exception, doing: str, clock: Clock) -> ProvisionError | None:
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.protobuf.json_format import ParseError
    from requests.exceptions import RequestException

    if isinstance(error, GoogleAPICallError):
        return _answered(target, error, doing, clock)
    if isinstance(error, GoogleAuthError):
        return _not_let_in(target, error, doing)
    if isinstance(error, (RequestException, GoogleAPIError, ParseError)):
        return classify(target, code=known_name(error), message=_short(str(error)), doing=doing)
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


def _not_let_in(target: str, error: Exception, doing: str) -> ProvisionError:
    """No token: there are no credentials, or Google does not take them, or its token service does not answer."""
    code = "TransportError" if getattr(error, "retryable", False) else known_name(error)
    message = " ".join(str(part) for part in error.args if isinstance(part, str)) or type(error).__name__
    return classify(target, code=code, message=_short(message), doing=doing)


def reason_of(error: GoogleAPICallError) -> tuple[str, str]:
    """Google's code and words: what one API says in `errors`, another in an ErrorInfo, and gRPC in its status."""
    first = next((one for one in error.errors if isinstance(one, dict)), {})
    code = str(first.get("reason") or getattr(error, "reason", None) or "")
    if not code:
        status = getattr(error, "grpc_status_code", None)
        code = status.name if status is not None else _status_of(error)
    message = str(first.get("message") or _words(error))
    return code, _short(message)


def _status_of(error: GoogleAPICallError) -> str:
    """`RESOURCE_EXHAUSTED`, as the newer APIs say it in JSON; "" if the answer is no JSON."""
    try:
        told_to_us = error.response.json()["error"]
        return str(told_to_us.get("status") or "")
    except (AttributeError, KeyError, TypeError, ValueError, json.JSONDecodeError):
        return ""


def _words(error: GoogleAPICallError) -> str:
    """The message without the method and URL that the SDK puts before it."""
    text = str(error.message)
    head, found, rest = text.partition(": ")
    return rest if found and "://" in head else text


def _short(text: str) -> str:
    """A proxy's or server's page of HTML is no message."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
