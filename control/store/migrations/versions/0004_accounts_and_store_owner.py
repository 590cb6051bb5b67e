"""Add a column for the account of an attempt's machines, and a table for the store's owner tag.

The tag marks all resources created for the store's jobs. It is random and created with the store; a store with jobs
keeps the tag of its newest job.
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("account", sa.Text))
    stores = op.create_table("stores", sa.Column("owner", sa.Text, primary_key=True))
    newest = op.get_bind().execute(sa.text("SELECT owner FROM jobs ORDER BY created DESC, id LIMIT 1")).scalar()
    op.bulk_insert(stores, [{"owner": newest or f"cloudgpu-{secrets.token_hex(8)}"}])


def downgrade() -> None:
    op.drop_table("stores")
    op.drop_column("attempts", "account")
