"""Pydantic models of the job file, which check types and bounds. jobspecs.rules checks whether names exist.

Users' files are validated strictly: extra keys are refused. Stored jobs are read leniently: `JobSpec.from_stored()`
drops keys of other versions, so that a running job survives an upgrade of cloudgpu.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticKnownError

from . import fields
from .diagnostics import MistakesError, Problem, mistake
from .fields import ROLES, CloudName, LauncherName, Market, RoleName
from .targets import CLOUDS
from .units import CountRange, DiskSize, Duration, GpuCount, MemoryRange, Money, NodeRange, Rate

__all__ = [
    "CLOUDS",
    "ROLES",
    "AcceleratorRequest",
    "CheckpointPolicy",
    "CloudName",
    "JobSpec",
    "LauncherName",
    "Limits",
    "Market",
    "Output",
    "Resources",
    "Retry",
    "Role",
    "RoleName",
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)


class AcceleratorRequest(_Model):
    """GPUs that a machine must have: by name (`L4`, `A100-80GB:8`, `RTX-PRO-6000:1/4`), or any with a memory size."""

    name: fields.AcceleratorName | None = Field(default=None, description="Name or alias, e.g. A100-80GB")
    memory: MemoryRange | None = Field(default=None, description="Instead of a name: any GPU with this memory")
    count: GpuCount = Field(
        default=CountRange(Fraction(1), Fraction(1)), description="GPUs per machine", json_schema_extra={"default": 1}
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> Any:  # whatever the user wrote
        if not isinstance(value, str | Mapping | AcceleratorRequest):
            raise mistake("wrong-type", "expected an accelerator such as L4:1, or none")
        if not isinstance(value, str):
            return value
        name, colon, count = value.strip().partition(":")
        if colon and name.strip().isdecimal() and not count.strip()[:1].isdecimal():
            raise mistake(
                "bad-accelerator", "expected the name before the count", f"write {count.strip()}:{name.strip()}"
            )
        return {"name": name.strip(), "count": count.strip()} if colon else {"name": name.strip()}

    @model_validator(mode="after")
    def _one_of(self) -> AcceleratorRequest:
        if (self.name is None) == (self.memory is None):
            raise mistake(
                "bad-accelerator",
                "expected either a name, as in L4:1, or a memory size",
                "write {memory: 24GB..} for any GPU with 24 GB or more",
            )
        if self.name is not None and self.name.lower() == "none":
            raise mistake("bad-accelerator", "`none` (the CPU is enough) stands alone", "write accelerator: none")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return a schema for a mapping, or the text NAME[:COUNT]."""
        mapping = {**handler.resolve_ref_schema(handler(core_schema))}
        del mapping["title"]
        text = {"type": "string", "minLength": 1, "maxLength": 80, "examples": ["L4", "A100-80GB:8", "H100:2..8"]}
        return {"anyOf": [text, mapping]}

    def __str__(self) -> str:
        return f"{self.name or f'any GPU with {self.memory}'}:{self.count}"


def _accelerators(value: object) -> Any:
    """Return a tuple of requests; `none` (the CPU is enough) is the empty tuple."""
    return () if value in ("none", ["none"]) else fields.one_or_more(value)


AcceleratorList = Annotated[
    tuple[AcceleratorRequest, ...],
    Field(max_length=32),
    BeforeValidator(
        _accelerators,
        json_schema_input_type=Literal["none"]
        | AcceleratorRequest
        | Annotated[list[AcceleratorRequest], Field(max_length=32)],
    ),
    AfterValidator(fields.each_once),
]


class Role(_Model):
    """Identical nodes with one task."""

    nodes: fields.NodeCount = Field(default=1, description="Identical machines; the chief is one")
    accelerator: AcceleratorList = Field(default=(), description="In order of preference; `none` for the CPU only")
    machine_type: fields.MachineTypeName | None = Field(
        default=None, description="The provider's name; omitted: chosen"
    )
    image: fields.ImageName | None = Field(default=None, description="Instead of the job's image")


class Resources(_Model):
    """Machines of the job: top-level fields describe the single role `worker`; a job with `roles:` omits them."""

    accelerator: AcceleratorList = Field(default=(), description="In order of preference; `none` for the CPU only")
    cloud: fields.Clouds | None = Field(default=None, description="One or a list; omitted: all that are set up")
    region: fields.Places | None = Field(default=None, description="One or a list; omitted: anywhere")
    zone: fields.Places | None = Field(default=None, description="One or a list; omitted: any zone of the region")
    machine_type: fields.MachineTypeName | None = Field(
        default=None, description="The provider's name; omitted: chosen"
    )
    market: fields.Markets = Field(
        default=("on-demand",),
        description="One or a list in order of preference",
        json_schema_extra={"default": "on-demand"},
    )
    nodes: fields.ElasticNodes = Field(
        default=NodeRange(1, 1),
        description="Identical machines; 2..4: begun with 4, and trained on as long as 2 are left",
        json_schema_extra={"default": 1},
    )
    disk: DiskSize = Field(default=100.0, description="Of each machine", json_schema_extra={"default": "100GB"})


class Output(_Model):
    """A file or folder of the program that is copied to outputs/; its path alone is short for `{path: …}`."""

    path: fields.FolderPath = Field(description="In the program's folder")
    required: bool = Field(default=False, description="true: the job fails if there is none when the program has ended")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> Any:  # whatever the user wrote
        if not isinstance(value, str | Mapping | Output):
            raise mistake("wrong-type", "expected a path, or {path: …, required: true}")
        return {"path": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _stored(self, serialize: SerializerFunctionWrapHandler) -> Any:  # JSON
        """Return the short form where it says all: earlier versions read only that."""
        return serialize(self) if self.required else self.path

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return a schema for a mapping, or the path alone."""
        mapping = {**handler.resolve_ref_schema(handler(core_schema))}
        del mapping["title"]
        return {"anyOf": [mapping["properties"]["path"], mapping]}

    def __str__(self) -> str:
        return self.path


Outputs = Annotated[tuple[Output, ...], *fields.list_of(Output), AfterValidator(fields.check_paths)]


class CheckpointPolicy(_Model):
    """Save interval, number of checkpoints to keep, and the reaction if all are damaged."""

    every: fields.SaveInterval = Field(default="auto", description="A duration; auto: as often as costs little")
    keep: fields.KeepCount = Field(default=3, description="Checkpoints kept; older ones are deleted")
    on_damage: fields.OnDamage = Field(
        default="stop", description="When every checkpoint is damaged: fail, or train from the beginning"
    )


class Retry(_Model):
    """Maximum number of restarts after interruptions and after failures of the program."""

    preemption: fields.PreemptionRetries = Field(
        default="unlimited", description="After the provider took a machine away"
    )
    failure: fields.RetryCount = Field(default=1, description="After the program failed")
    capacity: fields.CapacityPatience | None = Field(
        default=None, description="How long machines are looked for; omitted: a day, without limit on this machine"
    )


class Limits(_Model):
    """Limits on time, cost, price and idleness, at which the job ends."""

    duration: Duration | None = Field(default=None, description="From submit to end, all attempts")
    cost: Money | None = Field(default=None, description="All attempts together: checkpoint, then stop")
    price: Rate | None = Field(default=None, description="Of the whole job: every node of every role, disks included")
    gpu_idle: Duration | None = Field(default=None, description="Stop when no GPU did anything for so long")


def _on(cloud: str, where: str | Mapping[CloudName, str] | None) -> str | None:
    return where.get(cloud) if isinstance(where, Mapping) else where


class JobSpec(_Model):
    """Job file. See docs/reference/job-file.md for every field, and `cloudgpu schema` for the JSON Schema."""

    name: fields.Name = Field(
        description="Lower-case letters, digits and hyphens; begins with a letter", examples=["my-job"]
    )
    resources: Resources = Field(default=Resources.model_construct(), description="The machines, and where they may be")
    roles: dict[fields.RoleKey, Role] | None = Field(
        default=None, min_length=1, description="Instead of resources' accelerator, machine_type and nodes"
    )
    image: fields.ImageName | None = Field(default=None, description="Container image; omitted: the machine's")
    code: fields.FolderPath | None = Field(
        default=".", description="Folder to ship, relative to the job file; null ships nothing"
    )
    inputs: fields.Inputs = Field(
        default={},
        description="Path on the machine -> s3://, gs:// or az:// folder, or one for each cloud, fetched there before "
        "`setup`",
        examples=[{"data": "s3://bucket/digits"}],
    )
    outputs: Outputs | None = Field(
        default=None,
        description="Files and folders of the program, copied to the job dir's outputs/ when it has ended",
        examples=["results", [{"path": "model.pt", "required": True}]],
    )
    labels: fields.Labels = Field(
        default={},
        description="Keys and values of your own, by which commands choose jobs: `cloudgpu cancel --label KEY=VALUE`",
        examples=[{"team": "vision", "sweep": "7"}],
    )
    setup: fields.Command | None = Field(default=None, description="Runs once per machine before the program")
    run: fields.Command | None = Field(
        default=None,
        validate_default=True,
        description="A string is run by the shell, a list is executed as it is; omitted: the image's own entrypoint",
        examples=["python train.py"],
    )
    args: tuple[fields.Word, ...] = Field(
        default=(), max_length=10_000, description="Appended to `run` or the image's entrypoint, each as one word"
    )
    env: fields.EnvVars = Field(default={}, description="Environment variables of `setup` and `run`, as written")
    launcher: fields.Launcher = Field(default="auto", description="How the program is started on the machines' GPUs")
    job_dir: fields.JobDirs | None = Field(
        default=None,
        description="s3://, gs://, az://, file:// or a path, or one for each cloud; omitted: a folder of the user's "
        "data folder",
        examples=["s3://bucket/jobs", {"aws": "s3://bucket/jobs", "gcp": "gs://bucket/jobs"}],
    )
    checkpoint: CheckpointPolicy = Field(
        default=CheckpointPolicy.model_construct(), description="When to save, and what to keep"
    )
    priority: fields.Priority = Field(
        default=0, description="Among the jobs that wait in the target's queue: higher ones start first"
    )
    recover: fields.Recover = Field(
        default="supervisor",
        description="What replaces lost machines: the supervisor on this computer; fleet: a group of the job's own, in "
        "the cloud, whether this computer is on or not",
    )
    retry: Retry = Field(default=Retry.model_construct(), description="How often to start again")
    limits: Limits = Field(default=Limits.model_construct(), description="Where the job must end")

    @field_validator("run")
    @classmethod
    def _program_or_image(cls, value: object, info: ValidationInfo) -> Any:  # a Command or None
        """Require `run`, unless there is an image for every machine.

        If `image` or `roles` is invalid, and so absent from `info.data`, nothing is required.
        """
        if value is not None or not {"image", "roles"} <= info.data.keys():
            return value
        roles = info.data["roles"]
        if info.data["image"] is None and not (roles and all(role.image for role in roles.values())):
            raise PydanticKnownError("missing")
        return value

    @model_validator(mode="after")
    def _roles_fit(self) -> JobSpec:
        if self.roles is None:
            return self
        mistakes = [
            Problem(
                ("resources", key),
                "twice",
                f"`resources.{key}` and `roles` exclude each other",
                f"write {key} in each of the roles",
                in_key=True,
            )
            for key in ("accelerator", "machine_type", "nodes")
            if key in self.resources.model_fields_set
        ]
        if "chief" in self.roles and self.roles["chief"].nodes != 1:
            mistakes.append(Problem(("roles", "chief", "nodes"), "one-chief", "there is one chief", "write nodes: 1"))
        if mistakes:
            raise MistakesError(*mistakes)
        return self

    def effective_roles(self) -> dict[RoleName, Role]:
        """Return the roles in rank order; without `roles:`, a single role `worker` from the top-level fields."""
        if self.roles is not None:
            return {name: self.roles[name] for name in ROLES if name in self.roles}
        top = self.resources
        return {"worker": Role(nodes=top.nodes.most, accelerator=top.accelerator, machine_type=top.machine_type)}

    @property
    def least_nodes(self) -> int | None:
        """Number of machines with which the program can continue after losses; None: it needs all of them."""
        nodes = self.resources.nodes
        return nodes.least if self.roles is None and nodes.least < nodes.most else None

    def job_dir_on(self, cloud: str) -> str | None:
        """Return the job_dir for a cloud's machines, as written; None if there is none."""
        return _on(cloud, self.job_dir)

    def inputs_on(self, cloud: str) -> dict[str, str | None]:
        """Return path on the machine -> URL for a cloud; None if there is no URL for it."""
        return {path: _on(cloud, where) for path, where in self.inputs.items()}

    def to_stored(self) -> dict[str, Any]:
        """Return plain JSON values; `from_stored()` is the inverse."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_stored(cls, value: Mapping[str, object]) -> JobSpec:
        """Return a spec from the output of to_stored(); unknown keys, of another version, are dropped."""
        return cls.model_validate(value, extra="ignore")
