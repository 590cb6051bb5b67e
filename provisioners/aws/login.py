"""Check where AWS credentials come from, and when the login expires. Never shows a secret."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import ProvisionError
from ..checks.results import CheckResult
from .clients import Clients, reading_settings

if TYPE_CHECKING:
    from boto3.session import Session

_SOURCES = {
    "env": "environment variables (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "the credentials file",
    "config-file": "the config file",
    "sso": "a login of IAM Identity Center (`aws sso login`)",
    "login": "a login of the console (`aws login`)",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a role of a web identity",
    "custom-process": "a credential_process",
    "container-role": "the role of this container",
    "iam-role": "the role of this machine",
}
"""Method of botocore's credentials -> words."""
_EXPIRATION = "AWS_CREDENTIAL_EXPIRATION"
"""Variable that `aws configure export-credentials` sets."""
_SOON_S = 3_600.0
NO_LOGIN = "`aws configure` or `aws sso login`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def check_login(clients: Clients) -> Iterator[CheckResult]:
    """Yield whether credentials are found, from where, and when they expire. Sends no request, except to the metadata
    service of a machine or container."""
    with reading_settings(clients.clock):
        session = clients.session
        credentials = session.get_credentials()
    if credentials is None:
        yield CheckResult("credentials", "error", "no AWS credentials were found", NO_LOGIN)
        return
    source = _SOURCES.get(credentials.method, credentials.method)
    profile = session.profile_name if credentials.method != "env" else ""
    where = f"{source}, profile {profile}" if profile else source
    expires = _expiry(session, credentials.method)
    left = None if expires is None else expires - clients.clock.now()
    values = {"source": credentials.method, "profile": profile or None, "expires": expires}
    fix = "`aws sso login`" + (f" --profile {profile}" if profile and profile != "default" else "")
    if left is not None and left <= 0:
        yield CheckResult("credentials", "error", f"{where}: expired", fix, values)
    elif left is not None and left < _SOON_S:
        message = f"{where}: they expire in {left / 60:.0f} minutes; a job's supervisor needs them until it ends"
        yield CheckResult("credentials", "warning", message, fix, values)
    else:
        until = "" if left is None else f", for {left / 3_600:.0f} hours more"
        yield CheckResult("credentials", "ok", f"{where}{until}", "", values)


def _expiry(session: Session, method: str) -> float | None:
    """Return the epoch seconds at which a login expires that cannot be renewed here; None: unknown, or renewed."""
    text = os.environ.get(_EXPIRATION, "") if method == "env" else ""
    if method == "sso":
        token = _sso_token(session)
        text = "" if token.get("refreshToken") else str(token.get("expiresAt", ""))
    try:
        then = datetime.datetime.fromisoformat(text.replace("UTC", "+00:00"))
    except ValueError:
        return None
    return (then if then.tzinfo else then.replace(tzinfo=datetime.UTC)).timestamp()


def _sso_token(session: Session) -> dict[str, Any]:
    """Return the token that `aws sso login` has stored; {}: there is none, which the next call reports. Raises
    ProvisionError if its file is malformed."""
    from botocore.exceptions import BotoCoreError
    from botocore.utils import JSONFileCache, SSOTokenLoader

    folder = Path.home() / ".aws" / "sso" / "cache"
    settings: Any = session._session  # the public API does not offer the profile's settings
    try:
        profile = settings.get_scoped_config()
        name = profile.get("sso_session")
        section = settings.full_config.get("sso_sessions", {}).get(name, {}) if name else profile
        stored = JSONFileCache(str(folder))
        token: dict[str, Any] = SSOTokenLoader(stored)(section.get("sso_start_url", ""), session_name=name)
    except BotoCoreError:
        return {}
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:  # botocore's for malformed JSON
        advice = "`aws sso login`"
        message = f"the login that is stored in {folder} cannot be read; {advice}"
        raise ProvisionError("auth", message, scope="cloud", code=type(error).__name__, advice=advice) from error
    return token
