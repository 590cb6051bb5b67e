"""Targets as data: where jobs can run, and what the planner, the rules and control know of each of them.

The built-in ones are rows of tables/targets.csv. Another package adds one with an entry point of the group
`cloudgpu.targets`, whose name is the target's and whose object is a TargetInfo:
docs/guides/adding-a-target.md. Entry points
are read only where a name is not built in, or where all targets are listed.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

GROUP = "cloudgpu.targets"
"""Group of the entry points."""
CLOUDS = ("local", "aws", "gcp", "vertex", "azure")
"""Built-in targets that a job file can name: the static index, which costs no look at a table; a test compares them."""
STANDING = "cluster"
"""Built-in target that `--cluster` names."""
WITH_TABLES = ("aws", "gcp", "vertex", "azure")
"""Those with tables of machine types, in the order in which they are shown."""
FLEET_CLOUDS = ("aws", "gcp", "azure")
"""Those whose machines can be a fleet: a cluster, or a job's own group."""

Machines = Literal["here", "tables", "standing", "own"]
"""Source of the offers. here: this machine's CPUs and GPUs; tables: of machine types, places and prices; standing:
machines that were brought up before, and are paid for anyway; own: by the target's `planner`."""
_TABLE = Path(__file__).parent / "tables" / "targets.csv"
_ROOT = (__package__ or "").rpartition(".")[0]
_log = logging.getLogger("cloudgpu.jobspecs")


class TargetInfo(NamedTuple):
    """A place where jobs run, such as a cloud's service. Pure data: a row of tables/targets.csv, with its defaults."""

    name: str
    code: str = ""
    """`module:name` of its provisioners.target.Target; "": this version plans for it, and cannot launch there."""
    planner: str = ""
    """`module:function` of machines `own`: (JobSpec, date) -> Plan. Pure: it asks nothing over the network."""
    machines: Machines = "own"
    host: str = ""
    """The target on whose machines it runs, itself included; "": itself."""
    schemes: tuple[str, ...] = ("s3", "gs", "az", "file")
    """Schemes of the stores that its machines reach with nothing but what they are given: job dirs and inputs."""
    markets: frozenset[str] = frozenset({"on-demand"})
    multi_node: bool = False
    roles: bool = False
    """Roles with machine types of their own."""
    image: bool = False
    """The program can run in a container image of the job's choice."""
    gpu_idle: bool = False
    """Can stop a job whose GPUs idle."""
    fractional: bool = False
    """Parts of a GPU."""
    zones: bool = False
    """Machines are placed in a zone of the caller's choice; otherwise the provider places them in the region."""
    zone_ids: bool = False
    """Its zones have other names in each account, and are written by their ids."""
    replaces_nodes: bool = False
    """A single lost machine of several can be got again while the others go on."""
    heals: bool = False
    """Its machines replace lost ones by themselves, without a supervisor."""
    ended_outside: bool = False
    """A machine that hangs is terminated at the end of its lifetime by the provider, or by its owner."""
    priority: bool = False
    """Jobs wait in a queue that honours their priority."""
    groups: frozenset[str] = frozenset()
    """Markets in which the machines of a job can be a group of its own, which replaces lost ones (`recover: fleet`)."""
    launchers: frozenset[str] = frozenset({"none"})
    aliases: tuple[str, ...] = ()
    """Other names of it, for hints."""
    families: str = ""
    """Pattern of the machine types, in lower case, that `catalog refresh` asks about; "": none."""
    custom: str = ""
    """Pattern of the machine types, in lower case, that a user composes, which are not supported; "": none."""
    dry_s: float | None = None
    """Seconds for which a place without capacity is not asked again; None: as everywhere."""
    quiet_s: tuple[float, float] | None = None
    """Seconds between two observations of a job while nothing changes, at first and at most; None: as everywhere."""

    @property
    def is_here(self) -> bool:
        """Return whether its machine is the supervisor's own."""
        return self.machines == "here"

    @property
    def is_standing(self) -> bool:
        """Return whether its machines are paid for whether a job runs or not."""
        return self.machines == "standing"

    @property
    def has_tables(self) -> bool:
        return self.machines == "tables"


@cache
def built_in() -> dict[str, TargetInfo]:
    """Return the built-in targets by name, `local` first."""
    header, *lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = (dict(zip(header.split(","), line.split(","), strict=True)) for line in lines)
    return {row["target"]: _from_row(row) for row in rows}


def find(name: str) -> TargetInfo | None:
    """Return the target of this name, built in or of another package; None: there is none."""
    return built_in().get(name) or _outside(name)


def info(name: str) -> TargetInfo:
    """Return the target of this name; of one that is not installed any more, the defaults."""
    return find(name) or TargetInfo(name)


def names() -> tuple[str, ...]:
    """Return the targets that a job file can name, those of other packages last."""
    return (*CLOUDS, *sorted({entry.name for entry in _entries()} - built_in().keys()))


def is_name(value: object) -> bool:
    """Return whether a job file can name this target."""
    return value in CLOUDS or (isinstance(value, str) and value != STANDING and find(value) is not None)


def listed() -> dict[str, TargetInfo]:
    """Return all targets by name, those of other packages last."""
    return built_in() | {name: found for name in names() if (found := find(name)) is not None}


def on_host(host: str) -> tuple[str, ...]:
    """Return the built-in targets that run on the machines of one of them, itself first."""
    return tuple(name for name, one in built_in().items() if host in {name, one.host})


@cache
def _entries() -> tuple[Any, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


@cache
def _outside(name: str) -> TargetInfo | None:
    for entry in _entries():
        if entry.name != name:
            continue
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's defect keeps no job from the other targets
            _log.warning("the target %s cannot be used: %s: %s", name, entry.value, error)
            return None
        if isinstance(found, TargetInfo) and found.name == name:
            return found
        _log.warning("the target %s cannot be used: %s is no TargetInfo of that name", name, entry.value)
    return None


_WORDS = frozenset({"schemes", "aliases"})
_SETS = frozenset({"markets", "groups", "launchers"})
_TEXTS = frozenset({"machines", "host", "families", "custom"})


def _from_row(row: dict[str, str]) -> TargetInfo:
    name, dry_s, quiet_s = row.pop("target"), row.pop("dry_s"), row.pop("quiet_s")
    seconds = [float(one) for one in quiet_s.split()]
    return TargetInfo(
        name=name,
        code=f"{_ROOT}.provisioners.{name}.target:TARGET",
        dry_s=float(dry_s) if dry_s else None,
        quiet_s=(seconds[0], seconds[1]) if seconds else None,
        **{column: _cell(column, cell) for column, cell in row.items()},
    )


def _cell(column: str, cell: str) -> Any:
    if column in _TEXTS:
        return cell
    if column in _WORDS:
        return tuple(cell.split())
    return frozenset(cell.split()) if column in _SETS else cell == "yes"
