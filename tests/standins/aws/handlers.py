"""Type of a handler that implements one action, alone or on top of moto."""

from __future__ import annotations

from collections.abc import Callable

from ..faults import Call
from .account import Account
from .answers import Answer

Forward = Callable[..., Answer]
"""Passes the call to moto, with other parameters if an argument is given."""
Handler = Callable[[Account, Call, Forward], Answer]
