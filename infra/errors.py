"""What ends a command of infra: each says what is wrong, and in `hint` what to do."""

from __future__ import annotations


class InfraError(Exception):
    """The stack, its backend or the engine cannot be used now, or the cloud refused something."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadRequestError(InfraError):
    """What was asked for makes no sense; nothing was done."""


class RefusedError(InfraError):
    """It could be done, but a check says no; nothing was done."""


class LockedError(InfraError):
    """Somebody else works on the stack."""


class CancelledError(InfraError):
    """Ended by Ctrl-C; what was made until then is in the stack."""
