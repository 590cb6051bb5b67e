"""Add the tables of jobs, attempts and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_jobs()
    _create_attempts()
    _create_events()


def downgrade() -> None:
    for table in ("events", "attempts", "jobs"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("goal", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("offers", sa.Text, nullable=False),
        sa.Column("job_dir", sa.Text, nullable=False),
        sa.Column("job_sha256", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("waits", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Float(53), nullable=False),
        sa.Column("spent", sa.Text),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("updated", sa.Float(53), nullable=False),
        sa.Column("ended", sa.Float(53)),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_beat", sa.Integer, nullable=False),
    )
    for column in ("name", "created", "ended"):
        op.create_index(f"jobs_by_{column}", "jobs", [column])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("offer", sa.Text, nullable=False),
        sa.Column("price", sa.Text),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("allocation", sa.Text),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("deadline", sa.Float(53)),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("progress", sa.Text),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("launched", sa.Float(53)),
        sa.Column("ended", sa.Float(53)),
        sa.Column("cost", sa.Text),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("attempt", sa.Integer),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("events_by_job", "events", ["job_id", "seq"])
