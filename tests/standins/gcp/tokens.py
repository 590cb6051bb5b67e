"""Service accounts of the stand-in: RSA keys, `/token`, self-signed JWTs, and tokens of machines.

They follow "Using OAuth 2.0 for Server to Server Applications" (developers.google.com/identity/protocols/oauth2) and
AIP-4111 (self-signed JWTs).
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from ..faults import Call
from .service import Request, Response, Service, answer_json

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_S = 3_600
_AUDIENCE = "https://oauth2.googleapis.com/token"
"""Audience that google-auth uses, regardless of the key file's token_uri."""


@dataclass(frozen=True)
class Identity:
    """Account and scopes of a token."""

    email: str
    scopes: frozenset[str]
    """OAuth scopes; empty: any."""


class Tokens:
    """Tokens of one project's accounts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, tuple[Identity, float]] = {}
        self._keys: dict[str, str] = {}
        """Key id -> email."""
        self._given_to: dict[str, int] = {}

    def key_file(self, email: str, project: str, token_uri: str) -> dict[str, str]:
        """Return a key of this account, as `gcloud iam service-accounts keys create` writes it."""
        key = _private_key()
        identity = hashlib.sha256(email.encode()).hexdigest()[:40]
        with self._lock:
            self._keys[identity] = email
        return {
            "type": "service_account",
            "project_id": project,
            "private_key_id": identity,
            "private_key": key,
            "client_email": email,
            "client_id": str(int(identity[:15], 16)),
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": token_uri,
            "universe_domain": "googleapis.com",
        }

    def issue(self, email: str, scopes: frozenset[str] = frozenset(), lasts_s: float = TOKEN_S) -> str:
        """Return a new access token."""
        token = f"ya29.{secrets.token_urlsafe(32)}"
        with self._lock:
            self._given[token] = (Identity(email, scopes), time.time() + lasts_s)
            self._given_to[email] = self._given_to.get(email, 0) + 1
        return token

    def revoke(self, email: str) -> None:
        """Invalidate all tokens of an account."""
        with self._lock:
            self._given = {token: held for token, held in self._given.items() if held[0].email != email}

    def given_to(self, email: str) -> int:
        """Return the number of access tokens issued to an account."""
        with self._lock:
            return self._given_to.get(email, 0)

    def who(self, token: str) -> Identity | None:
        """Return the identity of a bearer token: one that was issued here, or a JWT signed with a key from here. None:
        invalid."""
        with self._lock:
            held = self._given.get(token)
        if held is not None:
            return held[0] if held[1] > time.time() else None
        claims = self._verified(token)
        if claims is None or claims.get("iss") != claims.get("sub") or not (claims.get("aud") or claims.get("scope")):
            return None
        return Identity(str(claims["iss"]), frozenset(str(claims.get("scope") or "").split()))

    def exchange(self, form: Mapping[str, str], token_uri: str) -> dict[str, Any]:
        """Return an access token for a signed assertion. Raises ValueError with OAuth's error code."""
        if form.get("grant_type") != GRANT:
            raise ValueError("unsupported_grant_type")
        claims = self._verified(form.get("assertion", ""))
        if claims is None or claims.get("aud") not in (_AUDIENCE, token_uri):
            raise ValueError("invalid_grant")
        scopes = frozenset(str(claims.get("scope") or "").split())
        if not scopes:
            raise ValueError("invalid_scope")
        token = self.issue(str(claims["iss"]), scopes)
        return {"access_token": token, "expires_in": TOKEN_S - 1, "token_type": "Bearer"}

    def _verified(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a JWT with valid signature, key, issuer and times, or None."""
        from google.auth import exceptions, jwt

        try:
            header = jwt.decode_header(token)  # type: ignore[no-untyped-call]
            with self._lock:
                email = self._keys.get(str(header.get("kid")))
            claims = jwt.decode(token, certs=_public_key(), clock_skew_in_seconds=10)  # type: ignore[no-untyped-call]
        except (ValueError, exceptions.GoogleAuthError):
            return None
        return dict(claims) if email is not None and claims.get("iss") == email else None


@functools.cache
def _key_pair() -> tuple[str, bytes]:
    """Return private and public key as PEM. All accounts share them, with different key ids, since generating a key is
    slow."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()
    return private, key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


def _private_key() -> str:
    return _key_pair()[0]


def _public_key() -> bytes:
    return _key_pair()[1]


class OAuth(Service):
    """`POST /token`."""

    name = "oauth2"

    def __init__(self, tokens: Tokens, url: Callable[[], str]) -> None:
        self._tokens, self._url = tokens, url

    def call(self, request: Request) -> Call | None:
        if (request.method, request.path) != ("POST", "/token"):
            return None
        return Call(self.name, "", "token", request.caller)

    def answer(self, request: Request, call: Call) -> Response:
        try:
            return answer_json(self._tokens.exchange(dict(parse_qsl(request.body.decode())), f"{self._url()}/token"))
        except ValueError as error:
            return self.error(str(error), 400, "the assertion is not accepted")

    def error(self, code: str, status: int, message: str) -> Response:
        body = {"error": code, "error_description": message}
        return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})
