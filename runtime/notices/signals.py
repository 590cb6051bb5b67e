"""Signals to the agent as notices: the machine shuts down, or a scheduler warns that the time is nearly over."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from .orders import Order, Orders
from .policy import policy_of

KINDS = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigterm", signal.SIGUSR1: "sigusr1"}
_REASONS = {"sigterm": "the machine is shut down", "sigusr1": "the scheduler's warning (SIGUSR1)"}


class SignalOrders:
    """SIGTERM or SIGINT for the second time means now. SIGUSR1 is a warning, and repeating it changes nothing."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._had: set[str] = set()

    def take(self, numbers: Iterable[int], now: float) -> None:
        """Give the orders that follow from signals, in the order in which they came."""
        for number in numbers:
            kind = KINDS[signal.Signals(number)]
            policy = policy_of("signal", kind)
            again = kind in self._had
            self._had.add(kind)
            if again and kind == "sigusr1":
                continue
            grace = 0.0 if again else policy.lead_s - policy.margin_s
            self._orders.add(Order("preempted", policy.word, _REASONS[kind], now + grace, seen=now))
