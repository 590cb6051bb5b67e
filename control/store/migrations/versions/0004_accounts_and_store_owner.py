"""The account of an attempt's machines, and the store's own name, which everything made for its jobs is tagged with.

The name is random, made with the store. A store that has jobs keeps the one that its newest job is tagged with.
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
