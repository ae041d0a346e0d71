"""The registry of records, and charges to the accounts of other releases that share them."""

import sqlalchemy as sa
from alembic import op

from storage.ledger import guards

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the registry, append-only too; on PostgreSQL replace the writer, and let its callers add sets."""
    connection = op.get_bind()
    op.create_table(
        "record_set",
        sa.Column(
            "sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False
        ),
        sa.Column("marks", sa.LargeBinary(), nullable=False),
    )
    for statement in guards.RECORDS[connection.dialect.name]:
        op.execute(statement)
    if connection.dialect.name != "postgresql":
        return
    schema, path = connection.execute(
        sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
    ).one()
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": f"{schema}, pg_temp"})
    for statement in guards.WRITER_OF_RECORDS:
        op.execute(statement)
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": path})
    roles = connection.execute(
        sa.text(
            "SELECT DISTINCT quote_ident(grantee) FROM information_schema.role_routine_grants"
            " WHERE routine_schema = current_schema() AND routine_name = 'ledger_append'"
            " AND privilege_type = 'EXECUTE' AND grantee <> current_user"
        )
    )
    for (role,) in roles:
        op.execute(f"GRANT SELECT ON record_set TO {role}")
        op.execute(f"GRANT EXECUTE ON FUNCTION ledger_register(bytea) TO {role}")


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
