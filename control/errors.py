"""What can go wrong on the control side. Messages are for people; nothing else is needed to act on them."""

from __future__ import annotations


class ControlError(Exception):
    """Base of all errors of the control side."""


class StoreError(ControlError):
    """The store cannot be opened, read or written, or was written by a newer version."""


class DamagedRowError(StoreError):
    """A row of the store is not what this version, or any, writes. The others can be used."""


class NoSuchJobError(ControlError):
    """No job, or more than one, answers to the name that was given."""


class SubmitError(ControlError):
    """The job is valid, but it cannot be submitted: nothing can run it, or what it needs is not there."""


class NotRunningError(ControlError):
    """What was asked for needs a running attempt, and the job has none."""
