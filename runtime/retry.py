"""Retry with backoff, for calls on a job dir or a fleet's folder that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_FIRST_S = 0.2

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


def retry(call: Callable[[], _T], error: type[_E], is_last: Callable[[_E, float], bool], *, longest_s: float) -> _T:
    """Return the answer of `call`, which is retried while it raises `error`. Raises the last one.

    `is_last`: whether an error ends the retries; gets the error and the pause that would follow, in seconds, which
    doubles up to `longest_s`.
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
