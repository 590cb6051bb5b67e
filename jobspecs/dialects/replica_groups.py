"""Convert groups of replicas, as training services describe them, to the roles of a job file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..diagnostics import Loc
from .conversion import Conversion

CLOUDS = ["vertex", "gcp"]
"""Targets of converted jobs: Vertex AI, then Compute Engine, on which it is built."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine of one replica."""

    machine_type: str | None
    accelerator: str | None
    """Canonical name of the accelerator; None: no GPU."""
    count: int
    """Number of GPUs; 0 without an accelerator."""


@dataclass(frozen=True, slots=True)
class Group:
    """Identical replicas with one task."""

    name: str
    """Name in the source, e.g. `master`."""
    role: str
    nodes: int
    machine: Machine
    loc: Loc
    machine_loc: Loc
    accelerator_loc: Loc
    image: str | None = None
    image_loc: Loc = ()
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    disk_gb: int | None = None
    disk_loc: Loc = ()

    def on(self, machine: Machine) -> Group:
        return replace(self, machine=machine)


def put_groups(conversion: Conversion, groups: Sequence[Group]) -> None:
    """Set machines, images and disk: for one machine in `resources`, for several in `roles`, started with TF_CONFIG."""
    if len(groups) == 1 and groups[0].nodes == 1:
        _put_machine(conversion, ("resources",), groups[0])
    else:
        for group in groups:
            place: Loc = ("roles", group.role)
            _put_machine(conversion, place, group)
            conversion.put((*place, "nodes"), group.nodes, group.loc)
        # The services set TF_CONFIG for every replica, whatever the framework.
        conversion.put(("launcher",), "tensorflow", groups[0].loc)
    _put_images(conversion, groups)
    _put_disk(conversion, groups)


def _put_machine(conversion: Conversion, place: Loc, group: Group) -> None:
    machine = group.machine
    text = f"{machine.accelerator}:{machine.count}" if machine.accelerator else "none"
    conversion.put((*place, "accelerator"), text, group.accelerator_loc)
    if machine.machine_type:
        conversion.put((*place, "machine_type"), machine.machine_type, group.machine_loc)


def _put_images(conversion: Conversion, groups: Sequence[Group]) -> None:
    """Set the first group's image for the job, and differing images in their roles."""
    first = groups[0]
    if first.image is not None:
        conversion.put(("image",), first.image, first.image_loc)
    for group in groups[1:]:
        if group.image not in (None, first.image):
            conversion.put(("roles", group.role, "image"), group.image, group.image_loc)


def _put_disk(conversion: Conversion, groups: Sequence[Group]) -> None:
    sized = [group for group in groups if group.disk_gb]
    if not sized:
        return
    largest = max(sized, key=lambda group: group.disk_gb or 0)
    conversion.put(("resources", "disk"), f"{largest.disk_gb}GB", largest.disk_loc)
    if len(groups) > 1 and len({group.disk_gb for group in groups}) > 1:
        conversion.note(f"every machine gets the largest disk, {largest.disk_gb} GB: a job file has one disk size")


def put_place(conversion: Conversion, region: str | None, origin: Loc) -> None:
    conversion.put(("resources", "cloud"), list(CLOUDS), ())
    if region is not None:
        conversion.put(("resources", "region"), region, origin)
