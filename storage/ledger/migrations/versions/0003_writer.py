"""PostgreSQL: one procedure writes, and who could add rows before may call it instead."""

import sqlalchemy as sa
from alembic import op

from storage.ledger import guards

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the procedure; take INSERT from every role but the owner and let those call it."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    schema, path = connection.execute(
        sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
    ).one()
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": f"{schema}, pg_temp"})
    for statement in guards.WRITER:
        op.execute(statement)
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": path})
    roles = connection.execute(
        sa.text(
            "SELECT DISTINCT quote_ident(grantee) FROM information_schema.role_table_grants"
            " WHERE table_schema = current_schema() AND table_name IN ('ledger_row', 'spend')"
            " AND privilege_type = 'INSERT' AND grantee <> current_user"
        )
    )
    for (role,) in roles:
        op.execute(f"REVOKE INSERT ON ledger_row, spend FROM {role}")
        op.execute(f"GRANT EXECUTE ON FUNCTION ledger_append(text) TO {role}")


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
