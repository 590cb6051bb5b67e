"""Values of secrets on their way from the submitter's computer to a machine, in a box that only that machine opens.

An agent that needs values makes a key pair, keeps the private key in its memory, and publishes the public key in its
heartbeat. The supervisor encrypts to it (a sealed box of libsodium: X25519, XSalsa20-Poly1305) and creates the box in
the node's folder. Both sides prove by a keyed hash that they know the job's `pass`, which a machine gets at its launch
and which never lies in the job dir: writing there is not enough to ask for values, or to plant others.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from .jobdir import RecordError, node_key
from .records import Record

if TYPE_CHECKING:
    from nacl.public import PrivateKey

MOST_BYTES = 8 << 20
"""Maximum size of a box in bytes."""
PASS_VARIABLE = "CLOUDGPU_SECRETS_PASS"  # noqa: S105 - the name of a variable
"""Variable with which the agent gets the job's pass; its programs do not inherit it."""
BOX_PREFIX = "secrets-"
"""Beginning of the names of boxes in a node's folder."""
_KEY = re.compile("[0-9a-f]{64}")
_REQUEST, _ANSWER = b"request", b"answer"


class BoxError(Exception):
    """A box is not for this node, or not from the job's supervisor; the message says why."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """The run of an agent for which a box is made."""

    job_id: str
    attempt: int
    node: str
    key: str
    """Its public key in hexadecimal."""

    def proof(self, secrets_pass: str) -> str:
        """Return the keyed hash with which the agent proves that the public key is its own."""
        return _mac(secrets_pass, _REQUEST, self)

    def is_proved_by(self, proof: str, secrets_pass: str) -> bool:
        """Return whether the public key is valid, and of an agent that knows the pass."""
        return _KEY.fullmatch(self.key) is not None and hmac.compare_digest(
            proof.encode(errors="replace"), self.proof(secrets_pass).encode()
        )

    @property
    def box_key(self) -> str:
        """Key of the box in the job dir."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:32]
        return node_key(self.attempt, self.node, f"{BOX_PREFIX}{digest}.box")


@dataclass(frozen=True, slots=True)
class BoxContent(Record):
    """Content of a box. Everything but `values` is compared with the recipient."""

    MOST_BYTES: ClassVar[int] = MOST_BYTES
    MOST_CHARACTERS: ClassVar[int] = 1 << 18
    job_id: str
    attempt: int
    node: str
    proof: str
    values: dict[str, str] = field(repr=False)


def new_key() -> PrivateKey:
    """Return a new private key, which is to be kept in memory only."""
    from nacl.public import PrivateKey

    return PrivateKey.generate()


def public_key(private: PrivateKey) -> str:
    """Return the public key in hexadecimal."""
    return bytes(private.public_key).hex()


def seal(to: Recipient, values: Mapping[str, str], secrets_pass: str) -> bytes:
    """Encrypt values, name -> value, to an agent. Raises BoxError for an invalid public key."""
    from nacl.exceptions import CryptoError
    from nacl.public import PublicKey, SealedBox

    content = BoxContent(to.job_id, to.attempt, to.node, _mac(secrets_pass, _ANSWER, to), dict(values))
    try:
        return bytes(SealedBox(PublicKey(bytes.fromhex(to.key))).encrypt(content.to_bytes()))
    except (CryptoError, ValueError, RuntimeError) as error:  # RuntimeError: a key of small order
        raise BoxError(f"the public key of {to.node} is not valid") from error


def open_box(data: bytes, private: PrivateKey, to: Recipient, secrets_pass: str) -> dict[str, str]:
    """Decrypt a box and return its values, name -> value. Raises BoxError."""
    from nacl.exceptions import CryptoError
    from nacl.public import SealedBox

    try:
        content = BoxContent.from_bytes(SealedBox(private).decrypt(data))
    except CryptoError as error:
        raise BoxError("it is encrypted to another key, or damaged") from error
    except RecordError:  # without its message, which may quote a value
        raise BoxError("its content is not valid") from None
    if (content.job_id, content.attempt, content.node) != (to.job_id, to.attempt, to.node):
        raise BoxError(f"it is for {content.node[:80]!r} of another job or attempt")
    if not hmac.compare_digest(content.proof.encode(errors="replace"), _mac(secrets_pass, _ANSWER, to).encode()):
        raise BoxError("it does not come from the job's supervisor")
    return content.values


def _mac(secrets_pass: str, kind: bytes, to: Recipient) -> str:
    about = json.dumps([to.job_id, to.attempt, to.node, to.key]).encode()
    return hmac.new(secrets_pass.encode(), kind + b"\0" + about, hashlib.sha256).hexdigest()
