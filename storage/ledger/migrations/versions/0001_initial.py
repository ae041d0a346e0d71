"""Creates the chain, the running totals, the registry of records, and what keeps all three append-only."""

import sqlalchemy as sa
from alembic import op

from storage.ledger import triggers

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create tables and triggers; on PostgreSQL also the procedures that write, each with a fixed search path."""
    connection = op.get_bind()
    triggers.create(connection, "schema", "triggers")
    if connection.dialect.name != "postgresql":
        return
    schema, path = connection.execute(
        sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
    ).one()
    set_path = sa.text("SELECT set_config('search_path', :path, true)")
    connection.execute(set_path, {"path": f"{schema}, pg_temp"})
    triggers.create(connection, "writer")
    connection.execute(set_path, {"path": path})


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
