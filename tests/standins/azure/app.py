"""WSGI application of Resource Manager and Microsoft Entra ID: identifies the caller, injects faults, calls
handlers."""

from __future__ import annotations

import io
import shutil
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from ..faults import CONTROL, Call, Fault, Ledger, Rule
from ..serving import HTML_PAGE, obey_control, read_body, suffer
from . import keyvault, routes, scalesets
from .access import Access
from .arm import RefusedError, Request, Response, Target, answer, error, parse
from .ask import ApiRequest
from .names import ARM, SUBSCRIPTION, TENANT
from .retail import PATH as PRICES
from .retail import RetailPrices
from .tokens import Principal, openid_configuration
from .verbs import Verbs
from .world import World, principals


class AzureApp:
    """Application of one subscription."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.lost = partial(scalesets.on_machine_lost, world)
        self.ledger = Ledger()
        self._access = Access(world)
        world.entries = self._access.entries
        self._retail = RetailPrices()
        self._verbs = Verbs(world).table() | {
            "fail": self._fail,
            "heal": lambda: self.ledger.clear(calls=False),
            "calls": self.ledger.calls,
            "forget": lambda: self.ledger.clear(rules=False),
            "reset": self.reset,
            "enforce": self._access.enforce,
            "used": self._access.used_so_far,
            **self._retail.verbs(),
        }

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path.startswith(CONTROL):
            result = Response(*obey_control(environ, path.removeprefix(CONTROL), self._verbs))
            result.headers["Content-Type"] = "application/json"
        else:
            result = self._serve(environ)
        headers = dict(result.headers)
        if environ["REQUEST_METHOD"] != "HEAD" and result.status not in (204, 304):
            headers["Content-Length"] = str(len(result.body))
        start_response(f"{result.status} {_phrase(result.status)}", list(headers.items()))
        return [result.body]

    def reset(self) -> None:
        """Restore the initial state."""
        self.ledger.clear()
        self._access.enforce(None)
        self._retail.fill()
        with self._world.lock:
            self._world.stop_timers()
            machines = [vm.machine for vm in self._world.vms if vm.machine is not None]
            for vm in self._world.vms:
                vm.power = ""  # keeps its end from having further effects
            self._world.fill()
        for machine in machines:
            machine.dispose()
            shutil.rmtree(machine.root, ignore_errors=True)

    def close(self) -> None:
        """Stop everything."""
        self._world.over.set()
        self.reset()
        self._world.close()

    # -- one request

    def _serve(self, environ: dict[str, Any]) -> Response:
        body = read_body(environ)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))  # may be read again
        query = {
            name.lower(): value for name, value in parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        }
        request = Request(environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/"), query, body)
        host = str(environ.get("HTTP_HOST", "")).lower()
        if host.endswith(keyvault.DOMAIN):
            holder = self._who(environ, keyvault.AUDIENCE)
            result = partial(keyvault.get, self._world, host, request, holder)
            return self._suffered(environ, keyvault.call_of(host, request, holder), result, refuse=_refuse_vault)
        if request.path.startswith("/_diagnostics/"):
            call = Call("diagnostics", "", "console.read", "")
            return self._suffered(environ, call, partial(self._console, request))
        if "oauth2" in request.path or request.path.endswith("openid-configuration") or "/discovery/" in request.path:
            login = Call("login", "", "token", "")
            return self._suffered(environ, login, partial(self._login, request), refuse=_refuse_login)
        if request.path == PRICES:
            call = Call("prices", "", "prices.list", "", {"filter": query.get("$filter", "")})
            return self._suffered(environ, call, partial(self._prices, request))
        who = self._who(environ)
        try:
            target = parse(request.path)
        except RefusedError as refused:
            return error(refused.code, refused.status, refused.message)
        call = _call(request, target, who)
        return self._suffered(environ, call, partial(self._perform, request, target, who))

    def _suffered(
        self,
        environ: dict[str, Any],
        call: Call,
        perform: Callable[[], Response],
        refuse: Callable[[Fault], Response] | None = None,
    ) -> Response:
        fault = self.ledger.open(call)
        refuse = refuse or _refuse_with
        result = suffer(fault, environ, self._world.over, refuse=refuse, perform=perform, dropped=Response(0))
        self.ledger.close(call, result.status)
        return result

    def _who(self, environ: dict[str, Any], audience: str = ARM) -> Principal | None:
        kind, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        return self._world.tokens.who(token, audience) if kind.lower() == "bearer" else None

    def _perform(self, request: Request, target: Target, who: Principal | None) -> Response:
        try:
            ask = ApiRequest(self._world, request, target, _checked(request, target, who))
            handler = routes.find(request.method, target)
            if handler is None:
                return error(
                    "StandinNotImplemented", 501, f"{request.method} {request.path} is no route of the stand-in"
                )
            with self._world.lock:
                self._access.check(ask)
                return handler(ask)
        except RefusedError as refused:
            return error(refused.code, refused.status, refused.message, refused.target)
        except Exception:  # noqa: BLE001 - a bug of the stand-in must not look like a server's error to be retried
            return error("StandinBroken", 501, traceback.format_exc())

    def _login(self, request: Request) -> Response:
        """Handle a request to Microsoft Entra ID."""
        tenant, _, rest = request.path.lstrip("/").partition("/")
        if rest == "discovery/instance":
            return answer(
                {
                    "tenant_discovery_endpoint": f"{self._world.url}/{TENANT}/v2.0/.well-known/openid-configuration",
                    "metadata": [],
                }
            )
        if tenant != TENANT:
            text = f"AADSTS90002: Tenant '{tenant}' not found."
            return answer({"error": "invalid_tenant", "error_description": text}, 400)
        if rest.endswith("openid-configuration"):
            return answer(openid_configuration(f"{self._world.url}/{tenant}"))
        if rest != "oauth2/v2.0/token":
            return error("StandinNotImplemented", 501, request.path)
        try:
            return answer(self._world.tokens.exchange(dict(parse_qsl(request.body.decode())), principals()))
        except ValueError as wrong:
            text = f"AADSTS7000215: Invalid client secret provided. ({wrong})"
            return answer(
                {"error": str(wrong), "error_description": text}, 401 if str(wrong) == "invalid_client" else 400
            )

    def _prices(self, request: Request) -> Response:
        """Handle a request to the price list, which needs no login."""
        try:
            return answer(self._retail.page(request.query))
        except RefusedError as refused:
            return error(refused.code, refused.status, refused.message)

    def _console(self, request: Request) -> Response:
        """Return a machine's console output from its boot diagnostics."""
        with self._world.lock:
            wanted = request.path.split("/")[2]
            vm = next((one for one in self._world.vms if one.properties["vmId"] == wanted), None)
        if vm is None or "sig" not in request.query:
            return Response(404, b"", {"x-ms-error-code": "BlobNotFound"})
        text = vm.machine.console if vm.machine is not None else ""
        return Response(200, text.encode(), {"Content-Type": "text/plain"})

    def _fail(self, action: str, fault: dict[str, Any], **rule: Any) -> None:
        self.ledger.add(Rule(action, Fault(**fault), **rule))


def _checked(request: Request, target: Target, who: Principal | None) -> Principal:
    """Return the caller. Raises RefusedError for requests that Resource Manager refuses before any provider."""
    if who is None:
        text = "The access token is missing, invalid, or for another audience."
        raise RefusedError("InvalidAuthenticationToken", 401, text)
    if "api-version" not in request.query:
        text = "The api-version query parameter (?api-version=) is required for all requests."
        raise RefusedError("MissingApiVersionParameter", 400, text)
    if target.subscription.lower() != SUBSCRIPTION:
        raise RefusedError("SubscriptionNotFound", 404, f"The subscription '{target.subscription}' could not be found.")
    return who


_ACTIONS = {"PUT": "write", "PATCH": "update", "GET": "read", "HEAD": "read", "DELETE": "delete"}


def _call(request: Request, target: Target, who: Principal | None) -> Call:
    """Return the recorded call: `virtualMachines.write`, `.list`, `.powerOff`, `resourceGroups.delete` …"""
    kind, verb = target.kind.rpartition("/")[2] or "resourceGroups", target.verb
    if not target.namespace:
        kind = (
            str(target.types[0])
            if target.types and not target.group
            else "resources"
            if target.types
            else "resourceGroups"
        )
        verb = kind if target.types else ""
    action = _ACTIONS.get(request.method, "")
    if request.method == "POST":
        action = verb
    elif request.method == "GET" and verb:
        action = "list" if verb.lower() == kind.lower() else verb
    result = _of_body(request)
    name = str(target.names[-1]) if target.names else target.group
    params = {"name": name, "group": target.group, **result}
    service = target.namespace or "Microsoft.Resources"
    return Call(
        service, result.get("location", ""), f"{kind}.{action}", who.name if who else "", params, result.get("zone", "")
    )


def _of_body(request: Request) -> dict[str, str]:
    """Return the fields of the body that rules use; empty for an invalid body."""
    try:
        body = request.json()
        properties = body.get("properties") or {}
        return {
            "location": str(body.get("location", "")),
            "zone": str((body.get("zones") or [""])[0]),
            "size": str((properties.get("hardwareProfile") or {}).get("vmSize", "")),
            "priority": str(properties.get("priority", "")),
        }
    except (RefusedError, AttributeError, IndexError, TypeError):
        return {}


def _refuse_login(fault: Fault) -> Response:
    """Return the response of an error or html fault in the format of OAuth 2.0 (RFC 6749, 5.2)."""
    if fault.kind == "html":
        return _refuse_with(fault)
    return answer({"error": fault.code, "error_description": fault.message}, fault.status)


def _refuse_vault(fault: Fault) -> Response:
    """Return the response of an error or html fault in Key Vault's format."""
    if fault.kind == "html":
        return _refuse_with(fault)
    result = keyvault.refused(fault.code, fault.status, fault.message)
    result.headers.update(fault.headers)
    return result


def _refuse_with(fault: Fault) -> Response:
    """Return the response of an error or html fault."""
    if fault.kind == "html":
        page = HTML_PAGE.format(status=fault.status).encode()
        return Response(fault.status, page, {"Content-Type": "text/html; charset=UTF-8"})
    result = error(fault.code, fault.status, fault.message)
    result.headers.update(fault.headers)
    return result


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Stand-in"
