"""Jobs in a separate store, driven tick by tick on a simulated clock."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from cloudgpu.control.store.model import Attempt, JobRow, Policy
from cloudgpu.control.store.states import JOB_END
from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.protocol.jobdir import JOB_KEY, Generation, GenerationKind, JobDir, JobRecord, local_url

from .cloud import FakeClock, StoringCloud


def make_offer(
    *,
    nodes: int = 1,
    gpus: int = 0,
    price: str | None = "3.6",
    region: str = "here",
    zone: str | None = None,
    **more: Any,
) -> Offer:
    """Return an offer of the local target, so that only place and price matter."""
    amount = None if price is None else Decimal(price)
    role = RoleOffer(
        role="worker",
        nodes=nodes,
        machine_type=more.pop("machine_type", "local"),
        accelerator="L4" if gpus else None,
        count=Fraction(gpus),
        vcpus=2,
        memory_gb=4.0,
        price=amount,
    )
    roles = more.pop("roles", (role,))
    return Offer("local", region, zone, more.pop("market", "on-demand"), roles, 10.0, Decimal(0), amount, "2026-01-01")


def make_policy(**changes: Any) -> Policy:
    policy = Policy(preemptions=None, failures=1, duration_s=None, cost_usd=None, gpu_idle_s=None)
    return dataclasses.replace(policy, **changes)


def make_job(job_id: str, url: str, offers: Iterable[Offer], *, now: float, **more: Any) -> JobRow:
    """Return a job row as `submit` creates it."""
    name = job_id.rpartition("-")[0] or job_id
    blank: dict[str, Any] = {
        "state": "queued",
        "goal": "run",
        "cause": "",
        "reason": "",
        "exit_code": None,
        "spec": {"name": name, "run": "true"},
        "policy": make_policy(),
        "job_sha256": "",
        "owner": "tester",
        "attempt": 0,
        "round": 0,
        "waits": 0,
        "not_before": 0.0,
        "spent": Decimal(0),
        "created": now,
        "updated": now,
        "ended": None,
        "lease_owner": None,
        "lease_beat": 0,
    }
    return JobRow(id=job_id, name=name, job_dir=url, offers=tuple(offers), **{**blank, **more})


def make_generation(number: int, kind: GenerationKind, *members: str, **more: Any) -> Generation:
    """Return a record of an in-place restart; `members`: the nodes from then on, default: unchanged."""
    blank: dict[str, Any] = {"node": "worker-0.1", "group": True, "reason": "", "pause_s": 0.0, "failures": 0}
    blank |= {"interruptions": 0, "time": 0.0, "nonce": "", "nodes": [{"node": name} for name in members] or None}
    return Generation(number, kind, **{**blank, **more})


def make_template(folder: Path) -> Path:
    """Create an empty store to copy, since a migration takes longer than most supervisor tests."""
    path = folder / "empty.db"
    Store.open(f"sqlite:///{path}").close()
    return path


class World:
    """A store, a parent folder of job dirs, a simulated clock and a fake cloud, which several supervisors can use in
    turn."""

    def __init__(self, folder: Path, template: Path, *, wrap: Callable[[str, Any], Any] = lambda _what, it: it) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, folder / "store.db")
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.store = Store.open(self.url)
        self.clock = FakeClock()
        self.cloud = StoringCloud(self.clock)
        self.wrap = wrap
        self._count = 0

    def submit(
        self,
        *offers: Offer,
        policy: Policy | None = None,
        name: str = "job",
        apart: bool = False,
        on_damage: str = "stop",
        job_dir: str = "",
        spec: dict[str, Any] | None = None,
    ) -> str:
        """Add a job to the store and write its job.json, as control.jobs.submit() does; return the job's id.

        apart: with a separate job dir for each of the offers' clouds
        job_dir: URL of the job's folder; "": a local one
        spec: in stored form; None: name and program only
        """
        self._count += 1
        job_id = f"{name}-{self._count:08d}"
        clouds = [offer.cloud for offer in offers] if apart else []
        job_dirs = {cloud: local_url(self.folder / cloud / job_id) for cloud in clouds}
        url = job_dir or (job_dirs[clouds[0]] if clouds else local_url(self.folder / "jobs" / job_id))
        record = JobRecord(job_id=job_id, name=name, run="true", checkpoint_on_damage=on_damage).to_bytes()
        JobDir(url).put(JOB_KEY, record)
        row = make_job(
            job_id,
            url,
            offers or (make_offer(),),
            now=self.clock.now(),
            policy=dataclasses.replace(policy or make_policy(), job_dirs=job_dirs),
            job_sha256=hashlib.sha256(record).hexdigest(),
            spec=spec or {"name": name, "run": "true"},
        )
        self.store.insert_job(row, "submitted")
        return job_id

    def supervisor(self, owner: str = "elsewhere/1/a") -> Supervisor:
        return Supervisor(
            self.wrap("store", self.store),
            clock=self.clock,
            provisioner=lambda _target: self.wrap("cloud", self.cloud),
            open_dir=lambda url: self.wrap("dir", JobDir(url)),
            owner=owner,
        )

    def job(self, job_id: str) -> JobRow:
        row = self.store.job(job_id)
        assert row is not None
        return row

    def attempts(self, job_id: str) -> list[Attempt]:
        return self.store.attempts(job_id)

    def drive(self, supervisor: Supervisor, *, until: Callable[[], bool] | None = None, for_s: float = 3_600.0) -> None:
        """Tick and advance the clock until `until` holds, by default until no job is active. Fails after `for_s`
        seconds."""
        end = self.clock.monotonic() + for_s
        while self.clock.monotonic() < end:
            tick = supervisor.tick()
            if until() if until is not None else not tick.active:
                return
            self.clock.advance(max(tick.wait_s, 0.01))
            self.cloud.live()
        raise AssertionError(f"still not there after {for_s:.0f} s: {self.store.active_jobs()}")

    def finish(self, *job_ids: str) -> None:
        """Run one supervisor until the jobs have ended; assert that no machine is left and no rank ran twice."""
        self.drive(self.supervisor(), until=lambda: all(self.job(job_id).state in JOB_END for job_id in job_ids))
        self.check_clean()

    def check_clean(self) -> None:
        assert self.cloud.running() == []
        assert self.cloud.violations == []
