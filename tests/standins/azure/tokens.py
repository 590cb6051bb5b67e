"""Microsoft Entra ID: the tenant's metadata, tokens for an application's secret, and tokens from machines' metadata
service.

It follows "OAuth 2.0 client credentials flow on the Microsoft identity platform" and "Access token claims reference".
Tokens are signed as real ones are, but their identity is looked up, not read from the claims.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .names import TENANT, client_id, identity, secret

TOKEN_S = 3_599.0


@dataclass(frozen=True)
class Principal:
    """Identity of a token."""

    name: str
    object_id: str
    client_id: str
    machine: bool = False
    """True for a machine's identity, which needs role assignments."""


def application(name: str) -> Principal:
    """Return the principal of an application with a secret."""
    return Principal(name, identity("principal", name), client_id(name))


class Tokens:
    """All issued tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, tuple[Principal, str, float]] = {}

    def issue(self, principal: Principal, audience: str, lasts_s: float = TOKEN_S) -> str:
        """Return a new access token."""
        import jwt

        now = int(time.time())
        claims = {
            "aud": audience,
            "iss": f"https://sts.windows.net/{TENANT}/",
            "iat": now - 1,
            "nbf": now - 1,
            "exp": now + int(lasts_s),
            "appid": principal.client_id,
            "oid": principal.object_id,
            "sub": principal.object_id,
            "tid": TENANT,
            "uti": secrets.token_urlsafe(16),
            "ver": "1.0",
        }
        token = jwt.encode(claims, _key(), algorithm="RS256", headers={"kid": "stand-in"})
        with self._lock:
            self._given[token] = (principal, audience, time.time() + lasts_s)
        return token

    def who(self, token: str, audience: str) -> Principal | None:
        """Return the identity of a token; None: it is invalid or has another audience."""
        with self._lock:
            found = self._given.get(token)
        if found is None or found[2] < time.time() or found[1].rstrip("/") != audience:
            return None
        return found[0]

    def revoke(self, name: str) -> None:
        """Invalidate all tokens of a name."""
        with self._lock:
            self._given = {token: held for token, held in self._given.items() if held[0].name != name}

    def exchange(self, form: Mapping[str, str], known: Mapping[str, str]) -> dict[str, Any]:
        """Return a token for a client secret; `known`: client id -> name. Raises ValueError with OAuth's error code."""
        if form.get("grant_type") != "client_credentials":
            raise ValueError("unsupported_grant_type")
        name = known.get(form.get("client_id", ""))
        if name is None or form.get("client_secret") != secret(name):
            raise ValueError("invalid_client")
        audience, _, rest = form.get("scope", "").rpartition("/")
        if rest != ".default":
            raise ValueError("invalid_scope")
        token = self.issue(application(name), audience.rstrip("/"))
        return {"token_type": "Bearer", "expires_in": int(TOKEN_S), "ext_expires_in": 3_599, "access_token": token}


def openid_configuration(authority: str) -> dict[str, Any]:
    """Return the tenant's metadata; `authority`: `https://localhost:1/<tenant>`."""
    return {
        "token_endpoint": f"{authority}/oauth2/v2.0/token",
        "authorization_endpoint": f"{authority}/oauth2/v2.0/authorize",
        "device_authorization_endpoint": f"{authority}/oauth2/v2.0/devicecode",
        "jwks_uri": f"{authority}/discovery/v2.0/keys",
        "issuer": f"{authority}/v2.0",
        "response_types_supported": ["code", "id_token", "code id_token", "id_token token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "tenant_region_scope": "NA",
    }


@functools.cache
def _key() -> str:
    """Return the process's signing key, created once since that is slow."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()
