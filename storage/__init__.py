"""What is kept: artifacts, data sets, bundles and the release ledger."""
