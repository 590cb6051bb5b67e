"""Add columns for the further runs of a job, and for the job that it was started from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for column in ("run", "source"):
        op.add_column("jobs", sa.Column(column, sa.Text))


def downgrade() -> None:
    for column in ("run", "source"):
        op.drop_column("jobs", column)
