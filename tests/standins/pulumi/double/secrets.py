"""Secrets in state and settings: Pulumi's passphrase provider with fewer rounds.

Format after pulumi/pulumi, pkg/secrets/passphrase: `v1:<salt>:<check>`, where the check is "pulumi", encrypted. Pulumi
uses 1,000,000 rounds of PBKDF2, which would cost each of a dozen commands 0.3 s.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

ROUNDS = 1_000
MISSING = "passphrase must be set with PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE environment variables"
WRONG = (
    "incorrect passphrase, please set PULUMI_CONFIG_PASSPHRASE to the correct passphrase or set "
    "PULUMI_CONFIG_PASSPHRASE_FILE to a file containing the passphrase."
)
_CHECK = "pulumi"


class SecretsError(Exception):
    """The passphrase is not set, or wrong."""


class Crypter:
    """Encryption of one stack's secrets."""

    def __init__(self, state: str) -> None:
        """`state`: version, salt and check. Raises SecretsError."""
        version, salt, check = state.split(":", 2)
        assert version == "v1"
        self.state = state
        self._key = _key(base64.b64decode(salt))
        if self._open(check) != _CHECK:
            raise SecretsError(WRONG)

    @classmethod
    def new(cls) -> Crypter:
        salt = os.urandom(8)
        return cls(f"v1:{base64.b64encode(salt).decode()}:{_seal(_key(salt), _CHECK)}")

    def encrypt(self, value: Any) -> str:
        return _seal(self._key, json.dumps(value))

    def decrypt(self, text: str) -> Any:
        return json.loads(self._open(text) or "null")

    def _open(self, sealed: str) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        version, nonce, text = sealed.split(":")
        assert version == "v1"
        try:
            opened = AESGCM(self._key).decrypt(base64.b64decode(nonce), base64.b64decode(text), None)
        except InvalidTag:
            raise SecretsError(WRONG) from None
        return opened.decode()


def _seal(key: bytes, text: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(12)
    sealed = AESGCM(key).encrypt(nonce, text.encode(), None)
    return f"v1:{base64.b64encode(nonce).decode()}:{base64.b64encode(sealed).decode()}"


def _key(salt: bytes) -> bytes:
    phrase = os.environ.get("PULUMI_CONFIG_PASSPHRASE")
    if phrase is None and (file := os.environ.get("PULUMI_CONFIG_PASSPHRASE_FILE")):
        phrase = Path(file).read_text(encoding="utf-8").strip()
    if phrase is None:
        raise SecretsError(MISSING)
    return hashlib.pbkdf2_hmac("sha256", phrase.encode(), salt, ROUNDS)
