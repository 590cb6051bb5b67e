"""Add columns for an attempt's timeline and for the restarts of its program on the same machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for column in ("generations", "timeline"):
        op.add_column("attempts", sa.Column(column, sa.Text))


def downgrade() -> None:
    for column in ("generations", "timeline"):
        op.drop_column("attempts", column)
