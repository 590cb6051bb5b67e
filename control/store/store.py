"""Store of jobs, attempts and events in SQLite or PostgreSQL. The only module with SQL on these tables.

Statements are valid for both databases; values are always passed as parameters.
Every change is one transaction: it compares the rows with those that the decision was based on, then writes the new
rows and an event. If the rows have changed meanwhile, it raises LostRaceError, and the caller must read them and
decide again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..errors import ControlError, DamagedRowError
from ..paths import database_url
from . import serialization, states
from .database import Connection, Database, Values
from .model import QUEUES, Attempt, Event, JobRow, Observation, Refused, Waiting
from .schema import connect

log = logging.getLogger("cloudgpu.store")

_T = TypeVar("_T")


class LostRaceError(ControlError):
    """Another process changed the job since it was read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a job: the rows that were read (`job`, `attempt`), the new rows, and the event."""

    job: JobRow
    kind: str
    message: str
    """Message of the event; "": no event is written."""
    time: float
    attempt: Attempt | None = None
    to_job: JobRow | None = None
    """The job's row after the change; only the fields that differ are written. None: unchanged."""
    to_attempt: Attempt | None = None
    """The attempt's row after the change; None: unchanged."""
    new_attempt: Attempt | None = None


class ActiveJob(NamedTuple):
    """A job that has not ended."""

    id: str
    updated: float
    """Epoch seconds."""
    goal: str
    target: str
    """Cloud of the job's newest attempt; "": it has no attempt."""


class Changes(NamedTuple):
    """Jobs that have new events."""

    last: int
    """Sequence number of the newest event in this result."""
    active: list[ActiveJob]
    ended: list[str]
    """Ids of jobs that have ended."""


_IDS_PER_QUERY = 500
"""Maximum number of ids per query, because databases limit the number of parameters."""
_NEWEST = "attempts.job_id = jobs.id AND attempts.number = jobs.attempt"
_WITH_TARGET = (
    f"SELECT jobs.id, jobs.updated, jobs.goal, jobs.ended, attempts.offer FROM jobs LEFT JOIN attempts ON {_NEWEST}"
)
_NEWEST_FIRST = "ORDER BY jobs.created DESC, jobs.id"
_OLDEST_FIRST = "ORDER BY jobs.created, jobs.id"


def _active(row: Mapping[str, Any]) -> ActiveJob:
    return ActiveJob(row["id"], row["updated"], row["goal"], serialization.target(row["offer"]))


class Store:
    """Store of jobs. Threads may share an instance, and processes may share its database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # SQLite allows one writer at a time, and the others poll for their turn; with this lock, threads wait.
        self._writing = threading.Lock()

    @classmethod
    def open(cls, url: str | None = None) -> Store:
        """Connect, creating or upgrading the tables if necessary. Raises StoreError."""
        return cls(connect(url))

    def close(self) -> None:
        self._database.close()

    # -- reading

    def owner(self) -> str:
        """Return the tag of all resources created for this store's jobs, which is kept in the store."""
        found = self._read("SELECT owner FROM stores")
        return str(found[0]["owner"])

    def job(self, job_id: str) -> JobRow | None:
        found = self._jobs("WHERE jobs.id = :id", id=job_id)
        return found[0] if found else None

    def find_jobs(self, ref: str) -> list[JobRow]:
        """Return the jobs whose id starts with `ref` or whose name it is, newest first."""
        ref = serialization.escape(ref)
        where = "WHERE substr(jobs.id, 1, :length) = :ref OR jobs.name = :ref"
        return self._jobs(f"{where} {_NEWEST_FIRST}", ref=ref, length=len(ref))

    def list_jobs(self, *, active_only: bool, limit: int | None = None) -> list[JobRow]:
        """Return jobs, newest first. limit: maximum number of jobs; None: all."""
        query = f"SELECT * FROM jobs {_active_if(active_only)} {_NEWEST_FIRST}"
        found = self._read(query) if limit is None else self._read(f"{query} LIMIT :limit", limit=limit)
        return list(_undamaged(serialization.decode_job, found))

    def count_jobs(self, *, active_only: bool) -> int:
        """Return the number of jobs, damaged rows included."""
        return int(self._read(f"SELECT count(*) AS count FROM jobs {_active_if(active_only)}")[0]["count"])

    def active_jobs(self) -> list[ActiveJob]:
        """Return every job that has not ended, oldest first; changes() is the incremental query."""
        return [_active(row) for row in self._read(f"{_WITH_TARGET} WHERE jobs.ended IS NULL {_OLDEST_FIRST}")]

    def has_active(self) -> bool:
        """Return whether any job has not ended."""
        return bool(self._read("SELECT id FROM jobs WHERE ended IS NULL LIMIT 1"))

    def last_event(self) -> int:
        """Return the sequence number of the newest event of any job; 0: there is none."""
        return self._read("SELECT max(seq) AS seq FROM events")[0]["seq"] or 0

    def changes(self, after: int) -> Changes:
        """Return the jobs that have events newer than `after`, ended jobs included. Uses the index of events."""
        recent = self._read("SELECT seq, job_id FROM events WHERE seq > :after", after=after)
        if not recent:
            return Changes(after, [], [])
        ids = sorted({row["job_id"] for row in recent})
        found = [
            row
            for at in range(0, len(ids), _IDS_PER_QUERY)
            for row in self._read_for(ids[at : at + _IDS_PER_QUERY], f"{_WITH_TARGET} WHERE jobs.id IN (:ids)")
        ]
        active = [_active(row) for row in found if row["ended"] is None]
        ended = [row["id"] for row in found if row["ended"] is not None]
        return Changes(max(row["seq"] for row in recent), active, ended)

    def current_attempts(self, of: Sequence[JobRow]) -> dict[str, Attempt]:
        """Return the newest attempt of each job that has one, in one query."""
        if not of:
            return {}
        query = f"SELECT attempts.* FROM attempts JOIN jobs ON {_NEWEST} WHERE jobs.id IN (:ids)"
        found = map(serialization.decode_attempt, self._read_for([job.id for job in of], query))
        return {attempt.job_id: attempt for attempt in found}

    def attempts(self, job_id: str) -> list[Attempt]:
        found = self._read("SELECT * FROM attempts WHERE job_id = :job_id ORDER BY number", job_id=job_id)
        return [serialization.decode_attempt(row) for row in found]

    def attempts_of(self, job_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """Return job id -> attempts by number. Jobs with a damaged attempt are left out."""
        found: dict[str, list[Attempt]] = {job_id: [] for job_id in job_ids}
        for at in range(0, len(job_ids), _IDS_PER_QUERY):
            query = "SELECT * FROM attempts WHERE job_id IN (:ids) ORDER BY number"
            for row in self._read_for(job_ids[at : at + _IDS_PER_QUERY], query):
                if row["job_id"] not in found:
                    continue
                try:
                    found[row["job_id"]].append(serialization.decode_attempt(row))
                except DamagedRowError:
                    del found[row["job_id"]]
        return found

    def capacity_refusals(self, but: JobRow, since: float) -> list[Refused]:
        """Return the capacity refusals of all jobs except `but` since a time (epoch seconds), newest last."""
        query = """
            SELECT attempts.* FROM attempts JOIN jobs ON jobs.id = attempts.job_id AND jobs.owner = :owner
            WHERE attempts.outcome = 'refused' AND attempts.cause = 'capacity' AND attempts.job_id != :but
                AND (attempts.ended >= :since OR attempts.ended IS NULL AND attempts.created >= :since)
            ORDER BY attempts.created"""
        found = self._read(query, owner=but.owner, but=but.id, since=since)
        return [Refused.of(attempt) for attempt in _undamaged(serialization.decode_attempt, found)]

    def waiting(self, before: float) -> list[Waiting]:
        """Return the jobs that wait for this machine and are due by `before` (epoch seconds), oldest first."""
        query = f"""
            SELECT jobs.id, jobs.offers, jobs.policy, attempts.state, attempts.offer
            FROM jobs LEFT JOIN attempts ON {_NEWEST}
            WHERE jobs.ended IS NULL AND jobs.goal = 'run' AND jobs.state IN ('queued', 'recovering')
                AND (attempts.state IS NULL OR attempts.state IN ('launching', 'ended')) AND jobs.not_before <= :before
            {_OLDEST_FIRST}"""
        found = []
        for row in self._read(query, before=before):
            target, needs = serialization.needs_of(row["offer"] if row["state"] == "launching" else row["offers"])
            if target in QUEUES:
                found.append(Waiting(row["id"], needs, serialization.priority(row["policy"])))
        return found

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        query = "SELECT * FROM events WHERE job_id = :job_id AND seq > :after ORDER BY seq"
        return [Event(**row) for row in self._read(query, job_id=job_id, after=after)]

    # -- writing

    def insert_job(self, job: JobRow, message: str) -> None:
        with self._transaction() as connection:
            insert(connection, "jobs", serialization.encode_row(job))
            _add_event(connection, job.id, None, time=job.created, kind="submitted", message=message)

    def resume_job(self, ended: JobRow, resumed: JobRow, message: str) -> None:
        """Begin a further run of an ended job. Raises LostRaceError if it has been resumed since it was read.

        The lease is released: no supervisor advances an ended job.
        """
        states.check_resumption(ended.state, resumed.state)
        same = f"id = :of AND ended IS NOT NULL AND {_AS_READ}"
        values = {**serialization.encode_changes(ended, resumed), "lease_owner": None}
        with self._transaction() as connection:
            _expect_one(_update(connection, "jobs", values, same, of=ended.id, **_as_read(ended)), ended)
            _add_event(connection, ended.id, None, time=resumed.updated, kind="resumed", message=message)

    def set_goal(self, job_id: str, goal: str, message: str, time: float) -> bool:
        """Set the job's goal ("run" or "cancel"); return False if it has ended or has that goal already."""
        with self._transaction() as connection:
            values = {"goal": goal, "updated": time}
            if _update(connection, "jobs", values, "id = :of AND ended IS NULL AND goal != :goal", of=job_id) != 1:
                return False
            _add_event(connection, job_id, None, time=time, kind="goal", message=message)
        return True

    def add_event(self, job: JobRow, kind: str, message: str, time: float) -> None:
        with self._transaction() as connection:
            _add_event(connection, job.id, job.attempt or None, time=time, kind=kind, message=message)

    def set_reason(self, job: JobRow, reason: str, lease_owner: str) -> None:
        """Write the reason for the job's state if its stored reason is unchanged and `lease_owner` has the lease."""
        held = "id = :of AND lease_owner = :held_by AND reason = :read"
        with self._transaction() as connection:
            values = serialization.encode(reason=reason)
            _update(connection, "jobs", values, held, of=job.id, held_by=lease_owner, read=job.reason)

    def apply(self, change: Change, lease_owner: str) -> None:
        """Write a change and its event. Raises LostRaceError if the job has changed or `lease_owner` lost the lease."""
        job, attempt = change.job, change.attempt
        to_job = change.to_job or job
        states.check_job(job.state, to_job.state)
        with self._transaction() as connection:
            same = "id = :of AND state = :read_state AND attempt = :read_attempt AND lease_owner = :held_by"
            read = {"of": job.id, "read_state": job.state, "read_attempt": job.attempt, "held_by": lease_owner}
            values = {**serialization.encode_changes(job, to_job), "updated": change.time}
            _expect_one(_update(connection, "jobs", values, same, **read), job)
            if attempt is not None and change.to_attempt is not None:
                states.check_attempt(attempt.state, change.to_attempt.state)
                same = "job_id = :of AND number = :of_number AND state = :read_state"
                read = {"of": attempt.job_id, "of_number": attempt.number, "read_state": attempt.state}
                values = {"state": attempt.state, **serialization.encode_changes(attempt, change.to_attempt)}
                _expect_one(_update(connection, "attempts", values, same, **read), job)
            if change.new_attempt is not None:
                insert(connection, "attempts", serialization.encode_row(change.new_attempt))
            if change.message:
                number = to_job.attempt or None
                _add_event(connection, job.id, number, time=change.time, kind=change.kind, message=change.message)

    def write_seen(self, seen: Mapping[tuple[str, int], Observation]) -> None:
        """Write (job id, attempt number) -> observation in one transaction, without events or a check of the lease."""
        of = "job_id = :of AND number = :of_number"
        with self._transaction() as connection:
            for (job_id, number), one in seen.items():
                _update(connection, "attempts", serialization.encode(seen=one), of, of=job_id, of_number=number)

    def claim_removal(self, job: JobRow, time: float) -> bool:
        """Set the goal of an ended job to "remove", so that no command begins anything new with it; return False if it
        does not exist, or has been resumed since it was read. True again for a job whose removal was interrupted."""
        same = f"id = :of AND ended IS NOT NULL AND (goal IN ('remove', 'removed') OR {_AS_READ})"
        with self._transaction() as connection:
            values = {"goal": "remove", "updated": time}
            if _update(connection, "jobs", values, same, of=job.id, **_as_read(job)) != 1:
                return False
            _add_event(connection, job.id, None, time=time, kind="removing", message="its files are being deleted")
        return True

    def finish_removal(self, job_id: str, time: float) -> None:
        """Record that the files of a job are deleted; the job stays in the store."""
        with self._transaction() as connection:
            values = {"goal": "removed", "updated": time}
            if _update(connection, "jobs", values, "id = :of AND goal = 'remove'", of=job_id):
                _add_event(connection, job_id, None, time=time, kind="removed", message="its files are deleted")

    def delete_job(self, job_id: str) -> None:
        """Delete a job whose removal was claimed, with its attempts and events. No-op for any other job."""
        claimed = "SELECT id FROM jobs WHERE id = :of AND goal = 'remove' AND ended IS NOT NULL"
        with self._transaction() as connection:
            if connection.rows(claimed, {"of": job_id}):
                for table, column in (("events", "job_id"), ("attempts", "job_id"), ("jobs", "id")):
                    connection.execute(f"DELETE FROM {table} WHERE {column} = :of", {"of": job_id})

    # -- leases (see supervisor/leases.py)

    def take_lease(self, job: JobRow, owner: str) -> bool:
        """Take or renew the lease; return False if another process was faster since the row was read."""
        held = "lease_owner IS NULL" if job.lease_owner is None else "lease_owner = :held_by"
        read = {"of": job.id, "read_beat": job.lease_beat, "held_by": job.lease_owner}
        values = {"lease_owner": owner, "lease_beat": job.lease_beat + 1}
        with self._transaction() as connection:
            return _update(connection, "jobs", values, f"id = :of AND lease_beat = :read_beat AND {held}", **read) == 1

    def renew_leases(self, owner: str) -> list[str]:
        """Increment the heartbeat of the owner's leases on all active jobs; return the ids of these jobs."""
        held, values = "WHERE lease_owner = :owner AND ended IS NULL", {"owner": owner}
        with self._transaction() as connection:
            connection.execute(f"UPDATE jobs SET lease_beat = lease_beat + 1 {held}", values)
            return [row["id"] for row in connection.rows(f"SELECT id FROM jobs {held}", values)]

    def release_lease(self, job: JobRow, owner: str) -> None:
        """Release the lease of one job."""
        with self._transaction() as connection:
            _update(connection, "jobs", _NO_LEASE, "id = :of AND lease_owner = :held_by", of=job.id, held_by=owner)

    def release_leases(self, owner: str, but: Collection[str] = ()) -> None:
        """Release the owner's leases on all jobs except `but`."""
        condition, values = _in_list("lease_owner = :held_by AND id NOT IN (:ids)", but)
        with self._transaction() as connection:
            _update(connection, "jobs", _NO_LEASE, condition, held_by=owner, **values)

    # -- helpers

    def _jobs(self, condition: str, **values: object) -> list[JobRow]:
        return [serialization.decode_job(row) for row in self._read(f"SELECT * FROM jobs {condition}", **values)]

    def _read(self, query: str, **values: object) -> list[dict[str, Any]]:
        return self._database.rows(query, values)

    def _read_for(self, ids: Collection[str], query: str) -> list[dict[str, Any]]:
        """Run a query in which the ids replace `(:ids)`."""
        return self._database.rows(*_in_list(query, ids))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Begin a write transaction."""
        with self._writing, self._database.transaction() as connection:
            yield connection


_NO_LEASE: Values = {"lease_owner": None}
_AS_READ = "state = :read_state AND attempt = :read_attempt AND updated = :read"
"""Condition that an ended job has not been resumed since it was read; its parameters: _as_read()."""


def _as_read(job: JobRow) -> dict[str, object]:
    return {"read_state": job.state, "read_attempt": job.attempt, "read": job.updated}


def insert(connection: Connection, table: str, values: Values) -> None:
    """Insert a row of values in stored form."""
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES (:{', :'.join(values)})", values)


def _update(connection: Connection, table: str, values: Values, condition: str, **parameters: object) -> int:
    """Update the rows that match a condition; return their number. `parameters` must not have names of columns."""
    changes = ", ".join(f"{name} = :{name}" for name in values)
    return connection.execute(f"UPDATE {table} SET {changes} WHERE {condition}", {**values, **parameters})


def _in_list(statement: str, ids: Collection[str]) -> tuple[str, dict[str, str]]:
    """Replace `(:ids)` in a statement with one parameter for each id; return the statement and the parameters."""
    values = {f"id_{number}": one for number, one in enumerate(ids)}
    # not every database accepts ()
    listed = ", ".join(f":{name}" for name in values) or "SELECT id FROM jobs WHERE 1 = 0"
    return statement.replace("(:ids)", f"({listed})"), values


def _active_if(active_only: bool) -> str:
    return "WHERE jobs.ended IS NULL" if active_only else ""


def _undamaged(decode: Callable[[Mapping[str, object]], _T], found: Iterable[Mapping[str, object]]) -> Iterator[_T]:
    """Yield the valid rows; log the errors of the others."""
    for row in found:
        try:
            yield decode(row)
        except DamagedRowError as error:
            log.warning("%s", error)


def _expect_one(rowcount: int, job: JobRow) -> None:
    if rowcount != 1:
        raise LostRaceError(f"{job.id} was changed by another process")


def _add_event(
    connection: Connection, job_id: str, attempt: int | None, *, time: float, kind: str, message: str
) -> None:
    insert(
        connection,
        "events",
        serialization.encode(job_id=job_id, attempt=attempt, time=time, kind=kind, message=message),
    )


def open_store() -> Store:
    """Return the store of this user's jobs. Raises StoreError."""
    return _open(database_url())


@functools.cache
def _open(url: str) -> Store:
    return Store.open(url)
