"""Secrets of a node: requested from the submitter's computer, or read from a secret manager."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ....protocol.jobdir import JobRecord
from ...secrets.masking import LineMasker
from .errors import NodeError, SecretsTimeoutError

if TYPE_CHECKING:
    from ...secrets.job_secrets import Request
    from .program import Node

_POLL_S = 0.1  # seconds between two polls for the values in a local folder
_FAR_POLL_S = 2.0  # the same in an object store, where requests cost money
_SAY_S = 5.0  # seconds of waiting after which the log says so


class NodeSecrets:
    """Reads the job's secrets for one node. Modules that most jobs do not need are imported where they are used."""

    def __init__(self, node: Node, job: JobRecord, secrets_pass: str, masker: LineMasker) -> None:
        self._node, self._job, self._masker = node, job, masker
        self._references = {name: source for name, source in job.secrets.items() if "://" in source}
        self._request = self._make_request(secrets_pass)

    def _make_request(self, secrets_pass: str) -> Request | None:
        """Request the values that only the submitter's computer can read; None: there are none.

        They are requested first, so that they come while code and inputs are fetched.
        """
        if self._job.secrets.keys() == self._references.keys():
            return None
        from ...secrets.job_secrets import Request

        request = Request.make(self._job.job_id, self._node.attempt, self._node.name, secrets_pass)
        self._node.heart.request_secrets(request.recipient.key, request.proof)
        return request

    def read(self) -> dict[str, str]:
        """Return all values, which the log masks from then on. Raises NodeError, SecretsTimeoutError."""
        if not self._job.secrets:
            return {}
        from ...secrets.job_secrets import remark_unmaskable

        values = self._read_references() if self._references else {}
        remark_unmaskable(values, self._node.log.add_agent_line)
        if self._request is not None:
            values |= self._await_values(self._request, self._job.secrets.keys() - self._references.keys())
        self._masker.add_values(values.values())
        return values

    def _read_references(self) -> dict[str, str]:
        """Return the values of references to secret managers."""
        from ...secrets.references import Reads, SecretError

        reads = Reads(self._references, self._node.log.add_agent_line)
        try:
            return self._node.runner.poll(reads.values, math.inf, _POLL_S) or {}
        except SecretError as error:
            raise (SecretsTimeoutError if error.passes else NodeError)(str(error)) from error

    def _await_values(self, request: Request, names: set[str]) -> dict[str, str]:
        """Return the values that the submitter's computer sends. Raises SecretsTimeoutError after WAIT_S."""
        from ...secrets.job_secrets import WAIT_S

        node = self._node
        said_at = time.monotonic() + _SAY_S

        def poll() -> dict[str, str] | None:
            nonlocal said_at
            values = node.retry(lambda: request.read(node.job_dir, names, node.log.add_agent_line))
            if values is None and time.monotonic() > said_at:
                said_at = math.inf
                node.log.add_agent_line(f"waiting for the secrets {', '.join(sorted(names))}")
            return values

        values = node.runner.poll(poll, WAIT_S, _POLL_S if node.job_dir.folder is not None else _FAR_POLL_S)
        node.heart.request_secrets("", "")
        if values is None:
            raise SecretsTimeoutError(
                f"the secrets {', '.join(sorted(names))} did not come from the submitter's computer within "
                f"{WAIT_S / 60:.0f} min"
            )
        return values
