"""The chain: rows that can only be added, each at the end."""

from decimal import Decimal

import sqlalchemy as sa
from alembic import op

from storage.ledger import guards

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _exact(scale: int) -> sa.Numeric[Decimal]:
    return sa.Numeric(scale + 10, scale).with_variant(sa.String(40), "sqlite")


def upgrade() -> None:
    """Create the table of rows and what keeps it append-only."""
    dialect = op.get_bind().dialect.name
    op.create_table(
        "ledger_row",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("recorded_at", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("release_id", sa.String(300)),
        sa.Column("idempotency_key", sa.String(300)),
        sa.Column("population", sa.String(300)),
        sa.Column("mechanism", sa.String(100)),
        sa.Column("guarantee_kind", sa.String(20), nullable=False),
        sa.Column("epsilon", _exact(12)),
        sa.Column("delta", _exact(18)),
        sa.Column("sensitivity", _exact(12)),
        sa.Column("body", sa.Text(), nullable=False),
        sa.UniqueConstraint("previous_hash", name="ledger_row_no_fork"),
        sa.UniqueConstraint("hash", name="ledger_row_hash"),
    )
    for name, columns, unique, where in (
        ("ledger_row_state_once", ["release_id", "state"], True, "kind = 'release'"),
        ("ledger_row_closed_once", ["release_id"], True, "state IN ('committed', 'burned')"),
        (
            "ledger_row_key_once",
            ["kind", "idempotency_key"],
            True,
            "idempotency_key IS NOT NULL AND state NOT IN ('drawn', 'committed', 'burned')",
        ),
        ("ledger_row_by_release", ["release_id", "sequence"], False, None),
        ("ledger_row_by_key", ["idempotency_key", "sequence"], False, None),
        ("ledger_row_policy", ["sequence"], False, "kind = 'budget-change'"),
    ):
        condition = sa.text(where) if where else None
        op.create_index(name, "ledger_row", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
    for statement in guards.CHAIN[dialect]:
        op.execute(statement)


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
