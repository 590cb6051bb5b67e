"""From a job file and its plan to a row for the store and a job dir that a machine can start from.

Everything that can be refused is refused before anything is written. The row is written last, by the caller: until then
there is no job, only an unused folder.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...jobspecs.plan import Offer
from ...jobspecs.targets import info
from ...protocol.jobdir import JOB_KEY, SCHEMES, JobDir, JobDirError, JobRecord, local_url, portable_url
from ...storage.stores import Buckets
from ...storage.urls import local_folder
from .. import paths
from ..errors import SubmitError
from ..store.model import JobRow, Policy
from . import submitter_environment
from .upload import Shipper

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec
    from ...jobspecs.models import CloudName, JobSpec
    from .upload import ProgressCallback

log = logging.getLogger("cloudgpu.submit")

CAPACITY_S = 86_400
"""How long machines are looked for, where the job file does not say. Shortages go with the hours of work, and a day has
them all; looking costs nothing, but nobody should be surprised by machines, and their bill, weeks later."""
MASK = "***"
"""Stands for the value of an environment variable in the store, which may be shared; job.json alone has them."""


def prepare(loaded: LoadedSpec, offers: list[Offer], on_progress: ProgressCallback) -> JobRow:
    """Ship the code and job.json for offers that are usable (submittable_offers.py); the row is not stored yet.

    A submit that fails leaves no folder of the job on this computer. Raises SubmitError, JobDirError, StoreError.
    """
    job_id = f"{loaded.spec.name}-{_random_suffix()}"
    urls = _job_dir_urls(loaded, list(dict.fromkeys(offer.cloud for offer in offers)), job_id)
    try:
        return _ship(loaded, offers, job_id, urls, on_progress)
    except BaseException:
        _remove_unused(urls.values())
        raise


def _ship(
    loaded: LoadedSpec, offers: list[Offer], job_id: str, urls: dict[str, str], on_progress: ProgressCallback
) -> JobRow:
    spec, url = loaded.spec, urls[offers[0].cloud]
    program = _program(spec)
    for other in set(urls.values()) - {url}:
        JobDir(other).list("code")  # that the bucket is there is better known now than when machines are
    bucket = _buckets(frozenset(os.environ.items())).of(url)
    try:
        shipper = Shipper(url, on_progress, bucket)
        code = None if spec.code is None else shipper.code(loaded.base / spec.code)
        agents = shipper.agents(offers)
        on_progress("submitting", 0, 0)
        record = _job_record(job_id, spec, program, code)
        if any(info(offer.cloud).is_here for offer in offers):
            record = dataclasses.replace(record, search_path=_search_path(), submitter_env=_submitter_env(spec))
        data = record.to_bytes()
        row = _row(job_id, spec, offers, urls, hashlib.sha256(data).hexdigest(), agents=agents)
        if not JobDir(url, bucket=bucket).create(JOB_KEY, data):
            raise SubmitError(f"{url} holds another job already")
    except JobDirError:
        if bucket is not None:
            bucket.reconnect()  # the next submit reads the credentials anew
        raise
    return row


def _remove_unused(urls: Iterable[str]) -> None:
    """Remove the local folders of a job that was not submitted; one with a job.json is another job's."""
    for folder in {local_folder(url) for url in urls}:
        if folder is not None and not (folder / JOB_KEY).exists():
            shutil.rmtree(folder, ignore_errors=True)


@functools.lru_cache(maxsize=1)
def _buckets(_environment: frozenset[tuple[str, str]]) -> Buckets:
    """Return the connections that all submits of this process share, for as long as its environment is the same."""
    return Buckets()


def owner_name() -> str:
    """Return the tag of everything that is made for the jobs of this store. Raises StoreError."""
    from ..store.store import open_store

    return open_store().owner()


def _accounts(offers: Iterable[Offer]) -> dict[str, str]:
    """Return cloud -> the account of this process's credentials, for each cloud where they are there and accepted."""
    from ...provisioners import get_provisioner
    from ...provisioners.base import ProvisionError

    found: dict[str, str] = {}
    for cloud in dict.fromkeys(offer.cloud for offer in offers):
        with suppress(ProvisionError):
            if account := get_provisioner(cloud).account():
                found[cloud] = account
    return found


def _program(spec: JobSpec) -> str | list[str]:
    """What the agent starts; it cannot start an image's own entrypoint yet. Raises SubmitError."""
    if spec.run is None:
        raise SubmitError("this version cannot start an image's own entrypoint: write `run:`")
    return spec.run if isinstance(spec.run, str) else list(spec.run)


def _random_suffix() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()


def _job_dir_urls(loaded: LoadedSpec, clouds: Sequence[str], job_id: str) -> dict[str, str]:
    """Cloud -> URL of this job's folder there; the same for all, if the job file names one only."""
    given = loaded.spec.job_dir
    if not isinstance(given, Mapping):
        return dict.fromkeys(clouds, _job_dir_url(loaded, given, job_id))
    return {cloud: _job_dir_url(loaded, loaded.spec.job_dir_on(cloud), job_id) for cloud in clouds}


def _job_dir_url(loaded: LoadedSpec, given: str | None, job_id: str) -> str:
    """URL of a folder of this job; a local one is made here, for its owner's eyes only: job.json holds `env`.

    Raises SubmitError.
    """
    if given is None:
        paths.state_dir()
        parent = paths.default_job_dir()
    elif (folder := local_folder(given)) is not None:
        parent = folder
        if not parent.is_absolute():  # another computer's, or a mistake
            raise SubmitError(f"job_dir: {given} is no folder of this computer: expected file:// and an absolute path")
    elif "://" in given:
        if given.partition("://")[0] not in SCHEMES:
            raise SubmitError(f"job_dir: {given} has an unknown scheme; expected {', '.join(SCHEMES)} or a path")
        return f"{portable_url(given).rstrip('/')}/{job_id}"
    else:
        parent = loaded.base / _expanded(given)
    return local_url(paths.make_private(parent.absolute() / job_id))


def _expanded(given: str) -> Path:
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        message = f"job_dir: {given}: whose folder `~` stands for is not known here: write the whole path"
        raise SubmitError(message) from error


def _search_path() -> str:
    """PATH as in the submitter's shell, not as in the one that happened to start the supervisor.

    `cloudgpu` may be run without its environment being activated; unless another one is, `python` is then its own.
    """
    path = os.environ.get("PATH", os.defpath)
    if os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
        return path
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


def _submitter_env(spec: JobSpec) -> dict[str, str]:
    """Return the variables of the submitter's shell for a job on this machine."""
    chosen, secret = submitter_environment.choose(os.environ)
    unset = [name for name in secret if name not in spec.env]
    if unset:
        log.warning(
            "%s: not passed on, for what seems to hold a secret is not stored with a job; name it in `env:` if the "
            "program needs it",
            ", ".join(unset),
        )
    return chosen


def _job_record(job_id: str, spec: JobSpec, program: str | list[str], code: str | None) -> JobRecord:
    return JobRecord(
        job_id=job_id,
        name=spec.name,
        run=program,
        args=list(spec.args),
        setup=spec.setup if spec.setup is None or isinstance(spec.setup, str) else list(spec.setup),
        env=dict(spec.env),
        launcher=spec.launcher,
        code=code,
        checkpoint_every=spec.checkpoint.every,
        checkpoint_keep=spec.checkpoint.keep,
        checkpoint_on_damage=spec.checkpoint.on_damage,
        inputs={path: _portable(where) for path, where in spec.inputs.items()},
        outputs=list(spec.outputs or ()),
        gpu_idle_s=spec.limits.gpu_idle,
        spec=spec.to_stored(),
    )


def _row(
    job_id: str, spec: JobSpec, offers: list[Offer], urls: dict[str, str], sha256: str, *, agents: dict[str, str]
) -> JobRow:
    now = time.time()
    retry, limits = spec.retry, spec.limits
    return JobRow(
        id=job_id,
        name=spec.name,
        state="queued",
        goal="run",
        cause="",
        reason="",
        exit_code=None,
        spec=_masked(spec.to_stored()),
        policy=Policy(
            preemptions=None if retry.preemption == "unlimited" else retry.preemption,
            failures=retry.failure,
            duration_s=limits.duration,
            cost_usd=limits.cost,
            gpu_idle_s=limits.gpu_idle,
            price_usd=limits.price,
            capacity_s=_capacity_s(retry.capacity, offers),
            least_nodes=spec.least_nodes,
            agents=agents,
            reads=sorted({url for url in spec.inputs.values() if isinstance(url, str)}),
            reads_on=_reads(spec, urls),
            images=_images(spec),
            priority=spec.priority,
            grouped=spec.recover == "fleet",
            job_dirs=urls if len(set(urls.values())) > 1 else {},
            accounts=_accounts(offers),
        ),
        offers=tuple(offers),
        job_dir=urls[offers[0].cloud],
        job_sha256=sha256,
        owner=owner_name(),
        attempt=0,
        round=0,
        waits=0,
        not_before=0.0,
        spent=Decimal(0),
        created=now,
        updated=now,
        ended=None,
        lease_owner=None,
        lease_beat=0,
    )


def _portable(where: str | Mapping[CloudName, str]) -> str | dict[str, str]:
    if isinstance(where, str):
        return portable_url(where)
    return {cloud: portable_url(url) for cloud, url in where.items()}


def _reads(spec: JobSpec, clouds: Iterable[str]) -> dict[str, list[str]]:
    """Return the inputs' URLs of each cloud; empty: they are the same for all."""
    if all(isinstance(where, str) for where in spec.inputs.values()):
        return {}
    return {cloud: sorted({url for url in spec.inputs_on(cloud).values() if url}) for cloud in clouds}


def _images(spec: JobSpec) -> dict[str, str]:
    """Of each role that has one, its own or the job's."""
    named = {name: role.image or spec.image for name, role in spec.effective_roles().items()}
    return {name: image for name, image in named.items() if image is not None}


def _capacity_s(asked: Literal["unlimited"] | int | None, offers: list[Offer]) -> int | None:
    """Jobs for this machine alone stand in a queue: unless their user says so, they do not leave it."""
    if asked is None:
        return None if all(info(offer.cloud).is_here for offer in offers) else CAPACITY_S
    return None if asked == "unlimited" else asked


def _masked(stored: dict[str, Any]) -> dict[str, Any]:
    return {**stored, "env": dict.fromkeys(stored["env"], MASK)} if stored.get("env") else stored
