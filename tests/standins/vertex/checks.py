"""Validation by CreateCustomJob.

It follows "Configure compute resources for training" (machines.csv), "Distributed training" (worker pools) and the API
reference of CustomJob. Texts marked `#NNNN` are quoted in issues of googleapis/python-aiplatform,
prefect-archive/prefect-gcp and GoogleCloudPlatform/vertex-ai-samples; the others are not verified.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..gcp.service import RefusedError

MARKETS = {"SPOT": "spot", "FLEX_START": "flex-start"}
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,64}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]+(/.*)?")
_POOLS = 4


@functools.cache
def machines() -> dict[str, dict[str, frozenset[int]]]:
    """Return machine type -> accelerator's name ("" for none) -> valid counts."""
    known: dict[str, dict[str, frozenset[int]]] = {}
    with (Path(__file__).parent / "machines.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for one in row["machine_types"].split("|"):
                known.setdefault(one, {})[row["accelerator"]] = frozenset(map(int, row["counts"].split()))
    return known


def accelerator_of(machine_spec: Any) -> str:
    """Return the accelerator's enum name; "": none."""
    name = machine_spec.DESCRIPTOR.fields_by_name["accelerator_type"].enum_type.values_by_number
    found = str(name[machine_spec.accelerator_type].name)
    return "" if found == "ACCELERATOR_TYPE_UNSPECIFIED" else found


def market_of(job: Any) -> str:
    """Return `on-demand`, `spot`, `flex-start` or `reservation`."""
    scheduling = job.job_spec.scheduling
    values = scheduling.DESCRIPTOR.fields_by_name["strategy"].enum_type.values_by_number
    market = MARKETS.get(values[scheduling.strategy].name, "on-demand")
    affinities = [pool.machine_spec.reservation_affinity for pool in job.job_spec.worker_pool_specs]
    specific = any(one.reservation_affinity_type in (2, 3) for one in affinities)  # ANY_, SPECIFIC_RESERVATION
    return "reservation" if specific and market == "on-demand" else market


def check_job(job: Any) -> None:
    """Raise RefusedError with all errors in a CustomJob (protobuf)."""
    if found := [*_job(job), *_pools(job.job_spec), *_scheduling(job)]:
        result = "\t".join(f"{number}.Field: {field}; Message: {text}" for number, (field, text) in enumerate(found, 1))
        raise RefusedError("INVALID_ARGUMENT", 400, f"List of found errors:\t{result}\t")  # prefect-gcp#175
    for pool in job.job_spec.worker_pool_specs:
        if pool.replica_count:
            _check_machine(pool.machine_spec)


def _job(job: Any) -> Iterator[tuple[str, str]]:
    if not job.display_name or len(job.display_name) > 128:
        yield "display_name", "The display name is required, and has at most 128 characters."
    if len(job.labels) > 64:
        yield "labels", "There are more than 64 labels."
    for key, value in job.labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield "labels", f"Label {key!r}: {value!r} is not valid."
    output = job.job_spec.base_output_directory.output_uri_prefix
    if job.job_spec.HasField("base_output_directory") and not _BUCKET.fullmatch(output):
        yield "job_spec.base_output_directory", f"{output!r} is no Cloud Storage location."


def _pools(spec: Any) -> Iterator[tuple[str, str]]:
    pools = list(spec.worker_pool_specs)
    here = "job_spec.worker_pool_specs"
    if not pools or len(pools) > _POOLS:
        yield here, f"There must be 1 to {_POOLS} worker pools."
    for index, pool in enumerate(pools):
        where = f"{here}[{index}]"
        if index == 0 and pool.replica_count != 1:
            yield f"{where}.replica_count", "The replica count of the first worker pool must be 1."
        if index and not pool.ByteSize():
            continue  # a skipped pool
        if pool.replica_count < 1:
            yield f"{where}.replica_count", "The replica count must be at least 1."
        yield from _pool(pool, where)


def _pool(pool: Any, where: str) -> Iterator[tuple[str, str]]:
    machine = pool.machine_spec
    if not machine.machine_type:
        yield f"{where}.machine_spec.machine_type", "The machine type is required."
    if bool(accelerator_of(machine)) != bool(machine.accelerator_count):
        text = "Both `accelerator_type` and `accelerator_count` should be specified or none."
        yield f"{where}.machine_spec.accelerator_type", text  # prefect-gcp#175
    if pool.HasField("container_spec"):
        if not pool.container_spec.image_uri:
            yield f"{where}.container_spec.image_uri", "The image URI is required."
        for variable in pool.container_spec.env:
            if not _ENV_NAME.fullmatch(variable.name):
                yield f"{where}.container_spec.env", f"{variable.name!r} is no name of a variable."
    elif not pool.HasField("python_package_spec"):
        yield where, "One of `container_spec` and `python_package_spec` is required."
    if pool.HasField("disk_spec") and not 100 <= (pool.disk_spec.boot_disk_size_gb or 100) <= 64_000:
        yield f"{where}.disk_spec.boot_disk_size_gb", "The size must be between 100 and 64000 GB."


def _scheduling(job: Any) -> Iterator[tuple[str, str]]:
    scheduling = job.job_spec.scheduling
    if scheduling.HasField("timeout") and scheduling.timeout.seconds <= 0:
        yield "job_spec.scheduling.timeout", "The timeout must be more than 0."
    if scheduling.HasField("max_wait_duration") and market_of(job) != "flex-start":
        yield "job_spec.scheduling.max_wait_duration", "It may be set with the strategy FLEX_START only."


def _check_machine(machine: Any) -> None:
    allowed = machines().get(machine.machine_type)
    if allowed is None:
        text = f'Machine type "{machine.machine_type}" is not supported.'
        raise RefusedError("INVALID_ARGUMENT", 400, text)
    accelerator = accelerator_of(machine)
    if accelerator not in allowed:
        text = f'Accelerator "{accelerator}" is not supported for machine type "{machine.machine_type}".'
        if not accelerator:
            text = f'Machine type "{machine.machine_type}" must have an accelerator.'
        raise RefusedError("INVALID_ARGUMENT", 400, text)  # vertex-ai-samples#213
    if accelerator and machine.accelerator_count not in allowed[accelerator]:
        text = (
            f"Accelerator count {machine.accelerator_count} is not supported for accelerator {accelerator} and machine"
            f' type "{machine.machine_type}".'
        )
        raise RefusedError("INVALID_ARGUMENT", 400, text)
