"""Pulumi components for AWS; they need `pip install 'cloudgpu[infra-aws]'`.

    from cloudgpu.infra.aws import GpuCluster

Each component is imported on first access: importing AWS's classes takes half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..components import component

if TYPE_CHECKING:
    from .bucket import JobBucket, JobBucketArgs
    from .cluster import GpuCluster, GpuClusterArgs
    from .fleet import GpuFleet, GpuFleetArgs
    from .network import GpuNetwork, GpuNetworkArgs
    from .reaper import OrphanReaper, OrphanReaperArgs
    from .role import MachineRole, MachineRoleArgs

__all__ = [
    "GpuCluster",
    "GpuClusterArgs",
    "GpuFleet",
    "GpuFleetArgs",
    "GpuNetwork",
    "GpuNetworkArgs",
    "JobBucket",
    "JobBucketArgs",
    "MachineRole",
    "MachineRoleArgs",
    "OrphanReaper",
    "OrphanReaperArgs",
]


def __getattr__(name: str) -> object:
    return component(__name__, name)
