"""Stores artifacts, data sets, bundles and the release ledger."""
