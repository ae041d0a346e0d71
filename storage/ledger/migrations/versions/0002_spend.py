"""Running totals of each account, filled from the chain, so that a reservation needn't sum the history."""

import json
from decimal import Decimal

import sqlalchemy as sa
from alembic import op

from storage.ledger import guards

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
    for statement in guards.TOTALS[connection.dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    """Refuse: a history isn't taken back."""
    raise NotImplementedError("the ledger only moves forward")
