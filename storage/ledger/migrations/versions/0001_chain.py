"""The chain: rows that can only be added, each at the end."""

from decimal import Decimal

import sqlalchemy as sa
from alembic import op

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
    for statement in _POSTGRESQL if dialect == "postgresql" else _SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")


# The insert triggers make every insert an append to the end of the chain. On SQLite that also stops INSERT OR
# REPLACE, which deletes the old row without firing the delete trigger unless recursive_triggers is on.
_SQLITE = (
    """CREATE TRIGGER ledger_row_no_update BEFORE UPDATE ON ledger_row
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END""",
    """CREATE TRIGGER ledger_row_no_delete BEFORE DELETE ON ledger_row
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END""",
    """CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
    WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_row)
      OR NEW.previous_hash IS NOT coalesce(
           (SELECT hash FROM ledger_row ORDER BY sequence DESC LIMIT 1), printf('%064d', 0))
      OR EXISTS (SELECT 1 FROM ledger_row WHERE hash = NEW.hash)
      OR (NEW.kind = 'release' AND EXISTS (SELECT 1 FROM ledger_row
           WHERE kind = 'release' AND release_id = NEW.release_id
             AND (state = NEW.state OR state IN ('committed', 'burned'))))
      OR (NEW.idempotency_key IS NOT NULL AND NEW.state NOT IN ('drawn', 'committed', 'burned')
           AND EXISTS (SELECT 1 FROM ledger_row
             WHERE kind = NEW.kind AND idempotency_key = NEW.idempotency_key))
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: a row must follow the last one'); END""",
)

_POSTGRESQL = (
    """CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'the ledger is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
    END $$""",
    """CREATE TRIGGER ledger_row_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_row
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
    """CREATE FUNCTION ledger_row_append() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE last record;
    BEGIN
      SELECT sequence, hash INTO last FROM ledger_row ORDER BY sequence DESC LIMIT 1;
      IF NEW.sequence IS DISTINCT FROM coalesce(last.sequence, 0) + 1
         OR NEW.previous_hash IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
        RAISE EXCEPTION 'the ledger is append-only: a row must follow the last one'
          USING ERRCODE = 'insufficient_privilege';
      END IF;
      RETURN NEW;
    END $$""",
    """CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
    FOR EACH ROW EXECUTE FUNCTION ledger_row_append()""",
    "REVOKE ALL ON ledger_row FROM PUBLIC",
)
