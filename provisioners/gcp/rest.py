"""REST client for read-only calls of Google's APIs: regions, machine types, quotas, list prices, permissions.

The SDKs of these APIs would be three more packages for about a dozen GETs. Credentials, their renewal and the transport
come from google-auth (AuthorizedSession), errors from google-api-core, so that they are classified as the SDKs' are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import ProvisionError
from ..shared.api_calls import ask
from ..shared.clock import Clock
from .account import Account, error_translator

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

_TIMEOUT_S = (5.0, 30.0)
"""Timeouts in seconds for the connection and for each read; a page of a few hundred machine types takes seconds."""
_RETRY_TIMEOUT_S = 20.0
"""Timeout of retries in seconds: an unresponsive server costs at most one more request timeout."""
_MAX_PAGES = 1_000


class Rest:
    """Client for requests to one account's project that change nothing. Thread-safe."""

    def __init__(self, account: Account, clock: Clock, target: str = "gcp") -> None:
        """`target`: the target whose rows of errors.csv classify errors."""
        self._account = account
        self._clock = clock
        self._translate_error = error_translator(target)
        self._local = threading.local()

    @property
    def project(self) -> str:
        """Id of the project. Raises ProvisionError."""
        return self._account.project

    def get(self, service: str, path: str, doing: str, **params: str | Sequence[str]) -> dict[str, Any]:
        """Return the JSON response. Raises ProvisionError.

        `service`: first part of the host, e.g. `compute`; `path`: `{project}` is replaced; `doing`: beginning of error
        messages.
        """
        found = self._request("GET", service, path, doing, params, missing_ok=False)
        if found is None:
            raise AssertionError("what is missing was raised")
        return found

    def find(self, service: str, path: str, doing: str, **params: str) -> dict[str, Any] | None:
        """Like get(), but return None on 404."""
        return self._request("GET", service, path, doing, params, missing_ok=True)

    def post(self, service: str, path: str, doing: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Return the JSON response to a question whose method is POST, such as testIamPermissions; see get()."""
        found = self._request("POST", service, path, doing, {}, missing_ok=False, body=body)
        if found is None:
            raise AssertionError("what is missing was raised")
        return found

    def pages(self, service: str, path: str, doing: str, **params: str) -> Iterator[dict[str, Any]]:
        """Yield all pages of a list; see get()."""
        token = ""
        for _ in range(_MAX_PAGES):
            page = self.get(service, path, doing, **params, **({"pageToken": token} if token else {}))
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return
        raise ProvisionError("transient", f"{doing}: more than {_MAX_PAGES} pages", scope="cloud")

    def _request(
        self,
        method: str,
        service: str,
        path: str,
        doing: str,
        params: Mapping[str, str | Sequence[str]],
        *,
        missing_ok: bool,
        body: Mapping[str, object] | None = None,
    ) -> dict[str, Any] | None:
        def call() -> dict[str, Any] | None:
            url = f"{self._account.endpoint or f'https://{service}.googleapis.com'}/"
            url += path.format(project=self.project)
            session: Any = self._session
            answer = session.request(method, url, params=params, json=body, timeout=_TIMEOUT_S)
            if missing_ok and answer.status_code == 404:
                return None
            if not answer.ok:
                from google.api_core.exceptions import from_http_response

                raise from_http_response(answer)  # type: ignore[no-untyped-call]
            found = answer.json()
            if not isinstance(found, dict):
                raise ProvisionError("transient", f"{doing}: the answer is no JSON object", scope="cloud")
            return found

        return ask(call, self._translate_error, doing, timeout_s=_RETRY_TIMEOUT_S, clock=self._clock)

    @property
    def _session(self) -> AuthorizedSession:
        """Session of this thread: requests' sessions are not thread-safe."""
        credentials = self._account.credentials
        session: AuthorizedSession | None = getattr(self._local, "session", None)
        if session is None or session.credentials is not credentials:
            from google.auth.transport.requests import AuthorizedSession

            session = self._local.session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
            session.headers["User-Agent"] = "cloudgpu"
        return session


def last_part(url: str) -> str:
    """Return the last part of a URL: `us-central1-a` for `https://…/zones/us-central1-a`."""
    return url.rpartition("/")[2]


def items(page: Mapping[str, Any], key: str = "items") -> list[dict[str, Any]]:
    """Return a page's items; the API omits empty lists."""
    return list(page.get(key) or ())
