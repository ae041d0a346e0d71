"""Runs stages: keys, locks, progress, failures, code version."""
