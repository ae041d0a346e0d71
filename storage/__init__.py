"""Persistent data: datasets, artifacts, bundles and the ledger, and the readers of tables and code
lists.

Writes are atomic. Nothing is read by unpickling.
"""
