"""What ends a command of infra: each says what is wrong, and in `hint` what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..jobspecs.plan import Plan


class InfraError(Exception):
    """The stack, its backend or the engine cannot be used now, or the cloud refused something."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadRequestError(InfraError):
    """What was asked for makes no sense; nothing was done."""


class RefusedError(InfraError):
    """It could be done, but a check says no; nothing was done."""


class NoOfferError(RefusedError):
    """No machines can be had as the cluster's file asks for them; `plan` has the refusals."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("nothing can be this cluster")
        self.plan = plan


class LockedError(InfraError):
    """Somebody else works on the stack."""


class CancelledError(InfraError):
    """Ended by Ctrl-C; what was made until then is in the stack."""
