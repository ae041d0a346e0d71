"""What outlives a process: data sets, artifacts, bundles and the ledger, with the readers of tables
and code lists.

Writes are atomic, and nothing is read by unpickling.
"""
