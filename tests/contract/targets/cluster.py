"""Stand-in for the target `cluster`: orders in the folder of a cluster whose machines already run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cloudgpu.provisioners import LaunchRequest, Provisioner
from cloudgpu.provisioners.cluster.provisioner import ClusterProvisioner
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.fleets import FleetFolder, cluster_at

from .standin import Standin


class ClusterStandin(Standin):
    target, region = "cluster", "big"
    machine_type, accelerator, job_dir = "g6.xlarge", None, "file:///jobs"
    runs = "pending"
    _numbers = itertools.count(1)

    def reset(self, patch: pytest.MonkeyPatch) -> None:
        super().reset(patch)
        self.fleet = FleetFolder(self.folder / f"jobs-{next(self._numbers)}" / "clusters" / "big")
        self.limit(9)

    def request(self, *names: str, **changes: Any) -> LaunchRequest:
        return super().request(*names, **{"agent": None, **changes})

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return ClusterProvisioner()

    def alive(self) -> int:
        return sum(len(one.order.nodes) for one in self.fleet.fleet.view().orders if one.end is None)

    def started(self) -> int:
        return sum(len(one.order.nodes) for one in self.fleet.fleet.view().orders)

    def left(self) -> object:
        return self.alive()

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        clusters.save(cluster_at(self.fleet.fleet.url, places))
