"""Errors of job dirs: what went wrong, and whether trying again or new credentials can help."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from obstore.exceptions import BaseError, UnauthenticatedError

from .access import CredentialsError, is_expired
from .durable import NO_LINK_CODES

_PERMANENT = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, *NO_LINK_CODES)
"""Errors of local folders which no time heals."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class JobDirError(Exception):
    """The job dir cannot be read or written; the message names it and says why."""


class MissingError(JobDirError):
    """No object has this key."""


class RecordError(JobDirError):
    """An object is not a valid record. The rest of the job dir is not affected."""


class ExistsError(JobDirError):
    """A create-only write came second."""


def is_permanent(error: JobDirError) -> bool:
    """Return whether trying again is useless until a person changes something: a mount, a file in the way, a bucket.

    A refusal of an object store is not: a right that was granted a moment ago takes minutes to come into effect.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _PERMANENT:
        return True
    # A missing object is a NotFoundError; a listing in a missing bucket has no error class of its own.
    return isinstance(cause, (BaseError, FileNotFoundError)) and is_bucket_missing(cause)


def is_bucket_missing(error: Exception) -> bool:
    """Return whether a request failed because there is no such bucket."""
    return any(code in str(error) for code in _NO_BUCKET)


def is_login(error: JobDirError) -> bool:
    """Return whether the store does not accept the credentials any more, until they are renewed."""
    cause = error.__cause__
    return isinstance(cause, (CredentialsError, UnauthenticatedError)) or is_expired(str(cause))


def first_line(error: Exception) -> str:
    """Return the first line of a message: what follows in obstore's is for its own developers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def unusable(url: str, reason: str) -> JobDirError:
    """Return the error of a URL that cannot be opened."""
    return JobDirError(f"{url} cannot be used as a job dir: {reason}")


@contextlib.contextmanager
def opening(url: str) -> Iterator[None]:
    """Raise JobDirError for whatever keeps the store of a URL from being opened."""
    try:
        yield
    except (BaseError, ValueError, OSError, CredentialsError) as error:
        raise unusable(url, first_line(error)) from error
