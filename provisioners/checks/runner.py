"""Run the checks of one target, with a timeout for all of them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..base import ProvisionError
from ..shared.api_calls import LaunchInterruptedError, interruptible
from .results import CheckResult, Step, from_error, from_unexpected


class _Running:
    """A step that runs in a thread of its own. A call that hangs holds up neither the others nor the exit."""

    def __init__(self, step: Step, until: float) -> None:
        self.step = step
        self._until = until
        self._found: list[CheckResult] = []
        self._is_late = False
        """A retry was given up because of the timeout."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"cloudgpu-check-{step.subject}")
        self._thread.start()

    def results(self, timeout_s: float) -> list[CheckResult]:
        """Wait for the step and return its results; a timeout is an error beside those that it had by then."""
        self._thread.join(max(self._until - time.monotonic(), 0.0))
        found = list(self._found)
        if self._is_late or self._thread.is_alive():
            message = f"no answer within {timeout_s:g} s"
            found.append(CheckResult(self.step.subject, "error", message, "check the network; or a longer --timeout"))
        return found

    def _run(self) -> None:
        # Within interruptible(), calls are retried for seconds only, and not at all after the timeout.
        try:
            with interruptible(lambda: time.monotonic() > self._until):
                for result in self.step.run():
                    self._found.append(result)
        except ProvisionError as error:
            self._found.append(from_error(self.step.subject, error))
        except LaunchInterruptedError:
            self._is_late = True
        except Exception as error:  # noqa: BLE001 - reported: broken set-ups make SDKs raise anything
            self._found.append(from_unexpected(self.step.subject, error))


def run_steps(steps: Sequence[Step], timeout_s: float) -> list[CheckResult]:
    """Return the results of all steps, in their order: gates one after the other, the rest at the same time."""
    until = time.monotonic() + timeout_s
    found: list[CheckResult] = []
    gates = [step for step in steps if step.is_gate]
    rest = [step for step in steps if not step.is_gate]
    for number, gate in enumerate(gates, 1):
        results = _Running(gate, until).results(timeout_s)
        found += results
        if any(one.status == "error" for one in results):
            left = [*gates[number:], *rest]
            reason = f"not checked: {results[-1].subject.replace('_', ' ')} first"
            return [*found, *(CheckResult(step.subject, "skipped", reason) for step in left)]
    running = [_Running(step, until) for step in rest]
    return [*found, *(result for one in running for result in one.results(timeout_s))]
