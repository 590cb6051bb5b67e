"""Google's APIs that only need to be read, as JSON over HTTPS: regions, machine types, quotas, list prices.

The SDKs of these APIs would be three more packages for a dozen GETs. Credentials, their renewal and the transport are
google-auth's own (AuthorizedSession), errors are google-api-core's, so that they mean here what they mean elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..base import ProvisionError
from ..shared.api_calls import ask
from ..shared.clock import Clock
from .account import Account, error_translator

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

_TIMEOUT_S = (5.0, 30.0)
"""To connect, and between two parts of an answer: a page of a few hundred machine types takes seconds."""
_PATIENCE_S = 20.0
"""So long a call that was throttled or not answered is repeated: a hung server costs one timeout more at most."""
_MAX_PAGES = 1_000


class Rest:
    """GETs of one account's project. Of any thread."""

    def __init__(self, account: Account, clock: Clock, target: str = "gcp") -> None:
        """`target`: whose rows of errors.csv tell what goes wrong."""
        self._account = account
        self._clock = clock
        self._translate_error = error_translator(target)
        self._local = threading.local()

    @property
    def project(self) -> str:
        """Raises ProvisionError."""
        return self._account.project

    def get(self, service: str, path: str, doing: str, **params: str) -> dict[str, Any]:
        """`service`: first part of the host, e.g. `compute`; `{project}` in the path is ours; `doing`: for the message.

        Raises ProvisionError.
        """
        found = self._get(service, path, doing, params, missing_ok=False)
        if found is None:
            raise AssertionError("what is missing was raised")
        return found

    def find(self, service: str, path: str, doing: str, **params: str) -> dict[str, Any] | None:
        """As get(); None: there is no such thing."""
        return self._get(service, path, doing, params, missing_ok=True)

    def pages(self, service: str, path: str, doing: str, **params: str) -> Iterator[dict[str, Any]]:
        """All of a list's pages; as get()."""
        token = ""
        for _ in range(_MAX_PAGES):
            page = self.get(service, path, doing, **params, **({"pageToken": token} if token else {}))
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return
        raise ProvisionError("transient", f"{doing}: more than {_MAX_PAGES} pages", scope="cloud")

    def _get(
        self, service: str, path: str, doing: str, params: Mapping[str, str], *, missing_ok: bool
    ) -> dict[str, Any] | None:
        def call() -> dict[str, Any] | None:
            url = f"{self._account.endpoint or f'https://{service}.googleapis.com'}/"
            url += path.format(project=self.project)
            answer = self._session.get(url, params=params, timeout=_TIMEOUT_S)
            if missing_ok and answer.status_code == 404:
                return None
            if not answer.ok:
                from google.api_core.exceptions import from_http_response

                raise from_http_response(answer)  # type: ignore[no-untyped-call]
            found = answer.json()
            if not isinstance(found, dict):
                raise ProvisionError("transient", f"{doing}: the answer is no JSON object", scope="cloud")
            return found

        return ask(call, self._translate_error, doing, timeout_s=_PATIENCE_S, clock=self._clock)

    @property
    def _session(self) -> AuthorizedSession:
        """One for each thread: requests' sessions are not made to be shared."""
        credentials = self._account.credentials
        session: AuthorizedSession | None = getattr(self._local, "session", None)
        if session is None or session.credentials is not credentials:
            from google.auth.transport.requests import AuthorizedSession

            session = self._local.session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
            session.headers["User-Agent"] = "cloudgpu"
        return session


def last_part(url: str) -> str:
    """`us-central1-a` of `https://…/zones/us-central1-a`: what the APIs refer to, by its name."""
    return url.rpartition("/")[2]


def items(page: Mapping[str, Any], key: str = "items") -> list[dict[str, Any]]:
    """Of a page; an empty list is left out of answers."""
    return list(page.get(key) or ())
