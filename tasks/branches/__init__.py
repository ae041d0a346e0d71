"""Runs a mechanism as a branch: its stages, outcome, plan and search for an epsilon."""
