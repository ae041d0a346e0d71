"""Runs stages: key, lock, progress, failures, code version."""
