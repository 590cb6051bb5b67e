"""What a machine that has fallen silent wrote on its console, if its target tells it in time."""

from __future__ import annotations

import logging
import threading

from ...provisioners.base import Allocation, Explainer, Provisioner

log = logging.getLogger("cloudgpu.supervisor")

LIMIT_S = 20.0
"""The end of a silent node waits no longer for what its console says."""


class LastWords:
    """Of an attempt's machines, in one look at them: the first that is asked for is told, for where several fall silent
    together their consoles say the same, and each would take its time."""

    def __init__(self, provisioner: Provisioner, allocation: Allocation, limit_s: float = LIMIT_S) -> None:
        self._provisioner = provisioner
        self._allocation = allocation
        self._limit_s = limit_s
        self._asked = False

    def of(self, node: str) -> str:
        """`its console ends with: …`, to be added to a reason; "": the target has no consoles, or does not tell. Never
        raises, and comes back in time."""
        if self._asked or not isinstance(self._provisioner, Explainer):
            return ""
        self._asked = True
        told: list[str] = []
        asking = threading.Thread(target=self._ask, args=(self._provisioner, node, told), name="console", daemon=True)
        asking.start()
        asking.join(self._limit_s)
        text = told[0] if told else ""
        return f"\nits console ends with:\n{text}" if text else ""

    def _ask(self, provisioner: Explainer, node: str, told: list[str]) -> None:
        try:
            told.append(provisioner.explain(self._allocation, node))
        except Exception as error:  # noqa: BLE001 - whatever it is, the node ends without its last words
            log.info("%s: the console of %s cannot be read: %s", self._allocation.job_id, node, error)
