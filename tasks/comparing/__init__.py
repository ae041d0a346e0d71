"""Compares branches on the same records: the fits, their summary, and one table and plot."""
