"""Console output of a machine that has fallen silent, if its target provides it in time."""

from __future__ import annotations

import logging
import threading

from ...provisioners.base import Allocation, Explainer, Provisioner

log = logging.getLogger("cloudgpu.supervisor")

LIMIT_S = 20.0
"""Timeout in seconds for reading a silent node's console before the node is declared lost."""


class ConsoleReader:
    """Reader of the consoles of an attempt's machines, for one observation. Only the first call to of() reads a
    console: nodes that fall silent together usually have the same output, and each read takes time."""

    def __init__(self, provisioner: Provisioner, allocation: Allocation, limit_s: float = LIMIT_S) -> None:
        self._provisioner = provisioner
        self._allocation = allocation
        self._limit_s = limit_s
        self._asked = False

    def of(self, node: str) -> str:
        """Return a line break and the last lines of a node's console, to append to a reason.

        Returns "" after the first call, if the target has no consoles, and if the read fails or exceeds the time limit.
        """
        if self._asked or not isinstance(self._provisioner, Explainer):
            return ""
        self._asked = True
        outputs: list[str] = []
        asking = threading.Thread(
            target=self._ask, args=(self._provisioner, node, outputs), name="console", daemon=True
        )
        asking.start()
        asking.join(self._limit_s)
        text = outputs[0] if outputs else ""
        return f"\nits console ends with:\n{text}" if text else ""

    def _ask(self, provisioner: Explainer, node: str, outputs: list[str]) -> None:
        try:
            outputs.append(provisioner.explain(self._allocation, node))
        except Exception as error:  # noqa: BLE001 - any error: the node then ends without console output
            log.info("%s: the console of %s cannot be read: %s", self._allocation.job_id, node, error)
