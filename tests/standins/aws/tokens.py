"""ClientToken of RunInstances, after the EC2 developer guide's "Ensuring idempotency in Amazon EC2 API requests".

The same token with the same parameters in the same zone returns the same response with the instances' current state,
even after their end; with other parameters IdempotentParameterMismatch. Tokens are separate per zone and region.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .answers import Answer, RefusedError


class Tokens:
    """Responses by (key, region, zone, token)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str], tuple[str, Answer]] = {}

    def find(self, caller: str, region: str, zone: str, params: Mapping[str, str]) -> Answer | None:
        """Return the earlier response, or None. Raises RefusedError."""
        token = params.get("ClientToken", "")
        if len(token) > 64 or not token.isascii():
            raise RefusedError("InvalidParameterValue", "Client token is longer than 64 ASCII characters")
        known = self._known.get((caller, region, zone, token)) if token else None
        if known is None:
            return None
        if known[0] != _digest(params):
            raise RefusedError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )
        return known[1]

    def keep(self, caller: str, region: str, zone: str, params: Mapping[str, str], answer: Answer) -> None:
        """Store a successful response."""
        if token := params.get("ClientToken", ""):
            self._known[caller, region, zone, token] = (_digest(params), answer)


def _digest(params: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(params.items())).encode()).hexdigest()
