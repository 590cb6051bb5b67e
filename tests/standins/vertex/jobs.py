"""Custom jobs: one state machine for both protocols.

    QUEUED (not enough quota left) -> PENDING -> RUNNING -> SUCCEEDED | FAILED
    any of these -> CANCELLING -> CANCELLED

It follows "Understand the serverless training service" (states, conditions of success, error messages), the API
reference of projects.locations.customJobs, and issues that quote responses: openreview-expertise#401 (missing capacity
fails the job), vertex-ai-samples#3479 (quota), vertex-ai-samples#1898 (a failed replica). Not implemented: restarts of
a container or job by the service (disableRetries must be true).
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gcp.project import Project
from ..gcp.service import RefusedError
from .checks import accelerator_of, check_job, market_of
from .containers import Container, containers_of
from .filters import read_filter

QUEUED, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLING, CANCELLED = 1, 2, 3, 4, 5, 6, 7
"""Values of JobState."""
ENDED = frozenset({SUCCEEDED, FAILED, CANCELLED})
NO_CAPACITY = "Resources are insufficient in region: {}. Try a different region or use a different accelerator."
OVER_QUOTA = "The following quota metrics exceed quota limits: {}"
INTERNAL = "Internal error occurred for the current attempt"
OK, CANCELLED_CODE, INVALID, EXHAUSTED, INTERNAL_CODE = 0, 1, 3, 8, 13
"""Values of google.rpc.Code."""
TIMEOUT_S = 7 * 86_400.0
"""Default timeout of a job in seconds."""
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL of a container; Kubernetes' default, not verified for Vertex AI."""
_PAGE = 100
_FLEX_WAIT_S = 86_400.0


@dataclass
class End:
    """End of a job, planned or final."""

    state: int
    code: int = OK
    message: str = ""
    grace_s: float = GRACE_S


@dataclass
class Job:
    """One custom job."""

    proto: Any
    """CustomJob (protobuf)."""
    region: str
    created: float
    """Monotonic time."""
    containers: list[Container] = field(default_factory=list)
    end: End | None = None
    """The decided end; the first decision is final."""
    ended: float | None = None
    """Monotonic time of its end; None: it has not ended."""
    placed: bool = False
    """True while it uses capacity."""
    trouble: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.proto.name.rpartition("/")[2])

    @property
    def replicas(self) -> int:
        return sum(pool.replica_count for pool in self.proto.job_spec.worker_pool_specs)

    @property
    def needs(self) -> dict[tuple[str, str, str], int]:
        """(machine type, region, market) -> number of machines."""
        found: dict[tuple[str, str, str], int] = {}
        for pool in self.proto.job_spec.worker_pool_specs:
            if pool.replica_count:
                key = (pool.machine_spec.machine_type, self.region, market_of(self.proto))
                found[key] = found.get(key, 0) + pool.replica_count
        return found

    @property
    def quota(self) -> dict[str, int]:
        """Quota needs by metric. Metrics are those named in errors; for CPUs only the number is not verified."""
        pre = "preemptible_" if market_of(self.proto) == "spot" else ""
        found: dict[str, int] = {}
        for pool in self.proto.job_spec.worker_pool_specs:
            machine = pool.machine_spec
            if accelerator := accelerator_of(machine):
                short = accelerator.lower().removeprefix("nvidia_tesla_").removeprefix("nvidia_")
                metric = f"aiplatform.googleapis.com/custom_model_training_{pre}nvidia_{short}_gpus"
                found[metric] = found.get(metric, 0) + machine.accelerator_count * pool.replica_count
            if pool.replica_count and (size := machine.machine_type.rpartition("-")[2]).isdecimal():
                metric = f"aiplatform.googleapis.com/custom_model_training_{pre}cpus"
                found[metric] = found.get(metric, 0) + int(size) * pool.replica_count
        return found


class CustomJobs:
    """Thread-safe store of the project's custom jobs."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._changed = threading.Condition(threading.RLock())
        # Random start, so that ids differ from those of other stand-ins on the computer: machines are identified by
        # name.
        self._ids = itertools.count(10**18 + secrets.randbelow(8 * 10**18), 7_919)
        self._jobs: dict[str, Job] = {}
        self._forget()

    def reset(self) -> None:
        """End and forget all jobs."""
        with self._changed:
            jobs = list(self._jobs.values())
            for job in jobs:
                self._decide(job, End(CANCELLED, CANCELLED_CODE, "the stand-in was reset", grace_s=0.0))
                for container in job.containers:
                    container.kill()
            while any(job.ended is None for job in jobs):
                self._changed.wait(1.0)
            self._forget()

    def _forget(self) -> None:
        with self._changed:
            self._jobs.clear()
            self._places: dict[tuple[str, str, str], int] = {}
            self._limits: dict[tuple[str, str], int] = {}
            self._withdrawn: set[tuple[str, str]] = set()
            self._pending_s = self._lag_s = 0.0

    # -- the API

    def create(self, project: str, region: str, proto: Any) -> Any:
        """Create a job from a CustomJob (protobuf); return it. Raises RefusedError."""
        check_job(proto)
        with self._changed:
            job = Job(self._made(proto, region), region, time.monotonic())
            for machine_type, _, _ in job.needs:
                if (machine_type, region) in self._withdrawn:
                    text = f'Machine type "{machine_type}" is not supported.'
                    raise RefusedError("INVALID_ARGUMENT", 400, text)
            over = [metric for metric, wanted in job.quota.items() if wanted > self._limit(region, metric)]
            if over:
                raise RefusedError("RESOURCE_EXHAUSTED", 429, OVER_QUOTA.format(",".join(sorted(over))))
            self._check_modelled(job)
            self._jobs[job.id] = job
            threading.Thread(target=self._live, args=(job,), daemon=True, name=job.id).start()
            return _copy(job.proto)

    def get(self, region: str, identity: str) -> Any:
        with self._changed:
            return _copy(self._job(region, identity).proto)

    def find(self, region: str, text: str, page_size: int, page_token: str) -> tuple[list[Any], str]:
        """Return one page of jobs, newest first, and the token of the next page."""
        test = read_filter(text)
        if not page_token.isdecimal() and page_token:
            raise RefusedError("INVALID_ARGUMENT", 400, "The page token is not valid.")
        if page_size < 0:
            raise RefusedError("INVALID_ARGUMENT", 400, "The page size must not be negative.")
        with self._changed:
            old = time.monotonic() - self._lag_s
            known = [job for job in self._jobs.values() if job.region == region and job.created <= old]
            found = [_copy(job.proto) for job in reversed(known) if test(job.proto)]
        begin, size = int(page_token or 0), min(page_size or _PAGE, _PAGE)
        return found[begin : begin + size], str(begin + size) if len(found) > begin + size else ""

    def cancel(self, region: str, identity: str) -> None:
        with self._changed:
            job = self._job(region, identity)
            if job.proto.state in ENDED:
                text = f"The CustomJob {job.proto.name} is in a terminal state and cannot be cancelled."
                raise RefusedError("FAILED_PRECONDITION", 400, text)
            if self._decide(job, End(CANCELLED, CANCELLED_CODE, "The job was cancelled.")):
                self._set_state(job, CANCELLING)

    def delete(self, region: str, identity: str) -> str:
        """Delete a job; return the name of its finished operation. A job that has not ended is refused (not
        verified)."""
        with self._changed:
            job = self._job(region, identity)
            if job.proto.state not in ENDED:
                text = f"The CustomJob {job.proto.name} is not in a terminal state and cannot be deleted: cancel it."
                raise RefusedError("FAILED_PRECONDITION", 400, text)
            del self._jobs[job.id]
            return f"{job.proto.name.rpartition('/customJobs/')[0]}/operations/{next(self._ids)}"

    # -- control verbs

    def set_capacity(self, machine_type: str, region: str, market: str, places: int | None) -> None:
        with self._changed:
            key = (machine_type, region, market)
            if places is None:
                self._places.pop(key, None)
            else:
                self._places[key] = places
            self._changed.notify_all()

    def set_quota(self, region: str, metric: str, limit: int) -> None:
        with self._changed:
            self._limits[region, metric] = limit
            self._changed.notify_all()

    def withdraw(self, machine_type: str, region: str) -> None:
        with self._changed:
            self._withdrawn.add((machine_type, region))

    def set_pending(self, seconds: float) -> None:
        """Set the pending time, also for jobs that are pending now."""
        with self._changed:
            self._pending_s = seconds
            self._changed.notify_all()

    def set_lag(self, seconds: float) -> None:
        self._lag_s = seconds

    def preempt(self, job: str, replica: str, seconds: float) -> None:
        """Send SIGTERM to one replica; after `seconds` it is killed, and the job fails, since retries are disabled."""
        with self._changed:
            running = self._jobs[job]
            hit = next(one for one in running.containers if one.replica == replica)
            hit.taken = True
        threading.Thread(target=self._take, args=(running, hit, seconds), daemon=True).start()

    def fail_inside(self, job: str) -> None:
        """Simulate an internal error of the service: the job ends at once."""
        with self._changed:
            self._decide(self._jobs[job], End(FAILED, INTERNAL_CODE, INTERNAL, grace_s=0.0))

    def finish(self, job: str, code: int) -> None:
        """End the job as if its primary replica had this exit code, for jobs whose containers do not run."""
        text = f"The replica workerpool0-0 exited with a non-zero status of {code}. Termination reason: Error."
        with self._changed:
            self._decide(self._jobs[job], End(FAILED, INVALID, text) if code else End(SUCCEEDED))

    def job_states(self) -> list[dict[str, Any]]:
        """Return all jobs except deleted ones, oldest first."""
        with self._changed:
            return [_told(job) for job in self._jobs.values()]

    # -- a job's life cycle, in a separate thread

    def _live(self, job: Job) -> None:
        try:
            if self._wait_for_quota(job) and self._wait_for_capacity(job):
                self._run(job)
        except Exception as error:  # noqa: BLE001 - a bug of the stand-in: the test finds it in `trouble`
            job.trouble.append(f"{type(error).__name__}: {error}")
            with self._changed:
                self._decide(job, End(FAILED, INTERNAL_CODE, INTERNAL))
        finally:
            self._stop(job)

    def _wait_for_quota(self, job: Job) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: job.end is not None or self._has_quota(job))
            if job.end is None:
                self._set_state(job, PENDING)
            return job.end is None

    def _wait_for_capacity(self, job: Job) -> bool:
        """Wait for capacity, which only a flex-start job does beyond the pending time; return whether there is any."""
        with self._changed:
            began = time.monotonic()
            while job.end is None and (left := began + self._pending_s - time.monotonic()) > 0:
                self._changed.wait(left)
            if job.end is None and market_of(job.proto) == "flex-start":
                scheduling = job.proto.job_spec.scheduling
                longest = scheduling.max_wait_duration.ToTimedelta().total_seconds()
                limit = longest if scheduling.HasField("max_wait_duration") else _FLEX_WAIT_S
                self._changed.wait_for(lambda: job.end is not None or self._has_places(job), limit or None)
            job.placed = job.end is None and self._has_places(job)
            if not job.placed:
                self._decide(job, End(FAILED, EXHAUSTED, NO_CAPACITY.format(job.region)))
            return job.placed

    def _run(self, job: Job) -> None:
        with self._changed:
            if self._project.boot:
                folder = self._folder(job)
                job.containers = containers_of(job.proto, self._project, folder, lambda: self._on_container_end(job))
                for container in job.containers:
                    container.start()
            if job.end is None:
                self._set_state(job, RUNNING)
                job.proto.start_time.GetCurrentTime()
            limit = job.proto.job_spec.scheduling.timeout.ToTimedelta().total_seconds() or TIMEOUT_S
            if not self._changed.wait_for(lambda: job.end is not None, limit):
                self._decide(job, End(CANCELLED, CANCELLED_CODE, "The job ran longer than its timeout."))
                self._set_state(job, CANCELLING)

    def _on_container_end(self, job: Job) -> None:
        """Decide the job's end after a container ended: it fails with the first failed replica, or succeeds with the
        primary one."""
        with self._changed:
            there = [one for one in job.containers if not one.taken]
            for container in there:
                if container.code:
                    text = f"The replica {container.replica} exited with a non-zero status of {container.code}."
                    self._decide(job, End(FAILED, INVALID, f"{text} Termination reason: Error."))
            if job.containers[0] in there and job.containers[0].code == 0:
                self._decide(job, End(SUCCEEDED))

    def _stop(self, job: Job) -> None:
        """Stop the containers, then end the job."""
        end = job.end or End(FAILED, INTERNAL_CODE, INTERNAL)
        stops = [threading.Thread(target=one.stop, args=(end.grace_s,), daemon=True) for one in job.containers]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        with self._changed:
            job.proto.end_time.GetCurrentTime()
            if end.state != SUCCEEDED:
                job.proto.error.code, job.proto.error.message = end.code, end.message
            job.ended = time.monotonic()
            self._set_state(job, end.state)

    def _take(self, job: Job, container: Container, seconds: float) -> None:
        container.stop(seconds)
        with self._changed:
            self._decide(job, End(FAILED, EXHAUSTED, NO_CAPACITY.format(job.region)))

    # -- helpers

    def _made(self, proto: Any, region: str) -> Any:
        """Return a new job for this request, with the output-only fields set by the service."""
        made = _copy(proto)
        for name in ("state", "create_time", "start_time", "end_time", "update_time", "error", "web_access_uris"):
            made.ClearField(name)
        made.name = f"projects/{self._project.number}/locations/{region}/customJobs/{next(self._ids)}"
        made.state = QUEUED
        made.create_time.GetCurrentTime()
        made.update_time.CopyFrom(made.create_time)
        return made

    def _check_modelled(self, job: Job) -> None:
        spec = job.proto.job_spec
        if not spec.scheduling.disable_retries:
            raise RefusedError("StandinNotImplemented", 501, "jobs without disableRetries are not modelled")
        for pool in spec.worker_pool_specs:
            if pool.HasField("python_package_spec") or (pool.replica_count and not pool.container_spec.command):
                text = "containers without a command, and Python packages, are not modelled"
                raise RefusedError("StandinNotImplemented", 501, text)

    def _job(self, region: str, identity: str) -> Job:
        job = self._jobs.get(identity)
        if job is None or job.region != region:
            raise RefusedError("NOT_FOUND", 404, f"The CustomJob {identity} does not exist in {region}.")
        return job

    def _decide(self, job: Job, end: End) -> bool:
        """Set the job's end; return False if it was decided before."""
        if job.end is not None or job.ended is not None:
            return False
        job.end = end
        self._changed.notify_all()
        return True

    def _set_state(self, job: Job, state: int) -> None:
        job.proto.state = state
        job.proto.update_time.GetCurrentTime()
        self._changed.notify_all()

    def _limit(self, region: str, metric: str) -> float:
        return self._limits.get((region, metric), float("inf"))

    def _has_quota(self, job: Job) -> bool:
        others = [one for one in self._jobs.values() if one is not job and one.proto.state in (PENDING, RUNNING)]
        return all(
            wanted + sum(one.quota.get(metric, 0) for one in others if one.region == job.region)
            <= self._limit(job.region, metric)
            for metric, wanted in job.quota.items()
        )

    def _has_places(self, job: Job) -> bool:
        others = [one for one in self._jobs.values() if one.placed and one.ended is None]
        return all(
            wanted + sum(one.needs.get(key, 0) for one in others) <= self._places.get(key, float("inf"))
            for key, wanted in job.needs.items()
        )

    def _folder(self, job: Job) -> Path:
        folder = self._project.folder / f"customjob-{job.id}"
        folder.mkdir()
        return folder


def _copy(proto: Any) -> Any:
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def _told(job: Job) -> dict[str, Any]:
    states = job.proto.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    return {
        "name": job.proto.name,
        "id": job.id,
        "region": job.region,
        "state": states[job.proto.state].name.removeprefix("JOB_STATE_"),
        "market": market_of(job.proto),
        "labels": dict(job.proto.labels),
        "error": job.proto.error.message,
        "replicas": job.replicas,
        "created": job.created,
        "ended": job.ended,
        "trouble": list(job.trouble),
        "containers": [one.told() for one in job.containers],
    }
