"""Estimate of the time in which new instance profiles propagate to EC2, shared by all jobs of a process.

IAM is eventually consistent (IAM user guide, troubleshooting): EC2 refuses a new profile for some seconds. Each such
refusal costs a RunInstances call, of which EC2 allows two a second.
"""

from __future__ import annotations

import threading

from ...shared.clock import Clock

FIRST_S = 5.0
"""Smallest estimate after a refusal, in seconds. The estimate is twice the age of the refused profile."""
LONGEST_S = 120.0
"""Largest estimate, in seconds."""
PROPAGATED_S = 600.0
"""Age in seconds from which a profile is assumed to have propagated."""
_DECAY = 0.95
"""Factor by which the estimate decreases with each profile that EC2 accepts."""


class Profiles:
    """Recently created instance profiles, and the estimated propagation time. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[str, float] = {}
        self._of_launches: dict[str, tuple[str, float]] = {}
        """Launch token -> (ARN, monotonic creation time): a retried launch does not create its profile again."""
        self._lag_s = 0.0

    def add(self, arn: str, token: str = "") -> None:
        """Record a profile as created now, unless it is recorded already. `token`: token of its launch."""
        now = self._clock.monotonic()
        with self._lock:
            for old in [one for one, made in self._made.items() if now - made > PROPAGATED_S]:
                del self._made[old]
            for old in [one for one, (_, made) in self._of_launches.items() if now - made > PROPAGATED_S]:
                del self._of_launches[old]
            self._made.setdefault(arn, now)
            if token:
                self._of_launches.setdefault(token, (arn, now))

    def of_launch(self, token: str) -> str | None:
        """Return the ARN of the profile that this process created for a launch within PROPAGATED_S; None: there is
        none."""
        with self._lock:
            arn, made = self._of_launches.get(token, ("", 0.0))
        return arn if arn and self._clock.monotonic() - made <= PROPAGATED_S else None

    def forget_launch(self, token: str) -> None:
        """Drop a launch's profile, which may have been deleted, so that the next launch with this token creates or
        checks it."""
        with self._lock:
            self._of_launches.pop(token, None)

    def wait_s(self, arn: str) -> float:
        """Return the seconds after which EC2 is expected to accept the profile; 0: now."""
        with self._lock:
            made = self._made.get(arn)
            return 0.0 if made is None else max(0.0, made + self._lag_s - self._clock.monotonic())

    def refuse(self, arn: str) -> None:
        """Record that EC2 refused the profile as unknown, and raise the estimate."""
        now = self._clock.monotonic()
        with self._lock:
            age = now - self._made.setdefault(arn, now)
            self._lag_s = max(self._lag_s, min(max(FIRST_S, 2 * age), LONGEST_S))

    def accept(self, arn: str) -> None:
        """Record that EC2 accepted the profile, and lower the estimate."""
        with self._lock:
            if self._made.pop(arn, None) is not None:
                self._lag_s = self._lag_s * _DECAY if self._lag_s * _DECAY >= 1.0 else 0.0
