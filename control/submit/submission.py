"""Submission of a job: turns a job file and its plan into a row for the store and a job dir for the machines.

All checks precede the first write. The caller writes the row last: before that there is no job, only an unused
folder.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...jobspecs.plan import Offer
from ...jobspecs.secrets import from_submitter, is_reference
from ...jobspecs.targets import info
from ...protocol.jobdir import JOB_KEY, SCHEMES, JobDir, JobDirError, JobRecord, local_url, portable_url
from ...storage.stores import Buckets
from ...storage.urls import local_folder
from .. import paths
from ..errors import SourceError, SubmitError
from ..secrets.sources import absolute, files_of
from ..secrets.vault import this_computer
from ..store.model import JobRow, Policy
from . import submitter_environment
from .upload import Uploader

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec
    from ...jobspecs.models import CloudName, JobSpec
    from ...storage.buckets import Bucket
    from .origin import Origin
    from .upload import ProgressCallback

log = logging.getLogger("cloudgpu.submit")

CAPACITY_S = 86_400
"""Default seconds of each search for machines. Shortages vary with working hours, so a day covers all of them. A
search is free, but machines obtained weeks later would surprise the user with their cost."""
MASK = "***"
"""Replaces the values of environment variables in the store, which may be shared; only job.json has the values."""


def prepare(
    loaded: LoadedSpec, offers: list[Offer], on_progress: ProgressCallback, origin: Origin | None = None
) -> JobRow:
    """Upload the code and job.json for usable offers (submittable_offers.py). Returns a row that is not stored yet.

    `origin`: job from whose checkpoint it starts, which is copied. If it fails, the job's folders are removed.
    Raises SubmitError, JobDirError, StoreError.
    """
    job_id = f"{loaded.spec.name}-{_random_suffix()}"
    urls = _job_dir_urls(loaded, list(dict.fromkeys(offer.cloud for offer in offers)), job_id)
    try:
        return _ship(loaded, offers, job_id, urls, on_progress=on_progress, origin=origin)
    except BaseException:
        _remove_unused(urls.values())
        raise


def _ship(
    loaded: LoadedSpec,
    offers: list[Offer],
    job_id: str,
    urls: dict[str, str],
    *,
    on_progress: ProgressCallback,
    origin: Origin | None,
) -> JobRow:
    spec, url = loaded.spec, urls[offers[0].cloud]
    program = program_of(spec)
    for other in set(urls.values()) - {url}:
        JobDir(other).list("code")  # detect a missing bucket now, before machines run
    bucket = bucket_of(url)
    try:
        shipper = Uploader(url, on_progress, bucket)
        sources = submitted_sources(loaded)
        code = None if spec.code is None else shipper.code(loaded.base / spec.code, files_of(sources))
        agents = shipper.agents(offers)
        source = None if origin is None else origin.copy_to(JobDir(url, bucket=bucket), on_progress)
        on_progress("submitting", 0, 0)
        record = job_record(job_id, spec, program, code)
        if any(info(offer.cloud).is_here for offer in offers):
            record = dataclasses.replace(record, **from_this_shell(spec))
        if source is not None:
            record = dataclasses.replace(record, source=dataclasses.asdict(source))
        data = record.to_bytes()
        row = _row(job_id, spec, offers, urls, hashlib.sha256(data).hexdigest(), agents=agents, sources=sources)
        row = dataclasses.replace(row, source=source)
        if not JobDir(url, bucket=bucket).create(JOB_KEY, data):
            raise SubmitError(f"{url} holds another job already")
    except JobDirError:
        if bucket is not None:
            bucket.reconnect()  # the next submission reads the credentials again
        raise
    return row


def submitted_sources(loaded: LoadedSpec) -> dict[str, str]:
    """Return the secrets whose values only this computer can read, with absolute paths. Raises SubmitError."""
    try:
        return absolute(from_submitter(loaded.spec.secrets), loaded.base)
    except SourceError as error:
        raise SubmitError(str(error)) from error


def _remove_unused(urls: Iterable[str]) -> None:
    """Remove the folders of a failed submission; one with a job.json belongs to another job."""
    for url in set(urls):
        with suppress(JobDirError):  # the submission's own error is what is raised
            job_dir = JobDir(url, make=False)
            if not job_dir.exists(JOB_KEY):
                job_dir.delete_all(lambda _objects: None)


def bucket_of(url: str) -> Bucket | None:
    """Return the connections to the bucket of a job dir, shared by all submissions of this process; None: it is a local
    folder."""
    return _buckets(frozenset(os.environ.items())).of(url)


@functools.lru_cache(maxsize=1)
def _buckets(_environment: frozenset[tuple[str, str]]) -> Buckets:
    """Return the connections shared by all submissions of this process while its environment is unchanged."""
    return Buckets()


def owner_name() -> str:
    """Return the tag of all resources created for this store's jobs. Raises StoreError."""
    from ..store.store import open_store

    return open_store().owner()


def _accounts(offers: Iterable[Offer]) -> dict[str, str]:
    """Return cloud -> account of this process's credentials, without the clouds that refuse these credentials."""
    from ...provisioners import get_provisioner
    from ...provisioners.base import ProvisionError

    found: dict[str, str] = {}
    for cloud in dict.fromkeys(offer.cloud for offer in offers):
        with suppress(ProvisionError):
            if account := get_provisioner(cloud).account():
                found[cloud] = account
    return found


def program_of(spec: JobSpec) -> str | list[str]:
    """Return the command to start. Raises SubmitError for an image's own entrypoint (not supported yet)."""
    if spec.run is None:
        raise SubmitError("this version cannot start an image's own entrypoint: write `run:`")
    return spec.run if isinstance(spec.run, str) else list(spec.run)


def _random_suffix() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()


def _job_dir_urls(loaded: LoadedSpec, clouds: Sequence[str], job_id: str) -> dict[str, str]:
    """Return cloud -> URL of this job's folder there; equal for all clouds if the job file names a single job dir."""
    given = loaded.spec.job_dir
    if not isinstance(given, Mapping):
        return dict.fromkeys(clouds, job_dir_url(loaded, given, job_id))
    return {cloud: job_dir_url(loaded, loaded.spec.job_dir_on(cloud), job_id) for cloud in clouds}


def job_dir_url(loaded: LoadedSpec, given: str | None, job_id: str) -> str:
    """Return the URL of this job's folder. A local folder is created, readable only by its owner because job.json holds
    `env`.

    Raises SubmitError.
    """
    if given is None:
        paths.state_dir()
        parent = paths.default_job_dir()
    elif (folder := local_folder(given)) is not None:
        parent = folder
        if not parent.is_absolute():  # another computer's path, or a mistake
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


def from_this_shell(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of JobRecord with which a job on this machine runs as in the submitter's shell."""
    return {"search_path": _search_path(), "submitter_env": _submitter_env(spec)}


def _search_path() -> str:
    """Return PATH of the submitter's shell; the supervisor's may differ.

    If no virtual environment is active, the folder of cloudgpu's interpreter comes first, so that `python` is that
    of cloudgpu's environment.
    """
    path = os.environ.get("PATH", os.defpath)
    if os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
        return path
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


def _submitter_env(spec: JobSpec) -> dict[str, str]:
    """Return the variables of the submitter's shell for a job on this machine."""
    chosen, secret = submitter_environment.choose(os.environ)
    unset = [name for name in secret if name not in spec.env and name not in spec.secrets]
    if unset:
        log.warning(
            "%s: not passed on, for what seems to hold a secret is not stored with a job; name it in "
            "`secrets:` if the program needs it",
            ", ".join(unset),
        )
    return chosen


def job_record(job_id: str, spec: JobSpec, program: str | list[str], code: str | None) -> JobRecord:
    return JobRecord(
        job_id=job_id,
        name=spec.name,
        run=program,
        args=list(spec.args),
        setup=spec.setup if spec.setup is None or isinstance(spec.setup, str) else list(spec.setup),
        env=dict(spec.env),
        launcher=spec.launcher,
        secrets=dict(spec.secrets),
        code=code,
        checkpoint_every=spec.checkpoint.every,
        checkpoint_keep=spec.checkpoint.keep,
        checkpoint_on_damage=spec.checkpoint.on_damage,
        inputs={path: _portable(where) for path, where in spec.inputs.items()},
        outputs=[output.path for output in spec.outputs or ()],
        required_outputs=[output.path for output in spec.outputs or () if output.required],
        gpu_idle_s=spec.limits.gpu_idle,
        spec=spec.to_stored(),
    )


def _row(
    job_id: str,
    spec: JobSpec,
    offers: list[Offer],
    urls: dict[str, str],
    sha256: str,
    *,
    agents: dict[str, str],
    sources: dict[str, str],
) -> JobRow:
    now = time.time()
    return JobRow(
        id=job_id,
        name=spec.name,
        state="queued",
        goal="run",
        cause="",
        reason="",
        exit_code=None,
        spec=masked(spec.to_stored()),
        policy=policy_of(spec, offers, urls, agents, sources),
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


def policy_of(
    spec: JobSpec, offers: list[Offer], urls: dict[str, str], agents: dict[str, str], sources: dict[str, str]
) -> Policy:
    """Return the settings of a run.

    `urls`: cloud -> URL of the job's folder. `agents`: as in Policy. `sources`: as submitted_sources() returns them.
    """
    retry, limits = spec.retry, spec.limits
    return Policy(
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
        references=sorted({source for source in spec.secrets.values() if is_reference(source)}),
        images=_images(spec),
        priority=spec.priority,
        grouped=spec.recover == "fleet",
        job_dirs=urls if len(set(urls.values())) > 1 else {},
        secrets=sources,
        secrets_from=this_computer() if sources else "",
        secrets_pass=secrets.token_hex(16) if sources else "",
        accounts=_accounts(offers),
    )


def _portable(where: str | Mapping[CloudName, str]) -> str | dict[str, str]:
    if isinstance(where, str):
        return portable_url(where)
    return {cloud: portable_url(url) for cloud, url in where.items()}


def _reads(spec: JobSpec, clouds: Iterable[str]) -> dict[str, list[str]]:
    """Return cloud -> input URLs; empty: they are equal for all clouds."""
    if all(isinstance(where, str) for where in spec.inputs.values()):
        return {}
    return {cloud: sorted({url for url in spec.inputs_on(cloud).values() if url}) for cloud in clouds}


def _images(spec: JobSpec) -> dict[str, str]:
    """Return role -> image of the role, or else of the job; roles without an image are left out."""
    named = {name: role.image or spec.image for name, role in spec.effective_roles().items()}
    return {name: image for name, image in named.items() if image is not None}


def _capacity_s(asked: Literal["unlimited"] | int | None, offers: list[Offer]) -> int | None:
    """Return retry.capacity in seconds; None: without limit, which is the default for jobs that run only on this
    machine and wait in its queue."""
    if asked is None:
        return None if all(info(offer.cloud).is_here for offer in offers) else CAPACITY_S
    return None if asked == "unlimited" else asked


def masked(stored: dict[str, Any]) -> dict[str, Any]:
    return {**stored, "env": dict.fromkeys(stored["env"], MASK)} if stored.get("env") else stored
