"""Studies of the papers' systems: what can be compared and is not released. Outside of the wheel, the ledger and Prefect."""
