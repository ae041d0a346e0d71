"""Runs a retrain: from records to a release plan, and its dry run."""
