"""Prefect tasks: thin wrappers, one stage each. References go through them, never records."""
