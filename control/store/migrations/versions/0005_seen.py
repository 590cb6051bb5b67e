"""Add a column for the newest state of a running attempt, so that lists of jobs need not read job dirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("seen", sa.Text))


def downgrade() -> None:
    op.drop_column("attempts", "seen")
