"""What each target can do, as data: the rules and the loader read this instead of knowing targets by name."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from . import read


class Target(NamedTuple):
    """Where jobs run: this machine, or a cloud's service."""

    name: str
    markets: frozenset[str]
    multi_node: bool
    roles: bool
    """Roles with machine types of their own."""
    image: bool
    """The program can run in a container image of the job's choice."""
    gpu_idle: bool
    """Can stop a job whose GPUs idle."""
    fractional: bool
    """Parts of a GPU."""
    zones: bool
    """Machines are placed in a zone of the caller's choice; otherwise the provider places them in the region."""
    replaces_nodes: bool
    """A single lost machine of several can be got again while the others go on."""
    heals: bool
    """Its machines take lost ones' places by themselves, whoever looks."""
    ended_outside: bool
    """A machine that hangs is terminated at the end of its lifetime by the provider, or by its owner."""
    priority: bool
    """Jobs wait in a queue that honours their priority."""
    groups: frozenset[str]
    """Markets in which the machines of a job can be a group of its own, which replaces lost ones (`recover: fleet`)."""
    launchers: frozenset[str]


@cache
def targets() -> dict[str, Target]:
    """By name, `local` first."""
    flags = (
        "multi_node",
        "roles",
        "image",
        "gpu_idle",
        "fractional",
        "zones",
        "replaces_nodes",
        "heals",
        "ended_outside",
        "priority",
    )
    found = {}
    words = ("markets", "groups", "launchers")
    for name, markets, groups, launchers, *cells in read.rows("targets", "target", *words, *flags):
        found[name] = Target(
            name=name,
            markets=read.word_set(markets),
            groups=read.word_set(groups),
            launchers=read.word_set(launchers),
            **{flag: cell == "yes" for flag, cell in zip(flags, cells, strict=True)},
        )
    return found
