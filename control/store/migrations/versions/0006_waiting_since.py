"""Add a column for the time of the first of a job's consecutive retries in place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("waiting_since", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("jobs", "waiting_since")
