"""Example of a target in another package: machines that are processes on this computer.
See docs/guides/adding-a-target.md."""

from cloudgpu.jobspecs.targets import TargetInfo

INFO = TargetInfo(
    name="shed",
    code="shed.target:TARGET",
    planner="shed.planner:plan",
    schemes=("file",),
    multi_node=True,
    launchers=frozenset({"none", "torchrun"}),
)
