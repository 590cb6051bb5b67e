"""The store: jobs, attempts and events in SQLite or PostgreSQL. The only module that speaks SQL (but for schema.py).

Every change is one transaction that compares what it was decided upon with what is there, and writes its event. A
change whose ground has shifted raises LostRaceError: read again and decide anew.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, Select, and_, bindparam, func, insert, or_, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..errors import ControlError, DamagedRowError, StoreError
from ..paths import database_url
from . import rows, states
from .model import QUEUES, Attempt, Event, JobRow, Refused, Seen, Waiting
from .schema import connect
from .tables import attempts, events, jobs, stores

log = logging.getLogger("cloudgpu.store")

_T = TypeVar("_T")


class LostRaceError(ControlError):
    """Another process changed the job since it was read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a job: what was read (`job`, `attempt`), what becomes of it, and the event that tells it."""

    job: JobRow
    kind: str
    message: str
    """Empty: no event is written; for what nobody needs to be told."""
    time: float
    attempt: Attempt | None = None
    to_job: JobRow | None = None
    """The job's row after the change; only the fields that differ are written. None: they stay."""
    to_attempt: Attempt | None = None
    """The same for the attempt."""
    new_attempt: Attempt | None = None


class ActiveJob(NamedTuple):
    """A job that has not ended."""

    id: str
    updated: float
    """Epoch seconds."""
    goal: str
    target: str
    """Of its newest attempt; "" before there is one."""


class Changes(NamedTuple):
    """Jobs that have new events."""

    last: int
    """Sequence number of the newest event seen."""
    active: list[ActiveJob]
    ended: list[str]
    """Ids."""


_IDS_PER_QUERY = 500
"""Databases limit the parameters of a query."""
_WAITING_STATES = ("queued", "recovering")
_NEWEST = and_(attempts.c.job_id == jobs.c.id, attempts.c.number == jobs.c.attempt)
_WITH_TARGET = select(jobs.c.id, jobs.c.updated, jobs.c.goal, jobs.c.ended, attempts.c.offer).outerjoin_from(
    jobs, attempts, _NEWEST
)


def _active(row: Mapping[str, Any]) -> ActiveJob:
    return ActiveJob(row["id"], row["updated"], row["goal"], rows.target(row["offer"]))


class Store:
    """Threads may share it, and processes the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # SQLite lets one write at a time, and lets the others look whether it is their turn: threads can queue instead.
        self._writing = threading.Lock()

    @classmethod
    def open(cls, url: str | None = None) -> Store:
        """Connect, creating or upgrading the tables as needed. Raises StoreError."""
        return cls(connect(url))

    def close(self) -> None:
        self._engine.dispose()

    # -- reading

    def owner(self) -> str:
        """Return the tag of everything that is made for this store's jobs: made with the store, and kept in it."""
        found = [str(row["owner"]) for row in self._read(select(stores))]
        return found[0]

    def job(self, job_id: str) -> JobRow | None:
        found = self._jobs(select(jobs).where(jobs.c.id == job_id))
        return found[0] if found else None

    def find_jobs(self, ref: str) -> list[JobRow]:
        """Those whose id begins with `ref`, or who are named so; newest first."""
        ref = rows.plain(ref)
        match = or_(func.substr(jobs.c.id, 1, len(ref)) == ref, jobs.c.name == ref)
        return self._jobs(select(jobs).where(match).order_by(jobs.c.created.desc(), jobs.c.id))

    def list_jobs(self, *, active_only: bool, limit: int | None = None) -> list[JobRow]:
        """Return jobs, newest first; limit=None: all of them."""
        query = select(jobs).order_by(jobs.c.created.desc(), jobs.c.id).limit(limit)
        found = self._read(query.where(jobs.c.ended.is_(None)) if active_only else query)
        return list(_undamaged(rows.decode_job, found))

    def count_jobs(self, *, active_only: bool) -> int:
        """Return the number of jobs, damaged rows included."""
        query = select(func.count().label("count")).select_from(jobs)
        found = list(self._read(query.where(jobs.c.ended.is_(None)) if active_only else query))
        return int(found[0]["count"])

    def active_jobs(self) -> list[ActiveJob]:
        """Return every job that has not ended, oldest first. Its cost grows with their number; see changes()."""
        found = self._read(_WITH_TARGET.where(jobs.c.ended.is_(None)).order_by(jobs.c.created, jobs.c.id))
        return [_active(row) for row in found]

    def has_active(self) -> bool:
        """Return whether any job has not ended."""
        return bool(list(self._read(select(jobs.c.id).where(jobs.c.ended.is_(None)).limit(1))))

    def last_event(self) -> int:
        """Return the sequence number of the newest event of any job; 0: there is none."""
        found = list(self._read(select(func.max(events.c.seq).label("seq"))))
        return found[0]["seq"] or 0

    def changes(self, after: int) -> Changes:
        """Return the jobs that have events newer than `after`, ended jobs included, by the index of events."""
        recent = list(self._read(select(events.c.seq, events.c.job_id).where(events.c.seq > after)))
        if not recent:
            return Changes(after, [], [])
        ids = sorted({row["job_id"] for row in recent})
        found = [
            row
            for at in range(0, len(ids), _IDS_PER_QUERY)
            for row in self._read(_WITH_TARGET.where(jobs.c.id.in_(ids[at : at + _IDS_PER_QUERY])))
        ]
        active = [_active(row) for row in found if row["ended"] is None]
        ended = [row["id"] for row in found if row["ended"] is not None]
        return Changes(max(row["seq"] for row in recent), active, ended)

    def current_attempts(self, of: Sequence[JobRow]) -> dict[str, Attempt]:
        """The newest attempt of each job that has one, in one query."""
        if not of:
            return {}
        query = select(attempts).join(jobs, _NEWEST).where(jobs.c.id.in_([job.id for job in of]))
        return {attempt.job_id: attempt for attempt in self._attempts(query)}

    def attempts(self, job_id: str) -> list[Attempt]:
        return self._attempts(select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.number))

    def attempts_of(self, job_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """Return the attempts of several jobs by number; jobs that have a damaged one are left out."""
        found: dict[str, list[Attempt]] = {job_id: [] for job_id in job_ids}
        for at in range(0, len(job_ids), _IDS_PER_QUERY):
            some = attempts.c.job_id.in_(job_ids[at : at + _IDS_PER_QUERY])
            for row in self._read(select(attempts).where(some).order_by(attempts.c.number)):
                if row["job_id"] not in found:
                    continue
                try:
                    found[row["job_id"]].append(rows.decode_attempt(row))
                except DamagedRowError:
                    del found[row["job_id"]]
        return found

    def dry_places(self, but: JobRow, since: float) -> list[Refused]:
        """Where the other jobs were refused for lack of capacity since then (epoch seconds); newest last."""
        theirs = and_(attempts.c.outcome == "refused", attempts.c.cause == "capacity", attempts.c.job_id != but.id)
        recent = or_(attempts.c.ended >= since, and_(attempts.c.ended.is_(None), attempts.c.created >= since))
        mine = and_(jobs.c.id == attempts.c.job_id, jobs.c.owner == but.owner)
        query = select(attempts).join(jobs, mine).where(theirs, recent).order_by(attempts.c.created)
        return [Refused.of(attempt) for attempt in _undamaged(rows.decode_attempt, self._read(query))]

    def waiting(self, before: float) -> list[Waiting]:
        """Return the jobs that wait for this machine, oldest first; not those whose next try is after
        `before`, in epoch seconds."""
        wanted = and_(jobs.c.ended.is_(None), jobs.c.goal == "run", jobs.c.state.in_(_WAITING_STATES))
        between = or_(attempts.c.state.is_(None), attempts.c.state.in_(("launching", "ended")))
        query = (
            select(jobs.c.id, jobs.c.offers, jobs.c.policy, attempts.c.state, attempts.c.offer)
            .outerjoin_from(jobs, attempts, _NEWEST)
            .where(wanted, between, jobs.c.not_before <= before)
            .order_by(jobs.c.created, jobs.c.id)
        )
        found = []
        for row in self._read(query):
            target, needs = rows.wanted(row["offer"] if row["state"] == "launching" else row["offers"])
            if target in QUEUES:
                found.append(Waiting(row["id"], needs, rows.priority(row["policy"])))
        return found

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        query = select(events).where(events.c.job_id == job_id, events.c.seq > after).order_by(events.c.seq)
        return [Event(**row) for row in self._read(query)]

    # -- writing

    def insert_job(self, job: JobRow, message: str) -> None:
        with self._transaction() as connection:
            connection.execute(insert(jobs).values(**rows.encode_row(job)))
            _add_event(connection, job.id, None, time=job.created, kind="submitted", message=message)

    def set_goal(self, job_id: str, goal: str, message: str, time: float) -> bool:
        """Say what the user wants; False if the job has ended or that is wanted already."""
        with self._transaction() as connection:
            wanted = and_(jobs.c.id == job_id, jobs.c.ended.is_(None), jobs.c.goal != goal)
            if connection.execute(update(jobs).where(wanted).values(goal=goal, updated=time)).rowcount != 1:
                return False
            _add_event(connection, job_id, None, time=time, kind="goal", message=message)
        return True

    def add_event(self, job: JobRow, kind: str, message: str, time: float) -> None:
        with self._transaction() as connection:
            _add_event(connection, job.id, job.attempt or None, time=time, kind=kind, message=message)

    def set_reason(self, job: JobRow, reason: str, lease_owner: str) -> None:
        """Write why the job is in its state, if that is as it was read and the lease is still `lease_owner`'s."""
        held = and_(jobs.c.id == job.id, jobs.c.lease_owner == lease_owner, jobs.c.reason == job.reason)
        with self._transaction() as connection:
            connection.execute(update(jobs).where(held).values(**rows.encode(reason=reason)))

    def apply(self, change: Change, lease_owner: str) -> None:
        """Write a step, if the job is as it was read and the lease is still `lease_owner`'s. Raises LostRaceError."""
        job, attempt = change.job, change.attempt
        to_job = change.to_job or job
        states.check_job(job.state, to_job.state)
        with self._transaction() as connection:
            same = and_(
                jobs.c.id == job.id,
                jobs.c.state == job.state,
                jobs.c.attempt == job.attempt,
                jobs.c.lease_owner == lease_owner,
            )
            values = {**rows.encode_changes(job, to_job), "updated": change.time}
            _expect_one(connection.execute(update(jobs).where(same).values(**values)).rowcount, job)
            if attempt is not None and change.to_attempt is not None:
                states.check_attempt(attempt.state, change.to_attempt.state)
                same = and_(
                    attempts.c.job_id == attempt.job_id,
                    attempts.c.number == attempt.number,
                    attempts.c.state == attempt.state,
                )
                values = {"state": attempt.state, **rows.encode_changes(attempt, change.to_attempt)}
                _expect_one(connection.execute(update(attempts).where(same).values(**values)).rowcount, job)
            if change.new_attempt is not None:
                connection.execute(insert(attempts).values(**rows.encode_row(change.new_attempt)))
            if change.message:
                number = to_job.attempt or None
                _add_event(connection, job.id, number, time=change.time, kind=change.kind, message=change.message)

    def write_seen(self, seen: Mapping[tuple[str, int], Seen]) -> None:
        """Write what was read of attempts, by job id and number, in one transaction; it is no change of the job."""
        of = and_(attempts.c.job_id == bindparam("of_job"), attempts.c.number == bindparam("of_number"))
        values = [{"of_job": job, "of_number": number, **rows.encode(seen=v)} for (job, number), v in seen.items()]
        with self._transaction() as connection:
            connection.execute(update(attempts).where(of).values(seen=bindparam("seen")), values)

    # -- leases (leases.py says when)

    def take_lease(self, job: JobRow, owner: str) -> bool:
        """Take or renew; False if somebody else moved since the row was read."""
        with self._transaction() as connection:
            same = and_(jobs.c.id == job.id, jobs.c.lease_beat == job.lease_beat, _same_owner(job.lease_owner))
            values = {"lease_owner": owner, "lease_beat": job.lease_beat + 1}
            return connection.execute(update(jobs).where(same).values(**values)).rowcount == 1

    def renew_leases(self, owner: str) -> list[str]:
        """Count up the beats of all active jobs that are the owner's; their ids."""
        held = and_(jobs.c.lease_owner == owner, jobs.c.ended.is_(None))
        with self._transaction() as connection:
            connection.execute(update(jobs).where(held).values(lease_beat=jobs.c.lease_beat + 1))
            return list(connection.execute(select(jobs.c.id).where(held)).scalars())

    def release_lease(self, job: JobRow, owner: str) -> None:
        """Release the lease of one job."""
        held = and_(jobs.c.id == job.id, jobs.c.lease_owner == owner)
        with self._transaction() as connection:
            connection.execute(update(jobs).where(held).values(lease_owner=None))

    def release_leases(self, owner: str, but: Collection[str] = ()) -> None:
        """Of all jobs `but` these."""
        held = and_(jobs.c.lease_owner == owner, jobs.c.id.not_in(but))
        with self._transaction() as connection:
            connection.execute(update(jobs).where(held).values(lease_owner=None))

    # -- helpers

    def _jobs(self, query: Select[Any]) -> list[JobRow]:
        return [rows.decode_job(row) for row in self._read(query)]

    def _attempts(self, query: Select[Any]) -> list[Attempt]:
        return [rows.decode_attempt(row) for row in self._read(query)]

    def _read(self, query: Select[Any]) -> Iterable[Mapping[str, Any]]:
        with self._told(), self._engine.begin() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """For writing."""
        with self._writing, self._told(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(f"the store {self._engine.url!r} failed: {_cause(error)}") from error


def _undamaged(decode: Callable[[Mapping[str, Any]], _T], found: Iterable[Mapping[str, Any]]) -> Iterator[_T]:
    """Yield the rows that can be read; of the others the reason is logged."""
    for row in found:
        try:
            yield decode(row)
        except DamagedRowError as error:
            log.warning("%s", error)


def _same_owner(owner: str | None) -> Any:  # an SQL expression
    return jobs.c.lease_owner.is_(None) if owner is None else jobs.c.lease_owner == owner


def _expect_one(rowcount: int, job: JobRow) -> None:
    if rowcount != 1:
        raise LostRaceError(f"{job.id} was changed by another process")


def _add_event(
    connection: Connection, job_id: str, attempt: int | None, *, time: float, kind: str, message: str
) -> None:
    values = rows.encode(job_id=job_id, attempt=attempt, time=time, kind=kind, message=message)
    connection.execute(insert(events).values(**values))


def _cause(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error)


def open_store() -> Store:
    """Return the store of this user's jobs. Raises StoreError."""
    return _open(database_url())


@functools.cache
def _open(url: str) -> Store:
    return Store.open(url)
