"""An account of all cohorts for claims about units, and one privacy unit a population."""

import sqlalchemy as sa
from alembic import op

from storage.ledger import guards

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index that tells a population's units; on PostgreSQL replace the writer.

    No row is added: the account of a population's units takes over what was charged before as it is first charged.
    """
    connection = op.get_bind()
    op.create_index("spend_by_unit", "spend", ["population", "guarantee_kind", "privacy_unit"])
    if connection.dialect.name != "postgresql":
        return
    schema, path = connection.execute(
        sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
    ).one()
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": f"{schema}, pg_temp"})
    for statement in guards.WRITER_OF_UNITS:
        op.execute(statement)
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": path})


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
