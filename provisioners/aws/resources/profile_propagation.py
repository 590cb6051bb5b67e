"""How long EC2 takes to learn of a new instance profile: learned from its answers, by all jobs of a process.

IAM is eventually consistent (IAM user guide, troubleshooting): for some seconds EC2 refuses a profile that was made
just now. Each such refusal costs a RunInstances call, of which EC2 takes two a second.
"""

from __future__ import annotations

import threading

from ...shared.clock import Clock

FIRST_S = 5.0
"""Pause after the first refusal, in seconds; it doubles with the profile's age."""
LONGEST_S = 120.0
"""The longest pause that is learned, in seconds."""
FORGOTTEN_S = 600.0
"""A profile of this age, in seconds, is known everywhere."""
_FADES = 0.95
"""With each profile that was known in time, a shorter pause is tried."""


class Profiles:
    """New instance profiles by their ARN. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[str, float] = {}
        self._of_launches: dict[str, tuple[str, float]] = {}
        """Launch token -> ARN, and when it was made. A launch that waits for its turn is repeated and finds it here."""
        self._lag_s = 0.0

    def add(self, arn: str, token: str = "") -> None:
        """Note that a profile has been made, now or earlier; `token`: of the launch that has it for itself."""
        now = self._clock.monotonic()
        with self._lock:
            for old in [one for one, made in self._made.items() if now - made > FORGOTTEN_S]:
                del self._made[old]
            for old in [one for one, (_, made) in self._of_launches.items() if now - made > FORGOTTEN_S]:
                del self._of_launches[old]
            self._made.setdefault(arn, now)
            if token:
                self._of_launches.setdefault(token, (arn, now))

    def of_launch(self, token: str) -> str | None:
        """Return the ARN of the profile that this process has made for a launch some minutes ago at most."""
        with self._lock:
            arn, made = self._of_launches.get(token, ("", 0.0))
        return arn if arn and self._clock.monotonic() - made <= FORGOTTEN_S else None

    def forget_launch(self, token: str) -> None:
        """Have the next launch with this token see to its profile: it may have been removed."""
        with self._lock:
            self._of_launches.pop(token, None)

    def wait_s(self, arn: str) -> float:
        """Seconds after which EC2 is expected to know it."""
        with self._lock:
            made = self._made.get(arn)
            return 0.0 if made is None else max(0.0, made + self._lag_s - self._clock.monotonic())

    def refuse(self, arn: str) -> None:
        """EC2 does not know it yet."""
        now = self._clock.monotonic()
        with self._lock:
            age = now - self._made.setdefault(arn, now)
            self._lag_s = max(self._lag_s, min(max(FIRST_S, 2 * age), LONGEST_S))

    def accept(self, arn: str) -> None:
        """EC2 knows it."""
        with self._lock:
            if self._made.pop(arn, None) is not None:
                self._lag_s = self._lag_s * _FADES if self._lag_s * _FADES >= 1.0 else 0.0
