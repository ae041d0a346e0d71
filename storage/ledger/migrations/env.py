"""Alembic's entry: runs the migrations on the connection and inside the transaction that `migrate` opened."""

from alembic import context

from storage.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
