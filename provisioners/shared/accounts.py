"""Which account machines are in, and the refusal of credentials that belong to another one.

An account is what a provider bills and what a listing shows machines of: an AWS account, a Google Cloud project, an
Azure subscription (its id is unique over all tenants). Its id is in Allocation.account and LaunchRequest.account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base import ProvisionError

OTHER_ACCOUNT = "OtherAccount"
"""ProvisionError.code of the refusal."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of one target, in the words of its provider."""

    noun: str
    """e.g. "AWS account"."""
    advice: str
    """How to get credentials of an account."""

    def check(self, made_in: str, here: Callable[[], str]) -> None:
        """Raise ProvisionError(auth) if `here`, the account of the credentials, is not the one that machines are in.

        Nothing is asked where that account is unknown ("").
        """
        if not made_in or made_in.lower() == (ours := here()).lower():
            return
        message = f"its machines are in {self.noun} {made_in}, these credentials are of {ours}: {self.advice}"
        raise ProvisionError("auth", message, scope="cloud", code=OTHER_ACCOUNT)
