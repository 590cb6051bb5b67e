"""Check that an API's endpoint can be reached: name resolution, proxy, TLS and the computer's clock.

One request without credentials is sent to each endpoint; any HTTP response will do. It takes the same way as the SDKs':
through the proxy of the environment, with the certificates that they trust.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..shared.api_calls import clock_is_off
from ..shared.clock import SystemClock
from .results import CheckResult, one_line, without_secrets

_TIMEOUT_S = 5.0
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name trusted certificates to SDKs on top of requests; the first that is set counts."""
_PROXY_AUTHENTICATION = 407
_PROXY_FORM = "http://USER:PASSWORD@HOST:PORT"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: the endpoint has answered."""


class UnreachableError(Exception):
    """An endpoint cannot be reached; `fix` says what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def check_endpoints(urls: Sequence[str], whose: str, bundles: Sequence[str] = BUNDLES) -> Iterator[CheckResult]:
    """Yield one result for all endpoints of a provider. `whose`: its name, for messages; `bundles`: variables that name
    trusted certificates to its SDK."""
    skew, through = "", ""
    for url in dict.fromkeys(urls):
        try:
            date = probe(url, bundles)
            through = through or _proxy(url)
        except UnreachableError as error:
            yield CheckResult("network", "error", one_line(str(error)), error.fix, {"endpoint": _host(url)})
            return
        skew = skew or clock_is_off(date, SystemClock(), whose)
    hosts = ", ".join(dict.fromkeys(map(_host, urls)))
    message = f"{hosts}: reached{f' through the proxy {through}' if through else ''}"
    values = {"endpoints": sorted({_host(url) for url in urls}), "proxy": through or None}
    if skew:
        fix = "set this computer's clock, e.g. `sudo timedatectl set-ntp true`"
        yield CheckResult("network", "error", skew.removeprefix("; "), fix, values)
        return
    yield CheckResult("network", "ok", message, "", values)


def probe(url: str, bundles: Sequence[str] = BUNDLES) -> str | None:
    """Send a request to the endpoint and return the response's `Date` header. Raises UnreachableError."""
    try:
        handlers = [_NoRedirect(), urllib.request.HTTPSHandler(context=_context(bundles))]
        request = urllib.request.Request(url, method="GET", headers={"User-Agent": "cloudgpu"})  # noqa: S310
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            date: str | None = answer.headers.get("Date")
            return date
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _PROXY_AUTHENTICATION:
                raise UnreachableError(*_refused_by_proxy(url)) from error
            return error.headers.get("Date")
    except urllib.error.URLError as error:
        raise UnreachableError(*_explain(url, error.reason)) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UnreachableError(*_explain(url, error)) from error


def _explain(url: str, reason: object) -> tuple[str, str]:
    """Return what is wrong, and what to do. Raises UnreachableError if the proxy's address is no URL."""
    proxy = _proxy(url)
    where = f"{_host(url)} through the proxy {proxy}" if proxy else _host(url)
    if proxy and "407" in str(reason):  # urllib reports a refused CONNECT as an OSError
        return _refused_by_proxy(url)
    if isinstance(reason, ssl.SSLError):
        return _explain_tls(where, reason)
    if isinstance(reason, socket.gaierror):
        name = urlsplit(f"//{proxy}" if proxy else url).hostname
        return f"the name {name} cannot be resolved", "check the network, DNS, and the name of the region"
    if isinstance(reason, TimeoutError):
        reason = f"no answer within {_TIMEOUT_S:g} s"
    elif isinstance(reason, ConnectionRefusedError):
        reason = "the connection is refused"
    return f"{where}: {reason}", "check the network, firewall and proxy (HTTPS_PROXY)"


def _explain_tls(where: str, reason: ssl.SSLError) -> tuple[str, str]:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"{where}: its certificate is not trusted: {reason.verify_message or reason.reason}",
            "if a proxy of your organisation reads TLS, name its certificates in REQUESTS_CA_BUNDLE and AWS_CA_BUNDLE",
        )
    return f"{where}: TLS fails: {reason.reason or reason}", "check for a proxy or firewall that interferes"


def _refused_by_proxy(url: str) -> tuple[str, str]:
    return f"the proxy {_proxy(url)} wants a login", f"write HTTPS_PROXY={_PROXY_FORM}"


def _proxy(url: str) -> str:
    """Return host and port of the proxy for this URL, without its password; "": none. Raises UnreachableError if its
    address is no URL, without naming it: it may contain a password."""
    scheme = url.partition("://")[0]
    given = urllib.request.getproxies().get(scheme, "")
    if not given or urllib.request.proxy_bypass(_netloc(url)):
        return ""
    found = _netloc(given if "://" in given else f"//{given}")
    if not found:
        variable = f"{scheme.upper()}_PROXY"
        raise UnreachableError(f"the proxy's address in {variable} is no URL", f"write {variable}={_PROXY_FORM}")
    return found


def _host(url: str) -> str:
    return _netloc(url) or without_secrets(url)


def _netloc(url: str) -> str:
    """Return a URL's host and port; "": it is none."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0  # `port` raises ValueError for what is no number
    except ValueError:
        return ""
    return parts.netloc.rpartition("@")[2] if is_valid else ""


def _context(bundles: Sequence[str]) -> ssl.SSLContext:
    """Return a context that trusts what the SDK trusts: the bundle of the environment, else certifi's. Raises
    UnreachableError."""
    variable = next((name for name in bundles if os.environ.get(name)), "")
    path = os.environ.get(variable, "")
    if not variable and importlib.util.find_spec("certifi") is not None:
        import certifi

        path = certifi.where()
    if Path(path).is_dir() and path:
        return ssl.create_default_context(capath=path)
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:  # it is missing, or holds no certificates
        raise UnreachableError(
            f"{variable} names {path}: {error.strerror or error}", f"correct or unset {variable}"
        ) from error
