"""Convert `trainingInput` of AI Platform Training (its config.yaml), the predecessor of Vertex AI.

Files that the service would have refused are refused here too, with the position of each mistake. Hardware that is no
longer sold is replaced by the closest that is sold (successors.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Loc, quote
from . import ai_platform_rules as rules
from .conversion import Conversion, Fields, NoCounterpart, Reader, job_name
from .program import Program, leave_program_open, put_program, same_for_all
from .replica_groups import Group, put_groups, put_place
from .successors import replace_retired

if TYPE_CHECKING:
    import datetime

_GONE = "the service's runtime images are gone"
_OUTPUT = "the service wrote this field, it is not part of a job"

JOB: Fields = {
    "trainingInput": None,
    "jobId": None,
    "labels": NoCounterpart("labels are not taken over: write them as `labels:` of the job file"),
    "predictionInput": NoCounterpart("cloudgpu trains, it does not serve predictions", refuse=True),
    "trainingOutput": NoCounterpart(_OUTPUT),
    "predictionOutput": NoCounterpart(_OUTPUT),
    "createTime": NoCounterpart(_OUTPUT),
    "startTime": NoCounterpart(_OUTPUT),
    "endTime": NoCounterpart(_OUTPUT),
    "state": NoCounterpart(_OUTPUT),
    "errorMessage": NoCounterpart(_OUTPUT),
    "etag": NoCounterpart(_OUTPUT),
    "jobPosition": NoCounterpart(_OUTPUT),
}
TRAINING_INPUT: Fields = {
    **dict.fromkeys(("scaleTier", "region", "jobDir", "packageUris", "pythonModule", "args", "scheduling")),
    **dict.fromkeys(f"{prefix}{part}" for prefix in rules.PREFIXES for part in ("Type", "Config")),
    **dict.fromkeys(f"{prefix}Count" for prefix in rules.PREFIXES if prefix != "master"),
    "runtimeVersion": NoCounterpart(f"{_GONE}; set image: to a container with your framework"),
    "pythonVersion": NoCounterpart(f"{_GONE}; the Python is the one of image: or of the machine"),
    "useChiefInTfConfig": None,
    "hyperparameters": NoCounterpart("cloudgpu runs one training per job: submit one job for each trial", refuse=True),
    "encryptionConfig": NoCounterpart("cloudgpu cannot encrypt with your key yet", refuse=True),
    "network": NoCounterpart("the machines use the default network of the project"),
    "serviceAccount": NoCounterpart("the machines run under cloudgpu's own account"),
    "enableWebAccess": NoCounterpart("there is no web shell; `cloudgpu logs -f` follows the output"),
    "nasJobSpec": NoCounterpart("there is no architecture search", refuse=True),
}
SCHEDULING: Fields = {
    "maxRunningTime": None,
    "maxWaitTime": NoCounterpart("cloudgpu tries every offer of the plan instead of waiting in a queue"),
    "priority": NoCounterpart("Compute Engine and Vertex AI have no queue that honours a priority"),
}
REPLICA_CONFIG: Fields = {
    **dict.fromkeys(("acceleratorConfig", "imageUri", "containerCommand", "containerArgs", "diskConfig")),
    "tpuTfVersion": NoCounterpart("there are no TPUs"),
}
ACCELERATOR_CONFIG: Fields = {"count": None, "type": None}
DISK_CONFIG: Fields = {
    "bootDiskSizeGb": None,
    "bootDiskType": NoCounterpart("the disk type is chosen by the target"),
}

_NO_PROGRAM = (
    "add pythonModule: trainer.task (and packageUris), or masterConfig.imageUri; on the command line "
    "--module-name trainer.task --package-path trainer, or --master-image-uri IMAGE"
)


def convert(
    document: Mapping[str, Any],
    flags: Mapping[Loc, Loc] | None = None,
    *,
    package_path: str | None = None,
    today: datetime.date | None = None,
) -> Conversion:
    """Convert a config.yaml to a job file.

    flags         places of the document that were set on the command line, each with the flag to name in messages
    package_path  the folder of --package-path, for which the document has no field
    today         see Conversion
    """
    conversion = Conversion(today=today)
    conversion.note("AI Platform Training has ended: the job may run on Vertex AI or on Compute Engine")
    job = Reader(document, (), conversion, flags)
    job.check(JOB)
    source = job.child("trainingInput")
    source.check(TRAINING_INPUT)
    _put_name(conversion, job)
    region = source.text("region")
    if region is None:
        conversion.note("no region is named: every region may be chosen")
    else:
        rules.check_region_name(conversion, region, source.loc("region"))
    put_place(conversion, region, source.loc("region"))

    groups = _groups(conversion, source, region)
    rules.note_what_is_not_checked(conversion, source, groups, region)
    if groups:
        put_groups(conversion, [replace_retired(conversion, group, region) for group in groups])
        put_program(conversion, _program(conversion, source, groups, package_path), source.loc())
    else:
        leave_program_open(conversion, source.loc())
    job_dir = source.text("jobDir")
    if job_dir is not None:
        conversion.put(("job_dir",), job_dir, source.loc("jobDir"))
    _put_scheduling(conversion, source.child("scheduling"))
    if source.boolean("useChiefInTfConfig") is False:
        conversion.note("TF_CONFIG calls the first replica chief, as with useChiefInTfConfig: true")
    return conversion


def _put_name(conversion: Conversion, job: Reader) -> None:
    written = job.text("jobId")
    name = job_name(written, "training")
    conversion.put(("name",), name, job.loc("jobId") if written else ())
    if written and written != name:
        conversion.note(f"the name {quote(written)} becomes {quote(name)}: lower-case letters, digits and hyphens only")


def _put_scheduling(conversion: Conversion, scheduling: Reader) -> None:
    scheduling.check(SCHEDULING)
    seconds = scheduling.seconds("maxRunningTime")
    if seconds is not None:
        conversion.put(("limits", "duration"), f"{seconds}s", scheduling.loc("maxRunningTime"))
        conversion.note(
            "limits.duration counts from submit to end, waiting included; maxRunningTime counted running only"
        )


def _groups(conversion: Conversion, source: Reader, region: str | None) -> list[Group]:
    """Return the job's replica groups in rank order, and report violations of the service's rules.

    [] if the groups cannot be determined.
    """
    tier = rules.read_tier(conversion, source)
    if tier is None:
        return []
    groups = []
    for prefix, role in rules.PREFIXES.items():
        config = source.child(f"{prefix}Config")
        config.check(REPLICA_CONFIG)
        config.child("acceleratorConfig").check(ACCELERATOR_CONFIG)
        disk = config.child("diskConfig")
        disk.check(DISK_CONFIG)
        size = rules.read_size(conversion, source, prefix, tier)
        if size is None:
            continue
        nodes, machine = size
        accelerator_loc = (
            config.loc("acceleratorConfig") if "acceleratorConfig" in config else source.loc(f"{prefix}Type")
        )
        groups.append(
            Group(
                name=prefix,
                role=role,
                nodes=nodes,
                machine=machine,
                loc=source.loc(f"{prefix}Count"),
                machine_loc=source.loc(f"{prefix}Type"),
                accelerator_loc=accelerator_loc,
                image=config.text("imageUri"),
                image_loc=config.loc("imageUri"),
                command=tuple(config.texts("containerCommand")),
                args=tuple(config.texts("containerArgs")),
                disk_gb=disk.integer("bootDiskSizeGb", least=1),
                disk_loc=disk.loc("bootDiskSizeGb"),
            )
        )
        if machine.accelerator is not None and region is not None:
            rules.check_region(conversion, machine.accelerator, region, source.loc("region"))
    return groups


def _program(conversion: Conversion, source: Reader, groups: Sequence[Group], package_path: str | None) -> Program:
    programs = [Program(image=group.image, command=group.command, args=group.args) for group in groups]
    same_for_all(conversion, programs, source.loc("workerConfig"))
    args, args_loc = tuple(source.texts("args")), source.loc("args")
    commanded = next((group for group in groups if group.command), None)
    container_args = next((group for group in groups if group.args), None)
    if args and (container_args or commanded):
        name = "containerArgs" if container_args else "containerCommand"
        hint = "write the arguments of the command as containerArgs"
        conversion.error(args_loc, "exclusive-fields", f"args and {name} exclude each other", hint)
    if container_args is not None:
        args, args_loc = container_args.args, container_args.loc
    job_dir = source.text("jobDir")
    if job_dir is not None:  # the service appended it to the user's arguments
        args, args_loc = (*args, "--job-dir", job_dir), source.loc("jobDir")
    return Program(
        module=source.text("pythonModule"),
        module_loc=source.loc("pythonModule"),
        packages=tuple(source.texts("packageUris")),
        packages_loc=source.loc("packageUris"),
        package_path=package_path,
        package_path_loc=("--package-path",),
        image=groups[0].image,
        command=commanded.command if commanded else (),
        command_loc=source.loc("masterConfig"),
        args=args,
        args_loc=args_loc,
        hint=_NO_PROGRAM,
    )
