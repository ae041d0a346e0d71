"""The mathematics: knows no Prefect and no database."""
