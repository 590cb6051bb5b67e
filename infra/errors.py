"""Errors that end an infra command: each has a message and, in `hint`, a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..jobspecs.plan import Plan


class InfraError(Exception):
    """The stack, its backend or the engine is unusable, or the cloud rejected an operation."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadRequestError(InfraError):
    """Invalid request; nothing was changed."""


class RefusedError(InfraError):
    """A check rejected a possible operation; nothing was changed."""


class NoOfferError(RefusedError):
    """No offer matches the cluster's file; `plan` has the refusals."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("no offer fits this cluster")
        self.plan = plan


class LockedError(InfraError):
    """Another process or user holds the stack's lock."""


class CancelledError(InfraError):
    """Cancelled by Ctrl-C; resources created until then are in the stack."""
