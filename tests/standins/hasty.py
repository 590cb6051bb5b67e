"""Supervisor whose pauses take 1/50 of the time that they count: a program, for tests that kill it.

python -m cloudgpu.tests.standins.hasty TARGET
"""

from __future__ import annotations

import importlib
import sys

from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.tests.standins.clocks import FastClock

PROVISIONERS = {
    "aws": "AwsProvisioner",
    "azure": "AzureProvisioner",
    "gcp": "GcpProvisioner",
    "vertex": "VertexProvisioner",
}


def main(target: str) -> None:
    clock = FastClock()
    made = getattr(importlib.import_module(f"cloudgpu.provisioners.{target}.provisioner"), PROVISIONERS[target])
    provisioner = made(clock=clock)
    supervisor = Supervisor(Store.open(), clock=clock, provisioner=lambda _target: provisioner)
    while (tick := supervisor.tick()).active:
        clock.sleep(tick.wait_s)


if __name__ == "__main__":
    main(sys.argv[1])
