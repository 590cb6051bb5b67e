"""Convert a Vertex AI custom job.

`workerPoolSpecs` is at the top (as for `gcloud ai custom-jobs create --config`) or under `jobSpec` (as in the API).
Field names may be in camelCase or snake_case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Loc, quote
from ..rules.accelerator_hints import meant_accelerators
from ..suggest import closest, one_of
from .conversion import Conversion, Fields, NoCounterpart, Reader, job_name
from .program import Program, leave_program_open, put_program, same_for_all
from .replica_groups import Group, Machine, put_groups, put_place
from .successors import replace_retired

if TYPE_CHECKING:
    import datetime

_OUTPUT = "the service writes this field, it is not part of a job"
_MOUNT = "cloudgpu mounts no file systems: read the data from object storage"

JOB: Fields = {
    "displayName": None,
    "jobSpec": None,
    "labels": NoCounterpart("labels are not taken over: write them as `labels:` of the job file"),
    "encryptionSpec": NoCounterpart("cloudgpu cannot encrypt with your key yet", refuse=True),
    **dict.fromkeys(
        (
            *("name", "state", "createTime", "startTime", "endTime", "updateTime", "error", "webAccessUris"),
            *("satisfiesPzs", "satisfiesPzi"),
        ),
        NoCounterpart(_OUTPUT),
    ),
}
CUSTOM_JOB_SPEC: Fields = {
    "workerPoolSpecs": None,
    "scheduling": None,
    "baseOutputDirectory": None,
    "serviceAccount": NoCounterpart("the machines run under cloudgpu's own account"),
    "network": NoCounterpart("the machines use the default network of the project"),
    "reservedIpRanges": NoCounterpart("the machines use the default network of the project"),
    "pscInterfaceConfig": NoCounterpart("the machines use the default network of the project"),
    "enableWebAccess": NoCounterpart("there is no web shell; `cloudgpu logs -f` follows the output"),
    "enableDashboardAccess": NoCounterpart("there is no dashboard; `cloudgpu status` shows the job"),
    "tensorboard": NoCounterpart("cloudgpu uploads nothing to Vertex AI TensorBoard"),
    "experiment": NoCounterpart("cloudgpu keeps no Vertex AI experiments"),
    "experimentRun": NoCounterpart("cloudgpu keeps no Vertex AI experiments"),
    "models": NoCounterpart("give the program the models' addresses by args: or env:", refuse=True),
    "persistentResourceId": NoCounterpart("cloudgpu starts machines of its own for every attempt"),
    "protectedArtifactLocationId": NoCounterpart("outputs cannot be kept in a protected location", refuse=True),
}
WORKER_POOL: Fields = {
    **dict.fromkeys(("machineSpec", "replicaCount", "diskSpec", "containerSpec", "pythonPackageSpec")),
    "nfsMounts": NoCounterpart(_MOUNT, refuse=True),
    "lustreMounts": NoCounterpart(_MOUNT, refuse=True),
}
MACHINE: Fields = {
    **dict.fromkeys(("machineType", "acceleratorType", "acceleratorCount", "reservationAffinity")),
    "tpuTopology": NoCounterpart("there are no TPUs in cloudgpu", refuse=True),
    "gpuPartitionSize": NoCounterpart("no target offers parts of these GPUs", refuse=True),
}
RESERVATION: Fields = {
    "reservationAffinityType": None,
    "key": NoCounterpart("the reservation is found by the target"),
    "values": NoCounterpart("the reservation is found by the target"),
}
DISK: Fields = {
    "bootDiskSizeGb": None,
    "bootDiskType": NoCounterpart("the disk type is chosen by the target"),
}
CONTAINER: Fields = dict.fromkeys(("imageUri", "command", "args", "env"))
PACKAGE: Fields = dict.fromkeys(("executorImageUri", "packageUris", "pythonModule", "args", "env"))
ENV: Fields = dict.fromkeys(("name", "value"))
SCHEDULING: Fields = {
    **dict.fromkeys(("timeout", "strategy", "disableRetries")),
    "restartJobOnWorkerRestart": NoCounterpart("an attempt that loses a machine is always started again as a whole"),
    "maxWaitDuration": NoCounterpart("cloudgpu tries every offer of the plan instead of waiting for one"),
}
BASE_OUTPUT: Fields = {"outputUriPrefix": None}

POOL_ROLES = ("chief", "worker", "parameter_server", "evaluator")
"""Role of a pool, by its index in workerPoolSpecs."""
MARKETS = {
    "STANDARD": "on-demand",
    "SPOT": "spot",
    "FLEX_START": "flex-start",
    # Former names of STANDARD and SPOT.
    "ON_DEMAND": "on-demand",
    "LOW_COST": "spot",
    "STRATEGY_UNSPECIFIED": "on-demand",
}
RESERVATIONS = {
    "NO_RESERVATION": [],
    "ANY_RESERVATION": ["reservation", "on-demand"],
    "SPECIFIC_RESERVATION": ["reservation"],
    "TYPE_UNSPECIFIED": [],
}
_NO_PROGRAM = "add containerSpec.imageUri, or pythonPackageSpec.pythonModule"


def convert(document: Mapping[str, Any], *, today: datetime.date | None = None) -> Conversion:
    """Convert a custom job to a job file; `today`: see Conversion."""
    conversion = Conversion(today=today)
    job = Reader(document, (), conversion)
    if "jobSpec" in job:
        job.check(JOB)
        spec = job.child("jobSpec")
        spec.check(CUSTOM_JOB_SPEC)
    else:
        job.check({**CUSTOM_JOB_SPEC, "displayName": None, "labels": JOB["labels"]})
        spec = job
    conversion.put(("name",), job_name(job.text("displayName"), "training"), job.loc("displayName"))
    put_place(conversion, None, ())
    conversion.note("a custom job does not say its region, every region may be chosen: set resources.region")

    pools = spec.children("workerPoolSpecs")
    groups = _groups(conversion, pools)
    if groups:
        put_groups(conversion, [replace_retired(conversion, group, None) for group in groups])
        _put_run(conversion, spec, pools)
    else:
        if not conversion.refused:
            conversion.error(spec.loc(), "no-machines", "workerPoolSpecs is empty", "describe at least the first pool")
        leave_program_open(conversion, spec.loc())
    _put_scheduling(conversion, spec.child("scheduling"), pools)
    _put_output(conversion, spec.child("baseOutputDirectory"))
    return conversion


def _groups(conversion: Conversion, pools: Sequence[Reader]) -> list[Group]:
    groups = []
    for index, pool in enumerate(pools):
        pool.check(WORKER_POOL)
        if pool.empty:
            continue
        if index >= len(POOL_ROLES):
            conversion.error(pool.loc(), "too-many-pools", "a custom job has at most 4 worker pools", "remove this one")
            break
        if _is_reduction_server(pool):
            conversion.note("the reduction server is left out: it only speeds up Vertex AI's own all-reduce")
            continue
        groups.append(_group(conversion, pool, POOL_ROLES[index]))
    if groups and groups[0].role != "chief":
        conversion.error(pools[0].loc(), "one-chief", "the first pool, the chief, is empty", "describe it")
    elif groups and groups[0].nodes != 1:
        message = f"the first pool is the chief: it has 1 replica, not {groups[0].nodes}"
        conversion.error(groups[0].loc, "one-chief", message, "move the others to the second pool")
    return groups


def _is_reduction_server(pool: Reader) -> bool:
    return "/reductionserver" in (pool.child("containerSpec").text("imageUri") or "")


def _group(conversion: Conversion, pool: Reader, role: str) -> Group:
    machine = pool.child("machineSpec")
    machine.check(MACHINE)
    machine.child("reservationAffinity").check(RESERVATION)
    disk = pool.child("diskSpec")
    disk.check(DISK)
    container, package = pool.child("containerSpec"), pool.child("pythonPackageSpec")
    container.check(CONTAINER)
    package.check(PACKAGE)
    image, image_loc = container.text("imageUri"), container.loc("imageUri")
    if image is None:
        image, image_loc = package.text("executorImageUri"), package.loc("executorImageUri")
    nodes = pool.integer("replicaCount", least=1)
    return Group(
        name=f"pool {POOL_ROLES.index(role)}",
        role=role,
        nodes=1 if nodes is None else nodes,
        machine=_machine(conversion, machine),
        loc=pool.loc("replicaCount"),
        machine_loc=machine.loc("machineType"),
        accelerator_loc=machine.loc("acceleratorType"),
        image=image,
        image_loc=image_loc,
        disk_gb=disk.integer("bootDiskSizeGb", least=1),
        disk_loc=disk.loc("bootDiskSizeGb"),
    )


def _machine(conversion: Conversion, machine: Reader) -> Machine:
    """Return the machine as written; report an unknown accelerator. The planner checks whether Vertex AI has it."""
    from .. import catalog

    machine_type = machine.text("machineType")
    if machine_type is None:
        conversion.error(machine.loc(), "missing-machine-type", "machineSpec needs a machineType", "add n1-standard-8")
    written, count = machine.text("acceleratorType"), machine.integer("acceleratorCount")
    if written is None or written == "ACCELERATOR_TYPE_UNSPECIFIED":
        if count:
            message = "acceleratorCount without acceleratorType"
            conversion.error(machine.loc("acceleratorCount"), "incomplete-accelerator", message, "add acceleratorType")
        return Machine(machine_type, None, 0)
    found = catalog.find_accelerator(written)
    if found is None:
        loc = machine.loc("acceleratorType")
        if written.upper().startswith("TPU"):
            conversion.error(loc, "no-tpu", f"{quote(written)}: there are no TPUs in cloudgpu", "choose a GPU")
            return Machine(machine_type, None, 0)
        near = _enum_names(meant_accelerators(written)) or closest(written, _enum_names())
        hint = f"did you mean {one_of(near)}?" if near else "for example NVIDIA_L4"
        conversion.error(loc, "unknown-accelerator", f"unknown accelerator {quote(written)}", hint)
        return Machine(machine_type, None, 0)
    return Machine(machine_type, found.name, count or 1)


def _enum_names(accelerators: Collection[str] | None = None) -> list[str]:
    """Return Vertex AI's names of the given accelerators (canonical names); None: of all."""
    from .. import catalog

    rows = [row for types in catalog.machine_types("vertex").values() for row in types]
    wanted = [row for row in rows if accelerators is None or row.accelerator in accelerators]
    return sorted({row.provider_accelerator for row in wanted if row.provider_accelerator})


def _put_run(conversion: Conversion, spec: Reader, pools: Sequence[Reader]) -> None:
    """Set the first pool's program for the job; report pools that differ."""
    programs = []
    for pool in pools:
        if pool.empty or _is_reduction_server(pool):
            continue
        container, package = pool.child("containerSpec"), pool.child("pythonPackageSpec")
        source = package if "pythonModule" in package else container
        programs.append(
            Program(
                module=package.text("pythonModule"),
                module_loc=package.loc("pythonModule"),
                packages=tuple(package.texts("packageUris")),
                packages_loc=package.loc("packageUris"),
                image=container.text("imageUri"),
                command=tuple(container.texts("command")),
                command_loc=container.loc("command"),
                args=tuple(source.texts("args")),
                args_loc=source.loc("args"),
                env=_env(conversion, source),
                env_loc=source.loc("env"),
                hint=_NO_PROGRAM,
            )
        )
    same_for_all(conversion, programs, spec.loc("workerPoolSpecs"))
    put_program(conversion, programs[0], programs[0].command_loc)


def _env(conversion: Conversion, source: Reader) -> tuple[tuple[str, str], ...]:
    pairs = []
    for variable in source.children("env"):
        variable.check(ENV)
        name = variable.text("name")
        if name is None:
            conversion.error(variable.loc(), "wrong-value", "an environment variable needs a name", "add name: X")
        else:
            pairs.append((name, variable.text("value") or ""))
    return tuple(pairs)


def _put_scheduling(conversion: Conversion, scheduling: Reader, pools: Sequence[Reader]) -> None:
    scheduling.check(SCHEDULING)
    seconds = scheduling.seconds("timeout")
    if seconds is not None:
        conversion.put(("limits", "duration"), f"{seconds}s", scheduling.loc("timeout"))
    if scheduling.boolean("disableRetries"):
        conversion.put(("retry", "failure"), 0, scheduling.loc("disableRetries"))
    market = _choice(conversion, scheduling, "strategy", MARKETS)
    if market is not None:
        conversion.put(("resources", "market"), market, scheduling.loc("strategy"))
    for pool in pools:
        affinity = pool.child("machineSpec").child("reservationAffinity")
        reserved = _choice(conversion, affinity, "reservationAffinityType", RESERVATIONS)
        if reserved:
            conversion.put(("resources", "market"), list(reserved), affinity.loc("reservationAffinityType"))


def _choice(conversion: Conversion, reader: Reader, name: str, choices: Mapping[str, object]) -> Any:
    """Return the entry of `choices` for a field's value; None if the field is absent. An unknown value is reported."""
    written = reader.text(name)
    if written is None:
        return None
    if written not in choices:
        near = closest(written, choices)
        hint = f"did you mean {one_of(near)}?" if near else f"one of {', '.join(choices)}"
        conversion.error(reader.loc(name), "wrong-value", f"{name}: unknown value {quote(written)}", hint)
    return choices.get(written)


def _put_output(conversion: Conversion, output: Reader) -> None:
    """Set the job dir to the output prefix, and the environment variables that Vertex AI derives from it."""
    output.check(BASE_OUTPUT)
    prefix = output.text("outputUriPrefix")
    if prefix is None:
        return
    origin: Loc = output.loc("outputUriPrefix")
    conversion.put(("job_dir",), prefix, origin)
    for name, folder in (("MODEL_DIR", "model"), ("CHECKPOINT_DIR", "checkpoints"), ("TENSORBOARD_LOG_DIR", "logs")):
        conversion.put(("env", f"AIP_{name}"), f"{prefix.rstrip('/')}/{folder}/", origin)
