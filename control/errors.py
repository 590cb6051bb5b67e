"""Errors of the control side. Their messages are written for users, who need no further information to act on them."""

from __future__ import annotations


class ControlError(Exception):
    """Base of all errors of the control side."""


class StoreError(ControlError):
    """The store cannot be opened, read or written, or was written by a newer version."""


class DamagedRowError(StoreError):
    """A row of the store is invalid. Other rows remain usable."""


class NoSuchJobError(ControlError):
    """No job, or more than one, matches the given name."""


class SubmitError(ControlError):
    """The job is valid but cannot be submitted: no offer can run it, or a resource it needs is missing."""


class NotRunningError(ControlError):
    """The operation needs a running attempt, and the job has none."""


class ResumeError(SubmitError):
    """The job cannot go on, or not with these changes."""


class NotEndedError(ControlError):
    """The operation needs a job that has ended."""


class RemovalError(ControlError):
    """The job cannot be removed: it has not ended, another job needs it, or its folder is not its own."""
