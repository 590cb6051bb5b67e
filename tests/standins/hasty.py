"""A supervisor whose pauses take a fiftieth of what they count: a program, for tests that kill it.

python -m cloudgpu.tests.standins.hasty
"""

from __future__ import annotations

from cloudgpu.control.store import Store
from cloudgpu.control.supervisor import Supervisor
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.clocks import FastClock


def main() -> None:
    clock = FastClock()
    provisioner = AwsProvisioner(clock=clock)
    supervisor = Supervisor(Store.open(), clock=clock, provisioner=lambda _target: provisioner)
    while (tick := supervisor.tick()).active:
        clock.sleep(tick.wait_s)


if __name__ == "__main__":
    main()
