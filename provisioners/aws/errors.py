"""Translate boto3's errors, and ignore expected errors of idempotent calls."""

from __future__ import annotations

import contextlib
from typing import Any

from ..base import ErrorClass, ProvisionError
from ..shared import api_calls
from ..shared.clock import Clock
from ..shared.errors import classify

_ENCODED = " Encoded authorization failure message:"


def translate_errors(doing: str, clock: Clock) -> contextlib.AbstractContextManager[None]:
    """Context manager: translate boto3's exceptions to ProvisionError, with `doing` in the message."""
    return api_calls.translate_errors(translate_error, doing, clock)


def translate_error(error: Exception, doing: str, clock: Clock) -> ProvisionError | None:
    """Translate an exception of boto3 to ProvisionError; None for other exceptions."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.exceptions import ConnectionError as BotoConnectionError
    from botocore.parsers import ResponseParserError

    if isinstance(error, ClientError):
        return _answered(error, doing, clock)
    if isinstance(error, (BotoCoreError, BotoConnectionError, ResponseParserError)):
        return classify("aws", code=api_calls.error_name(error), message=str(error), doing=doing)
    return None


class ignore_errors:  # noqa: N801 - used as a statement: `with ignore_errors("NoSuchEntity"):`
    """Context manager: suppress ClientErrors with these codes, e.g. the code for a resource that is already deleted."""

    def __init__(self, *codes: str) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _at: object) -> bool:
        from botocore.exceptions import ClientError

        return isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in self._codes


def _answered(error: Any, doing: str, clock: Clock) -> ProvisionError:  # a ClientError, which is imported lazily
    """Translate a ClientError; messages of auth errors name the denied action, and a clock skew if there is one."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", ""))
    about = error.response.get("ResponseMetadata", {})
    headers = {name.lower(): value for name, value in about.get("HTTPHeaders", {}).items()}
    message = message.partition(_ENCODED)[0]
    found = classify(
        "aws",
        code=code,
        status=about.get("HTTPStatusCode"),
        message=message,
        doing=doing,
        retry_after=api_calls.retry_after_s(headers.get("retry-after"), clock),
    )
    if found.error_class not in ("auth", "expired"):
        return found
    more = "" if error.operation_name in message else f" (the action is {error.operation_name})"
    skew = api_calls.clock_is_off(headers.get("date"), clock, "AWS")
    error_class: ErrorClass = "auth" if skew else found.error_class  # a new login would be refused, too
    return found.as_class(error_class, f"{more}{skew}")
