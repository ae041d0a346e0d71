"""Compares branches on the same records: the fits, their summary, one table and one plot."""
