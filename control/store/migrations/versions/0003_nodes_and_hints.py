"""Add columns for the machines that an attempt should have, and for the zones that a refusal named."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for column in ("nodes", "hints"):
        op.add_column("attempts", sa.Column(column, sa.Text))


def downgrade() -> None:
    for column in ("nodes", "hints"):
        op.drop_column("attempts", column)
