"""Errors of job dirs, and whether a retry or new credentials can help."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from obstore.exceptions import BaseError, UnauthenticatedError

from .access import CredentialsError, is_expired
from .durable import NO_LINK_CODES

_PERMANENT = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, *NO_LINK_CODES)
"""Errors of local folders that do not go away with time."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class JobDirError(Exception):
    """The job dir cannot be read or written; the message contains its URL and the reason."""


class MissingError(JobDirError):
    """No object has this key."""


class RecordError(JobDirError):
    """An object is not a valid record. The rest of the job dir is not affected."""


class ExistsError(JobDirError):
    """A create-only write found an existing object."""


def is_permanent(error: JobDirError) -> bool:
    """Return whether retries are pointless until an operator changes something: a mount, a file in the way, a bucket.

    Refusals by an object store are not permanent: a newly granted permission takes minutes to become effective.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _PERMANENT:
        return True
    # A missing object raises NotFoundError; a listing in a missing bucket raises only the base class.
    return isinstance(cause, (BaseError, FileNotFoundError)) and is_bucket_missing(cause)


def is_bucket_missing(error: Exception) -> bool:
    """Return whether a request failed because the bucket does not exist."""
    return any(code in str(error) for code in _NO_BUCKET)


def is_login(error: JobDirError) -> bool:
    """Return whether the store refuses the credentials until they are renewed."""
    cause = error.__cause__
    return isinstance(cause, (CredentialsError, UnauthenticatedError)) or is_expired(str(cause))


def first_line(error: Exception) -> str:
    """Return the first line of a message; the rest of obstore's messages is for its developers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def unusable(url: str, reason: str) -> JobDirError:
    """Return the error for a URL that cannot be opened."""
    return JobDirError(f"{url} cannot be used as a job dir: {reason}")


@contextlib.contextmanager
def opening(url: str) -> Iterator[None]:
    """Convert errors from opening the store of a URL to JobDirError."""
    try:
        yield
    except (BaseError, ValueError, OSError, CredentialsError) as error:
        raise unusable(url, first_line(error)) from error
