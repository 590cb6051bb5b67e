"""Refuse credentials that belong to another account than a launch's machines.

An account is the unit that a provider bills and lists machines by: an AWS account, a Google Cloud project, an Azure
subscription (its id is unique over all tenants). Its id is in Allocation.account and LaunchRequest.account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base import ProvisionError

OTHER_ACCOUNT = "OtherAccount"
"""ProvisionError.code of the refusal."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Account check of one target, with the provider's terms for its messages."""

    noun: str
    """The provider's term for an account, e.g. "AWS account"."""
    advice: str
    """Advice to the user: how to get credentials of an account."""

    def check(self, made_in: str, here: Callable[[], str]) -> None:
        """Raise ProvisionError(auth) if the account of the credentials (`here()`) is not `made_in`.

        No-op if `made_in`, the account of the machines, is unknown ("").
        """
        if not made_in or made_in.lower() == (ours := here()).lower():
            return
        message = f"its machines are in {self.noun} {made_in}, these credentials are of {ours}: {self.advice}"
        raise ProvisionError("auth", message, scope="cloud", code=OTHER_ACCOUNT)
