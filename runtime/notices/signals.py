"""Convert signals to orders.

SIGTERM and SIGINT mean that the machine is being shut down; SIGUSR1 is a scheduler's warning before the job's time
limit."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from .orders import Order, Orders
from .policy import policy_of

KINDS = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigterm", signal.SIGUSR1: "sigusr1"}
_REASONS = {"sigterm": "the machine is shut down", "sigusr1": "the scheduler's warning (SIGUSR1)"}


class SignalOrders:
    """Converter of signals to orders. A second SIGTERM or SIGINT has no grace period; a repeated SIGUSR1 is ignored."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._had: set[str] = set()

    def take(self, numbers: Iterable[int], now: float) -> None:
        """Issue the orders for received signals, which are in chronological order."""
        for number in numbers:
            kind = KINDS[signal.Signals(number)]
            policy = policy_of("signal", kind)
            again = kind in self._had
            self._had.add(kind)
            if again and kind == "sigusr1":
                continue
            grace = 0.0 if again else policy.lead_s - policy.margin_s
            self._orders.add(Order("preempted", policy.word, _REASONS[kind], now + grace, seen=now))
