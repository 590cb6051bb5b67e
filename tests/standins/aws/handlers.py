"""What a function is that answers one action in moto's stead, or round it."""

from __future__ import annotations

from collections.abc import Callable

from ..faults import Call
from .account import Account
from .answers import Answer

Forward = Callable[..., Answer]
"""Hands the call, or with an argument another with these parameters, to moto."""
Handler = Callable[[Account, Call, Forward], Answer]
