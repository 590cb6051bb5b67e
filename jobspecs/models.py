"""The job file as Pydantic models: what may be asked for (shapes and bounds; what exists is said by the tables).

Writing is strict: extra keys are refused. Reading what cloudgpu itself stored is lenient: `JobSpec.from_stored()` drops
keys of a newer or older version, so that an upgrade never strands a running job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from .units import CountRange, DiskSize, Duration, Money, Rate, SizeRange

CloudName = Literal["local", "aws", "gcp", "vertex", "azure"]
Market = Literal["on-demand", "spot", "flex-start", "reservation"]
RoleName = Literal["chief", "worker", "parameter_server", "evaluator"]
LauncherName = Literal["auto", "none", "torchrun", "tensorflow", "horovod", "mpi"]

CLOUDS: tuple[CloudName, ...] = get_args(CloudName)
ROLES: tuple[RoleName, ...] = get_args(RoleName)
"""In rank order: the chief is always rank 0."""
MAX_NODES = 1_000

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class AcceleratorRequest(_Model):
    """Which GPUs a machine must have: by name (`L4`, `A100-80GB:8`, `RTX-PRO-6000:1/4`), or any of a memory size."""

    name: str | None = Field(default=None, max_length=64, description="Accelerator name or alias, e.g. A100-80GB")
    memory: Annotated[
        SizeRange | None,
        BeforeValidator(lambda v: None if v is None else SizeRange.parse(v)),
        PlainSerializer(lambda v: None if v is None else str(v)),
        WithJsonSchema({"type": "string", "examples": ["24GB..", "40GB..80GB"]}),
    ] = None
    count: Annotated[
        CountRange,
        BeforeValidator(CountRange.parse),
        PlainSerializer(str),
        WithJsonSchema({"type": ["string", "integer"], "examples": ["1", "2..8", "1/8"]}),
    ] = CountRange(Fraction(1), Fraction(1))

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the user wrote
        if not isinstance(value, str):
            return value
        name, colon, count = value.strip().partition(":")
        return {"name": name.strip(), "count": count.strip()} if colon else {"name": name.strip()}

    @model_validator(mode="after")
    def _one_of(self) -> AcceleratorRequest:
        if (self.name is None) == (self.memory is None):
            raise ValueError("expected either a name, as in L4:1, or a memory size, as in {memory: 24GB..}")
        return self

    def __str__(self) -> str:
        return f"{self.name or f'any GPU with {self.memory}'}:{self.count}"


def _one_or_more(value: Any) -> Any:  # noqa: ANN401
    """`x` stands for `[x]`."""
    return value if value is None or isinstance(value, list | tuple) else (value,)


def _accelerators(value: Any) -> Any:  # noqa: ANN401
    """`none` (the CPU is enough) is the empty list."""
    return () if value == "none" else _one_or_more(value)


def _unique(value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if value is not None and len(set(map(str, value))) != len(value):
        raise ValueError("expected each entry once")
    return value


def _some(value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if value is not None and not value:
        raise ValueError("expected at least one entry")
    return value


_OneOrMore = (BeforeValidator(_one_or_more), AfterValidator(_unique), AfterValidator(_some))

Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
MachineTypeName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
RegionName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
AcceleratorList = Annotated[
    tuple[AcceleratorRequest, ...], BeforeValidator(_accelerators), AfterValidator(_unique), Field(max_length=32)
]
NodeCount = Annotated[int, Field(ge=1, le=MAX_NODES)]


class Role(_Model):
    """Identical nodes with one task."""

    nodes: NodeCount = 1
    accelerator: AcceleratorList = ()
    machine_type: MachineTypeName | None = None
    image: str | None = Field(default=None, min_length=1, max_length=512)


class Resources(_Model):
    """The machines: top-level fields describe the one role `worker`; a job with `roles:` leaves them out."""

    accelerator: AcceleratorList = Field(default=(), description="In order of preference; `none` for the CPU only")
    cloud: Annotated[tuple[CloudName, ...] | None, *_OneOrMore] = None
    region: Annotated[tuple[RegionName, ...] | None, *_OneOrMore] = None
    zone: Annotated[tuple[RegionName, ...] | None, *_OneOrMore] = None
    machine_type: MachineTypeName | None = None
    market: Annotated[tuple[Market, ...], *_OneOrMore] = ("on-demand",)
    nodes: NodeCount = 1
    disk: DiskSize = 100.0


class CheckpointPolicy(_Model):
    """When the runtime saves, and how many checkpoints it keeps."""

    every: Literal["auto"] | Duration = "auto"
    keep: Annotated[int, Field(ge=1, le=1_000)] = 3


class Retry(_Model):
    """How often the job may be started again after an interruption, or after its own failure."""

    preemption: Literal["unlimited"] | Annotated[int, Field(ge=0, le=10_000)] = "unlimited"
    failure: Annotated[int, Field(ge=0, le=10_000)] = 1


class Limits(_Model):
    """Where the job must end: in time, in money, in price, in idleness."""

    duration: Duration | None = Field(default=None, description="From submit to end, all attempts")
    cost: Money | None = Field(default=None, description="All attempts together: checkpoint, then stop")
    price: Rate | None = Field(default=None, description="Of the whole job: every node of every role, disks included")
    gpu_idle: Duration | None = Field(default=None, description="Stop when no GPU did anything for so long")


def _env(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, Mapping):
        return value
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} is no name for an environment variable: letters, digits and _ only")
        if str(name).startswith("CLOUDGPU_"):
            raise ValueError(f"{name} is set by cloudgpu itself: choose a name that does not begin with CLOUDGPU_")
        if text is None:
            raise ValueError(f'{name} has no value: write {name}: "" for an empty one')
    return value


EnvVars = Annotated[dict[str, Annotated[str, Field(max_length=65_536)]], BeforeValidator(_env), Field(max_length=1_000)]
Command = Annotated[str, Field(min_length=1)] | Annotated[tuple[str, ...], Field(min_length=1)]


class JobSpec(_Model):
    """One job file. See docs/job-file.md for every field, and `cloudgpu schema` for the JSON Schema."""

    name: Name = Field(description="Lower-case letters, digits and hyphens; begins with a letter")
    resources: Resources = Resources()
    roles: dict[RoleName, Role] | None = Field(default=None, min_length=1)
    image: str | None = Field(
        default=None, min_length=1, max_length=512, description="Container image; omitted: the machine's"
    )
    code: str | None = Field(default=".", description="Folder to ship, relative to the job file; null ships nothing")
    setup: Command | None = Field(default=None, description="Runs once per machine before the program")
    run: Command = Field(description="A string is run by the shell, a list is executed as it is")
    args: tuple[str, ...] = Field(default=(), max_length=10_000)
    env: EnvVars = {}
    launcher: LauncherName = "auto"
    job_dir: str | None = Field(
        None, min_length=1, max_length=1_024, description="s3://, gs://, az://, file:// or a path"
    )
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    retry: Retry = Retry()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _roles_or_top_level(self) -> JobSpec:
        if self.roles is None:
            return self
        twice = sorted({"accelerator", "machine_type", "nodes"} & self.resources.model_fields_set)
        if twice:
            raise ValueError(f"resources.{twice[0]} and roles: exclude each other: move it into a role")
        if "chief" in self.roles and self.roles["chief"].nodes != 1:
            raise ValueError("roles.chief.nodes must be 1: there is one chief")
        return self

    def effective_roles(self) -> dict[RoleName, Role]:
        """The roles in rank order; without `roles:` the one role `worker` made of the top-level fields."""
        if self.roles is not None:
            return {name: self.roles[name] for name in ROLES if name in self.roles}
        top = self.resources
        return {"worker": Role(nodes=top.nodes, accelerator=top.accelerator, machine_type=top.machine_type)}

    def to_stored(self) -> dict[str, Any]:
        """Plain JSON values; `from_stored()` turns them back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_stored(cls, value: Mapping[str, Any]) -> JobSpec:
        """Read what to_stored() wrote, perhaps in another version: unknown keys are dropped, not refused."""
        return cls.model_validate(value, extra="ignore")
