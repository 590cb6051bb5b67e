"""Retry with exponential backoff, for calls on a job dir or fleet folder that is temporarily unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_FIRST_S = 0.2

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


def retry(call: Callable[[], _T], error: type[_E], is_last: Callable[[_E, float], bool], *, longest_s: float) -> _T:
    """Return the result of `call`, retrying it while it raises `error`. Raises the last error.

    is_last    called with the error and the next pause in seconds; returns True to stop retrying
    longest_s  limit of the pause, which starts at 0.2 seconds and doubles
    """
    pause = _FIRST_S
    while True:
        try:
            return call()
        except error as found:
            if is_last(found, pause):
                raise
        time.sleep(pause)
        pause = min(2 * pause, longest_s)
