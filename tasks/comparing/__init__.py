"""Compares branches: run, summary, report, recommendation and published figures."""
