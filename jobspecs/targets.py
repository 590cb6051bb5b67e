"""Targets as data: places where jobs can run, with the properties that planner, rules and control use.

Built-in targets are rows of tables/targets.csv. Another package adds a target with an entry point of the group
`cloudgpu.targets`; the entry point's name is the target's, and its object a TargetInfo
(docs/guides/adding-a-target.md). Entry points are read only for a name that is not built in, or to list all targets.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

GROUP = "cloudgpu.targets"
"""Name of the entry point group by which other packages add targets."""
CLOUDS = ("local", "aws", "gcp", "vertex", "azure")
"""Built-in targets that a job file can name. They are listed here so that the table need not be read."""
CLUSTER = "cluster"
"""Built-in target of jobs that are submitted with `--cluster`."""
WITH_TABLES = ("aws", "gcp", "vertex", "azure")
"""Targets with tables of machine types, in display order."""
FLEET_CLOUDS = ("aws", "gcp", "azure")
"""Targets whose machines can be a fleet: a cluster, or a job's dedicated group."""

Machines = Literal["here", "tables", "standing", "own"]
"""Source of the offers. here: this machine's CPUs and GPUs; tables: tables of machine types, places and prices;
standing: existing machines that are paid for anyway; own: the target's `planner`."""
_TABLE = Path(__file__).parent / "tables" / "targets.csv"
_ROOT = (__package__ or "").rpartition(".")[0]
_log = logging.getLogger("cloudgpu.jobspecs")


class TargetInfo(NamedTuple):
    """Place where jobs run, such as a cloud's service: a row of tables/targets.csv, or another package's target."""

    name: str
    code: str = ""
    """`module:name` of the target's provisioners.target.Target; "": this version can plan for it, but not launch."""
    planner: str = ""
    """`module:function` of its planner, if `machines` is "own": (JobSpec, date) -> Plan, without network access."""
    machines: Machines = "own"
    host: str = ""
    """Target on whose machines it runs; "": it has its own machines."""
    schemes: tuple[str, ...] = ("s3", "gs", "az", "file")
    """URL schemes of stores that its machines reach with their default credentials, for job dirs and inputs."""
    secret_schemes: tuple[str, ...] = ()
    """Schemes of the secret managers that its machines can read, by their role or the submitter's credentials."""
    markets: frozenset[str] = frozenset({"on-demand"})
    multi_node: bool = False
    roles: bool = False
    """True if roles may have different machine types."""
    image: bool = False
    """True if the program can run in a container image of the user's choice."""
    gpu_idle: bool = False
    """True if it can stop a job whose GPUs are idle."""
    fractional: bool = False
    """True if it offers fractions of a GPU."""
    zones: bool = False
    """True if the caller chooses the zone; otherwise the provider chooses it within the region."""
    zone_ids: bool = False
    """True if the names of its zones differ between accounts, so that job files contain their ids."""
    replaces_nodes: bool = False
    """True if a single lost machine of several can be replaced while the others continue."""
    heals: bool = False
    """True if it replaces lost machines itself, without a supervisor."""
    ended_outside: bool = False
    """True if the provider, or the machine's owner, terminates a hung machine at the end of its lifetime."""
    priority: bool = False
    """True if jobs wait in a queue that honours their priority."""
    groups: frozenset[str] = frozenset()
    """Markets in which a job can have a dedicated group that replaces lost machines (`recover: fleet`)."""
    launchers: frozenset[str] = frozenset({"none"})
    aliases: tuple[str, ...] = ()
    """Other names of the target, for hints."""
    families: str = ""
    """Regular expression of the machine types, in lower case, that `catalog refresh` queries; "": none."""
    custom: str = ""
    """Regular expression of custom machine types, in lower case, which are not supported; "": none."""
    capacity_retry_s: float | None = None
    """Seconds before a place without capacity is retried; None: the default."""
    poll_s: tuple[float, float] | None = None
    """Seconds between two observations of an unchanged job, initially and at most; None: the default."""

    @property
    def is_here(self) -> bool:
        """True if its machine is the one on which the supervisor runs."""
        return self.machines == "here"

    @property
    def outlives_jobs(self) -> bool:
        """True if its machines exist, and are paid for, independently of jobs."""
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
    """Return the target with a name, built in or of another package; None if there is none."""
    return built_in().get(name) or _from_entry_point(name)


def info(name: str) -> TargetInfo:
    """Return the target with a name; for a target that is no longer installed, a TargetInfo with defaults."""
    return find(name) or TargetInfo(name)


def names() -> tuple[str, ...]:
    """Return the targets that a job file can name, those of other packages last."""
    return (*CLOUDS, *sorted({entry.name for entry in _entries()} - built_in().keys()))


def is_name(value: object) -> bool:
    """Return whether a job file can name this target."""
    return value in CLOUDS or (isinstance(value, str) and value != CLUSTER and find(value) is not None)


def listed() -> dict[str, TargetInfo]:
    """Return all targets by name, those of other packages last."""
    return built_in() | {name: found for name in names() if (found := find(name)) is not None}


def on_host(host: str) -> tuple[str, ...]:
    """Return the built-in targets that run on a target's machines: the target itself, then others."""
    return tuple(name for name, one in built_in().items() if host in {name, one.host})


@cache
def _entries() -> tuple[Any, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


@cache
def _from_entry_point(name: str) -> TargetInfo | None:
    for entry in _entries():
        if entry.name != name:
            continue
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's defect must not disable other targets
            _log.warning("the target %s cannot be used: %s: %s", name, entry.value, error)
            return None
        if isinstance(found, TargetInfo) and found.name == name:
            return found
        _log.warning("the target %s cannot be used: %s is no TargetInfo of that name", name, entry.value)
    return None


_WORDS = frozenset({"schemes", "secret_schemes", "aliases"})
_SETS = frozenset({"markets", "groups", "launchers"})
_TEXTS = frozenset({"machines", "host", "families", "custom"})


def _from_row(row: dict[str, str]) -> TargetInfo:
    name, retry_s, poll_s = row.pop("target"), row.pop("capacity_retry_s"), row.pop("poll_s")
    seconds = [float(one) for one in poll_s.split()]
    return TargetInfo(
        name=name,
        code=f"{_ROOT}.provisioners.{name}.target:TARGET",
        capacity_retry_s=float(retry_s) if retry_s else None,
        poll_s=(seconds[0], seconds[1]) if seconds else None,
        **{column: _cell(column, cell) for column, cell in row.items()},
    )


def _cell(column: str, cell: str) -> Any:
    if column in _TEXTS:
        return cell
    if column in _WORDS:
        return tuple(cell.split())
    return frozenset(cell.split()) if column in _SETS else cell == "yes"
