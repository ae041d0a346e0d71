"""Running totals of each account, filled from the chain, so that a reservation needn't sum the history."""

import json
from decimal import Decimal

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _exact(scale: int) -> sa.Numeric[Decimal]:
    return sa.Numeric(scale + 10, scale).with_variant(sa.String(40), "sqlite")


def upgrade() -> None:
    """Create the table of totals, fill it from the rows there are, and make it append-only too."""
    connection = op.get_bind()
    spend = op.create_table(
        "spend",
        sa.Column("population", sa.String(300), primary_key=True),
        sa.Column("cohort", sa.String(300), primary_key=True),
        sa.Column("guarantee_kind", sa.String(20), primary_key=True),
        sa.Column("sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("neighbouring_relation", sa.String(20), nullable=False),
        sa.Column("privacy_unit", sa.String(300), nullable=False),
        sa.Column("epsilon", _exact(12), nullable=False),
        sa.Column("delta", _exact(18), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("spend_by_sequence", "spend", ["sequence"])
    rows = connection.execute(sa.text("SELECT sequence, body FROM ledger_row ORDER BY sequence")).all()
    for sequence, body in rows:
        content = json.loads(body)
        totals = [
            {
                "population": content["population"],
                "cohort": charge["cohort"],
                "guarantee_kind": content["guarantee_kind"],
                "sequence": sequence,
                "neighbouring_relation": charge["neighbouring_relation"],
                "privacy_unit": charge["privacy_unit"],
                "epsilon": charge["epsilon_after"],
                "delta": charge["delta_after"],
            }
            for charge in content["charges"]
        ]
        if totals:
            connection.execute(spend.insert(), totals)
    for statement in _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")


# A total may only be written beside the row that charges it, which is the newest one.
_SQLITE = (
    """CREATE TRIGGER spend_no_update BEFORE UPDATE ON spend
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END""",
    """CREATE TRIGGER spend_no_delete BEFORE DELETE ON spend
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END""",
    """CREATE TRIGGER spend_append BEFORE INSERT ON spend
    WHEN NEW.sequence IS NOT (SELECT max(sequence) FROM ledger_row)
      OR EXISTS (SELECT 1 FROM spend WHERE population = NEW.population AND cohort = NEW.cohort
           AND guarantee_kind = NEW.guarantee_kind AND sequence >= NEW.sequence)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: a total must belong to the last row'); END""",
)

_POSTGRESQL = (
    """CREATE TRIGGER spend_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON spend
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
    """CREATE FUNCTION spend_append() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NEW.sequence IS DISTINCT FROM (SELECT max(sequence) FROM ledger_row) THEN
        RAISE EXCEPTION 'the ledger is append-only: a total must belong to the last row'
          USING ERRCODE = 'insufficient_privilege';
      END IF;
      RETURN NEW;
    END $$""",
    """CREATE TRIGGER spend_append BEFORE INSERT ON spend
    FOR EACH ROW EXECUTE FUNCTION spend_append()""",
    "REVOKE ALL ON spend FROM PUBLIC",
)
