"""A supervisor whose pauses take a fiftieth of what they count: a program, for tests that kill it.

    python -m cloudgpu.tests.standins.hasty

Epoch time is real, for machines and files are stamped with it; steady time has the rest of every pause added.
"""

from __future__ import annotations

import time

from cloudgpu.control.store import Store
from cloudgpu.control.supervisor import Supervisor
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner

HASTE = 50


class HastyClock:
    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / HASTE)
        self._skipped += seconds * (HASTE - 1) / HASTE


def main() -> None:
    clock = HastyClock()
    provisioner = AwsProvisioner(clock=clock)
    supervisor = Supervisor(Store.open(), clock=clock, provisioner=lambda _target: provisioner)
    while (tick := supervisor.tick()).active:
        clock.sleep(tick.wait_s)


if __name__ == "__main__":
    main()
