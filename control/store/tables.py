"""Tables of the store, for its migrations. A change here needs a migration (migrations/versions/) and a new HEAD in
schema.py; a test compares them.

Only types that every database has: JSON values and decimals are stored as text, times as epoch seconds.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("goal", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("exit_code", Integer),
    Column("spec", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("offers", Text, nullable=False),
    Column("job_dir", Text, nullable=False),
    Column("job_sha256", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("waits", Integer, nullable=False),
    Column("not_before", Float(53), nullable=False),
    Column("spent", Text),
    Column("created", Float(53), nullable=False),
    Column("updated", Float(53), nullable=False),
    Column("ended", Float(53)),
    Column("lease_owner", Text),
    Column("lease_beat", Integer, nullable=False),
    Column("waiting_since", Float(53)),
    Column("run", Text),
    Column("source", Text),
    Index("jobs_by_name", "name"),
    Index("jobs_by_created", "created"),
    Index("jobs_by_ended", "ended"),
)

stores = Table(
    "stores",
    metadata,
    Column("owner", Text, primary_key=True),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("offer", Text, nullable=False),
    Column("price", Text),
    Column("token", Text, nullable=False),
    Column("allocation", Text),
    Column("cause", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("deadline", Float(53)),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("exit_code", Integer),
    Column("progress", Text),
    Column("created", Float(53), nullable=False),
    Column("launched", Float(53)),
    Column("ended", Float(53)),
    Column("cost", Text),
    Column("generations", Text),
    Column("timeline", Text),
    Column("nodes", Text),
    Column("hints", Text),
    Column("account", Text),
    Column("seen", Text),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("attempt", Integer),
    Column("time", Float(53), nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Index("events_by_job", "job_id", "seq"),
)
