"""Get the values of a job's secrets for one node from the submitter's computer; references.py reads the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.jobdir import JobDir
from ...protocol.sealed_secrets import MOST_BYTES, BoxError, Recipient, new_key, open_box, public_key
from .masking import LEAST_CHARACTERS

if TYPE_CHECKING:
    from nacl.public import PrivateKey

WAIT_S = 1_800.0
"""Maximum seconds for which a paid machine waits for values from the submitter's computer."""


@dataclass(frozen=True, slots=True)
class Request:
    """An agent's request for values from the submitter's computer: the two fields go into its heartbeat."""

    recipient: Recipient
    proof: str
    _private: PrivateKey = field(repr=False)
    _pass: str = field(repr=False)

    @classmethod
    def make(cls, job_id: str, attempt: int, node: str, secrets_pass: str) -> Request:
        """Make a request with a new key pair, whose private key never leaves this process."""
        private = new_key()
        recipient = Recipient(job_id, attempt, node, public_key(private))
        return cls(recipient, recipient.proof(secrets_pass), private, secrets_pass)

    def read(self, job_dir: JobDir, names: set[str], say: Callable[[str], None]) -> dict[str, str] | None:
        """Return the values if their box has come, and delete it; None: not yet. Raises JobDirError.

        A box that cannot be opened, or lacks a name, is deleted, and the supervisor makes another.
        """
        data = job_dir.find(self.recipient.box_key, MOST_BYTES)
        if data is None:
            return None
        values: dict[str, str] | None = None
        try:
            values = open_box(data, self._private, self.recipient, self._pass)
            if missing := sorted(names - values.keys()):
                values = None
                say(f"the secrets that came lack {', '.join(missing)}")
        except BoxError as error:
            say(f"secrets that came are ignored: {error}")
        job_dir.delete(self.recipient.box_key)
        return None if values is None else {name: values[name] for name in names}


def remark_unmaskable(values: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Log the names of secrets that are too short to be masked."""
    for name, value in values.items():
        if len(value) < LEAST_CHARACTERS:
            say(f"the secret {name} has fewer than {LEAST_CHARACTERS} characters: it cannot be masked in the log")
