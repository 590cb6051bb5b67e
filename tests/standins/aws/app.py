"""WSGI application around moto: records each call, injects faults, adds missing features."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from ..faults import CONTROL, Call
from ..serving import obey_control, suffer
from . import ec2, iam, moto_side, permissions, placement_groups, prices, scaling
from .account import VERBS, Account
from .answers import Answer, RefusedError, refuse, refuse_with
from .calls import read_call

_HANDLERS = {**ec2.HANDLERS, **placement_groups.HANDLERS, **prices.HANDLERS, **iam.HANDLERS, **scaling.HANDLERS}
_API = {"ec2": "2016-11-15"}


class App:
    """Application of one account."""

    def __init__(self, account: Account, moto: Callable[..., Any]) -> None:
        self._account, self._moto = account, moto
        account.internally, account.tend = self._internally, partial(scaling.reconcile, account)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        answer = self._control(environ, path.removeprefix(CONTROL)) if path.startswith(CONTROL) else self._call(environ)
        headers = dict(answer.headers)
        if environ["REQUEST_METHOD"] != "HEAD":  # a HEAD response keeps the length of the omitted body
            headers["Content-Length"] = str(len(answer.body))
        start_response(f"{answer.status} Stand-in", list(headers.items()))
        return [answer.body]

    def _control(self, environ: dict[str, Any], verb: str) -> Answer:
        verbs = {name: getattr(self._account, name) for name in VERBS}
        return Answer(*obey_control(environ, verb, verbs), {"Content-Type": "application/json"})

    def _call(self, environ: dict[str, Any]) -> Answer:
        call = read_call(environ)
        if call.service == "ec2":
            self._account.seed(call.region)
            if call.action == "RunInstances":
                call.zone = ec2.zone_of(call)
        fault = self._account.ledger.open(call)
        answer = suffer(
            fault,
            environ,
            self._account.over,
            refuse=partial(refuse_with, call),
            perform=lambda: self._perform(call, environ),
            dropped=Answer(0, b""),
        )
        self._account.ledger.close(call, answer.status)
        return answer

    def _internally(self, call: Call) -> Answer:
        """Perform a call between AWS services. The caller may hold the account's lock."""
        call.zone = ec2.zone_of(call)
        environ = _environ(call)

        def forward(params: dict[str, str] | None = None) -> Answer:
            _rewrite(environ, {"Action": call.action, "Version": _API[call.service], **(params or call.params)})
            with moto_side.unjudged(was=self._account.enforcing):
                return _forward(self._moto, environ, call)

        try:
            return _HANDLERS[call.service, call.action](self._account, call, forward)
        except RefusedError as refusal:
            return refuse(call, refusal.code, refusal.message, refusal.status)

    def _perform(self, call: Call, environ: dict[str, Any]) -> Answer:
        def forward(params: dict[str, str] | None = None) -> Answer:
            if params is not None:
                _rewrite(environ, {"Action": call.action, "Version": _API[call.service], **params})
            return _forward(self._moto, environ, call)

        try:
            if call.caller in self._account.revoked:
                status = 401 if call.service == "ec2" else 400 if call.service == "s3" else 403
                code = "RequestExpired" if call.service == "ec2" else "ExpiredToken"
                raise RefusedError(code, "The security token included in the request is expired", status)
            with self._account.lock:
                self._account.throttling.check(call)
            if (other := self._account.others.get(call.caller)) is not None and call.service != "s3":
                environ["HTTP_X_MOTO_ACCOUNT_ID"] = other
                with self._account.lock:
                    return forward()
            if self._account.enforcing:
                token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN")
                headers = {} if token is None else {"X-Amz-Security-Token": token}
                with self._account.lock:
                    permissions.check(self._account, call, headers)
            if call.service == "ec2" and call.params.get("DryRun") == "true":
                text = "Request would have succeeded, but DryRun flag is set."
                raise RefusedError("DryRunOperation", text, 412)
            if call.service == "s3":  # without the lock: bodies may be long and machines may stall
                return forward()
            with self._account.lock:
                self._account.seed(call.region)
                handler = _HANDLERS.get((call.service, call.action))
                return handler(self._account, call, forward) if handler is not None else forward()
        except RefusedError as refusal:
            return refuse(call, refusal.code, refusal.message, refusal.status)
        except Exception:  # noqa: BLE001 - a bug of the stand-in must not look like a server's error to be retried
            return refuse(call, "StandinBroken", traceback.format_exc(), 501)


def _forward(moto: Callable[..., Any], environ: dict[str, Any], call: Call) -> Answer:
    """Return moto's response. Actions that moto lacks get status 501, which clients do not retry."""
    begun: list[Any] = []
    try:
        chunks = moto(environ, lambda status, headers, _error=None: begun.extend((status, headers)))
        try:
            body = b"".join(chunks)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
    except NotImplementedError as error:
        return _unimplemented(call, str(error))
    status = int(begun[0].split()[0])
    if status == 500 and body[:15].lower() == b"<!doctype html>":
        text = body.decode(errors="replace")
        return _unimplemented(call, text[text.find("<title>") + 7 : text.find("</title>")].split("\n")[0])
    if status == 404 and not body and call.service != "s3":
        return _unimplemented(call, "no such action")
    return Answer(status, body, dict(begun[1]))


def _unimplemented(call: Call, why: str) -> Answer:
    text = f"{call.service} {call.action} is implemented neither in moto nor in the stand-in: {why}"
    return refuse(call, "StandinNotImplemented", text, 501)


def _environ(call: Call) -> dict[str, Any]:
    """Return a WSGI environment for an internal call."""
    scope = f"{call.caller}/20260101/{call.region}/{call.service}/aws4_request"
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "CONTENT_TYPE": "application/x-www-form-urlencoded; charset=utf-8",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": f"{call.service}.{call.region}.amazonaws.com",
        "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none",
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
    }


def _rewrite(environ: dict[str, Any], params: dict[str, str]) -> None:
    body = urlencode(params).encode()
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
